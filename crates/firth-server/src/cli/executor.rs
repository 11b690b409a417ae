//! `firth consume --exec`: runs a command per record, several at a time, and settles by its exit
//! code.
//!
//! After the first signal no command starts and records in hand are released; the commands that run
//! go on to their end. A second signal kills those, and their records are released too. No record
//! that was released has used an attempt.

use super::consume::{ConsumeArgs, GroupReading, Patience, failure};
use super::exec::{self, Verdict};
use super::guard;
use super::output::{json, note};
use super::signals::Signals;
use crate::wire::{Delivered, Settle};
use firth::{Error, ErrorKind, Result};
use std::collections::HashSet;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};

pub(super) async fn run(
    reading: &GroupReading<'_>,
    args: &ConsumeArgs,
    command: &str,
    as_json: bool,
    signals: &mut Signals,
) -> Result<()> {
    guard::start();
    let mut executor =
        Executor { reading, args, command, as_json, running: JoinSet::new(), in_hand: HashSet::new() };
    let done = executor.work(signals).await;
    // Commands that still run have no verdict. Stop them and release their deliveries, also after
    // an error.
    let released = executor.stop().await;
    done.and(released)
}

struct Executor<'a> {
    reading: &'a GroupReading<'a>,
    args: &'a ConsumeArgs,
    command: &'a str,
    as_json: bool,
    running: JoinSet<(Delivered, Verdict)>,
    /// The deliveries whose commands run.
    in_hand: HashSet<String>,
}

impl Executor<'_> {
    /// Fetches and runs until it is time to stop, then waits for what runs.
    async fn work(&mut self, signals: &mut Signals) -> Result<()> {
        let mut left = self.args.how.max.unwrap_or(u64::MAX);
        let mut patience = Patience::new(&self.args.how);
        let mut is_stopping = false;
        while !is_stopping {
            let room = (self.args.jobs - self.running.len() as u64).min(left);
            if room == 0 {
                if self.running.is_empty() {
                    return Ok(());
                }
                is_stopping = self.settle_next(signals).await?;
                continue;
            }
            let idle = self.running.is_empty();
            let wait = if idle { patience.next_wait() } else { Duration::from_millis(100) };
            let (fetched, is_signalled) = signals.finish(self.reading.fetch(room, wait)).await;
            let fetched = fetched?;
            let goes_on = patience.goes_on(fetched.len() + self.running.len(), wait);
            is_stopping = is_signalled || !goes_on;
            if is_signalled {
                self.release(fetched.into_iter().map(|delivered| delivered.delivery).collect()).await?;
            } else {
                left -= fetched.len() as u64;
                fetched.into_iter().for_each(|delivered| self.start(delivered));
            }
            while let Some(ended) = self.running.try_join_next() {
                self.settle(ended).await?;
            }
        }
        if !self.running.is_empty() && self.args.how.follow {
            note(&format!("waiting for {} running commands; a signal stops them", self.running.len()));
        }
        while !self.running.is_empty() && !self.settle_next(signals).await? {}
        Ok(())
    }

    /// Settles the next command that ends; answers whether a signal came first.
    async fn settle_next(&mut self, signals: &mut Signals) -> Result<bool> {
        tokio::select! {
            biased;
            () = signals.next() => Ok(true),
            Some(ended) = self.running.join_next() => self.settle(ended).await.map(|()| false),
        }
    }

    fn start(&mut self, delivered: Delivered) {
        self.in_hand.insert(delivered.delivery.clone());
        let command = self.command.to_owned();
        let group = self.args.group.clone();
        let lease = self.args.lease;
        self.running.spawn(async move {
            let verdict = exec::run(&command, &group, &delivered.record, lease).await;
            (delivered, verdict)
        });
    }

    /// Kills what runs and releases its records.
    async fn stop(&mut self) -> Result<()> {
        self.running.shutdown().await;
        let in_hand = self.in_hand.drain().collect();
        self.release(in_hand).await
    }

    async fn release(&self, deliveries: Vec<String>) -> Result<()> {
        match deliveries.is_empty() {
            true => Ok(()),
            false => self.reading.settle(&Settle { release: deliveries, ..Settle::default() }).await,
        }
    }

    async fn settle(&mut self, ended: Result<(Delivered, Verdict), JoinError>) -> Result<()> {
        let (delivered, verdict) = ended
            .map_err(|error| Error::new(ErrorKind::Internal, "a command was lost").with_source(error))?;
        let Delivered { delivery, record, .. } = delivered;
        let mut verdicts = Settle::default();
        let (name, reason) = match verdict {
            Verdict::Ack => {
                verdicts.ack.push(delivery.clone());
                ("ack", None)
            }
            Verdict::Reject(why) => {
                verdicts.reject.push(failure(delivery.clone(), why.clone(), None));
                ("reject", Some(why))
            }
            Verdict::Nack(why) => {
                verdicts.nack.push(failure(delivery.clone(), why.clone(), None));
                ("nack", Some(why))
            }
            // The record stays in hand and is released when the work ends.
            Verdict::Broken(why) => return Err(Error::new(ErrorKind::Invalid, format!("--exec: {why}"))),
        };
        self.in_hand.remove(&delivery);
        self.reading.settle(&verdicts).await?;
        if self.as_json {
            return json(&serde_json::json!({
                "partition": record.partition, "id": record.id, "attempt": record.attempt,
                "verdict": name, "reason": reason,
            }));
        }
        if let Some(reason) = reason {
            note(&format!("{name} {}/{} attempt {}: {reason}", record.partition, record.id, record.attempt));
        }
        Ok(())
    }
}
