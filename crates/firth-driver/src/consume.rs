//! `consume`: one member of a group, whose verdicts come from outside.
//!
//! Up to [`SIDE_BY_SIDE`] deliveries of a partition wait for their verdicts at once, never two of
//! one key. A token is good for one verdict and only while its partition is ours; any other
//! verdict is refused with `definite: true`, because it changed nothing.

use crate::args::Consume;
use crate::protocol::{Command, Event, sha_of};
use crate::tally::id_of;
use crate::wire::{Out, lines};
use anyhow::{Context, Result};
use firth::{Broker, Consumer, ConsumerHandle, Delivery, Epoch, Nack, Settled};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::time::Duration;

/// Deliveries of one partition without a verdict.
const SIDE_BY_SIDE: usize = 64;

pub(crate) async fn open(broker: Broker, args: &Consume) -> firth::Result<(Broker, Consumer)> {
    let consumer = broker
        .consumer(&args.topic, &args.group)
        .name(&args.member)
        .lease(args.lease)
        .ordering(args.ordering)
        .concurrency(SIDE_BY_SIDE)
        .await?;
    Ok((broker, consumer))
}

pub(crate) async fn run((broker, consumer): (Broker, Consumer)) -> Result<()> {
    let member = Member {
        handle: consumer.handle(),
        out: Out::new(std::io::stdout()),
        announced: BTreeMap::new(),
        in_hand: BTreeMap::new(),
        next_token: 1,
        verdicts: FuturesUnordered::new(),
    };
    member.serve(consumer).await?;
    broker.close().await?;
    Ok(())
}

/// Outcome of a verdict.
type Answer = (String, firth::Result<()>);

struct Member {
    handle: ConsumerHandle,
    out: Out,
    /// Partitions that were told as ours.
    announced: BTreeMap<u32, Epoch>,
    in_hand: BTreeMap<u64, Delivery>,
    next_token: u64,
    verdicts: FuturesUnordered<BoxFuture<'static, Answer>>,
}

impl Member {
    async fn serve(mut self, mut consumer: Consumer) -> Result<()> {
        let mut input = lines::<Command>(std::io::stdin());
        let mut changes = self.handle.clone();
        let trouble = loop {
            tokio::select! {
                line = input.recv() => match line {
                    None => break None,
                    Some(Err(error)) => break Some(error),
                    Some(Ok(command)) => self.obey(command).await?,
                },
                delivery = consumer.next() => match delivery {
                    None => break None,
                    Some(delivery) => self.deliver(delivery.context("the consumer cannot go on")?).await?,
                },
                owned = changes.next_epochs() => match owned {
                    None => break None,
                    Some(owned) => self.announce(&owned).await?,
                },
                Some((id, answer)) = self.verdicts.next(), if !self.verdicts.is_empty() => {
                    self.answer(id, answer).await?;
                }
            }
        };
        self.leave(consumer).await?;
        trouble.map_or(Ok(()), Err)
    }

    /// Waits for verdicts that came, hands the rest over, and leaves the group.
    async fn leave(mut self, consumer: Consumer) -> Result<()> {
        // First, so that nothing that is given back comes to us again.
        self.handle.pause();
        std::mem::take(&mut self.in_hand).into_values().for_each(Delivery::give_back);
        while let Some((id, answer)) = self.verdicts.next().await {
            self.answer(id, answer).await?;
        }
        let closed = consumer.close().await;
        self.announce(&BTreeMap::new()).await?;
        self.out.end()?;
        closed.context("leave the group")
    }

    async fn deliver(&mut self, delivery: Delivery) -> Result<()> {
        let partition = delivery.partition();
        let epoch = delivery.epoch();
        if self.announced.get(&partition).is_none_or(|known| *known < epoch) {
            let mut owned = self.announced.clone();
            owned.insert(partition, epoch);
            self.announce(&owned).await?;
        }
        let token = self.next_token;
        self.next_token += 1;
        let event = Event::Delivered {
            id: id_of(&delivery),
            key: delivery.key().map(|key| String::from_utf8_lossy(key).into_owned()),
            partition,
            epoch: epoch.0,
            sha: sha_of(delivery.payload()),
            attempt: delivery.attempt(),
            token,
        };
        self.in_hand.insert(token, delivery);
        self.out.say(&event).await
    }

    /// Tells what changed since the last time, and forgets deliveries of partitions it lost.
    async fn announce(&mut self, owned: &BTreeMap<u32, Epoch>) -> Result<()> {
        for (partition, epoch) in std::mem::take(&mut self.announced) {
            if owned.get(&partition).is_some_and(|now| *now <= epoch) {
                self.announced.insert(partition, epoch);
                continue;
            }
            // Its lane has ended: dropped, they go nowhere.
            self.in_hand.retain(|_, delivery| (delivery.partition(), delivery.epoch()) != (partition, epoch));
            self.out.say(&Event::Revoked { partition, epoch: epoch.0 }).await?;
        }
        for (partition, epoch) in owned {
            if !self.announced.contains_key(partition) {
                self.announced.insert(*partition, *epoch);
                self.out.say(&Event::Assigned { partition: *partition, epoch: epoch.0 }).await?;
            }
        }
        Ok(())
    }

    async fn obey(&mut self, command: Command) -> Result<()> {
        let id = command.id().to_owned();
        let token = command.token();
        if let Err(reason) = self.check(&command) {
            return self.out.say(&Event::AckErr { id, definite: true, reason }).await;
        }
        let delivery = self.in_hand.remove(&token).expect("it was checked");
        let settled: Settled = match command {
            Command::Ack { .. } => delivery.ack(),
            Command::Nack { after_ms: None, .. } => delivery.nack(Nack::retry("nack")),
            Command::Nack { after_ms: Some(after), .. } => {
                delivery.nack(Nack::retry_after(Duration::from_millis(after), "nack"))
            }
            Command::Reject { reason, .. } => delivery.reject(reason),
        };
        self.verdicts.push(Box::pin(async move { (id, settled.await) }));
        Ok(())
    }

    fn check(&self, command: &Command) -> Result<(), String> {
        let token = command.token();
        let Some(delivery) = self.in_hand.get(&token) else {
            return Err(if token < self.next_token {
                "fenced: it was settled before, or its partition is not ours any more".to_owned()
            } else {
                format!("invalid: there is no token {token}")
            });
        };
        if id_of(delivery) != command.id() {
            return Err(format!("invalid: token {token} belongs to another message"));
        }
        match command {
            Command::Ack { epoch: Some(epoch), .. } if *epoch != delivery.epoch().0 => {
                Err(format!("fenced: token {token} is of epoch {}", delivery.epoch().0))
            }
            _ => Ok(()),
        }
    }

    async fn answer(&self, id: String, answer: firth::Result<()>) -> Result<()> {
        let event = match answer {
            Ok(()) => Event::AckOk { id },
            Err(error) => {
                Event::AckErr { id, definite: !error.may_have_happened(), reason: error.to_string() }
            }
        };
        self.out.say(&event).await
    }
}
