//! The judge of the laws under load: a publisher that does not use the client under test and writes
//! down what each server acknowledged, a reader that writes down what came, and the comparison of
//! the two.

use super::{SOON, name, number};
use firth_redis::mux::{Event, Signal, Subscription};
use firth_testkit::resp::Conn;
use firth_testkit::{RedisCluster, Reply, slot_of, wait};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest time for an acknowledgement; beyond it the outcome is unknown.
const PATIENCE: Duration = Duration::from_millis(300);

/// An acknowledged message.
#[derive(Debug, Clone, Copy)]
struct PublishedMessage {
    number: u64,
    begun: Instant,
    /// Subscribers on the node that took it.
    receivers: i64,
    node: usize,
}

/// Which command publishes to a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PublishMode {
    Sharded,
    /// At this node, or at each in turn.
    Ordinary(Option<usize>),
}

/// Speaks to the nodes directly and finds the owner of a slot as any client does: by asking.
struct Publisher {
    cluster: Arc<RedisCluster>,
    lines: HashMap<usize, Conn<UnixStream>>,
    owners: HashMap<u16, usize>,
    turn: usize,
}

impl Publisher {
    /// Number of receivers, and the node; `None` if the message was refused, or its outcome is
    /// unknown.
    async fn publish(&mut self, way: PublishMode, channel: &str, number: u64) -> Option<(i64, usize)> {
        let number = number.to_string();
        match way {
            PublishMode::Ordinary(at) => {
                self.turn += 1;
                let node = at.unwrap_or(self.turn % self.cluster.nodes().len());
                let reply = self.say(node, &["PUBLISH", channel, &number]).await?;
                (!reply.is_error()).then(|| (reply.int(), node))
            }
            PublishMode::Sharded => self.publish_sharded(channel, &number).await,
        }
    }

    async fn publish_sharded(&mut self, channel: &str, number: &str) -> Option<(i64, usize)> {
        let slot = slot_of(channel);
        for _ in 0..4 {
            let node = self.owners.get(&slot).copied().unwrap_or(self.turn % self.cluster.nodes().len());
            match self.say(node, &["SPUBLISH", channel, number]).await {
                Some(Reply::Int(receivers)) => {
                    if receivers == 0 {
                        // A replica takes messages too. Others know who the master is.
                        self.owners.remove(&slot);
                        self.turn += 1;
                    }
                    return Some((receivers, node));
                }
                Some(Reply::Error(text)) if text.starts_with("MOVED") => {
                    let port: u16 = text.rsplit(':').next()?.parse().ok()?;
                    let owner = self.cluster.nodes().iter().position(|n| n.addr().port() == port)?;
                    self.owners.insert(slot, owner);
                }
                _ => {
                    self.owners.remove(&slot);
                    self.turn += 1;
                    return None;
                }
            }
        }
        None
    }

    async fn say(&mut self, node: usize, words: &[&str]) -> Option<Reply> {
        let at = self.cluster.node(node);
        if !at.is_live() {
            self.lines.remove(&node);
            return None;
        }
        let mut line = match self.lines.remove(&node) {
            Some(line) => line,
            None => tokio::time::timeout(PATIENCE, at.server().connect()).await.ok()?.ok()?,
        };
        // A line that is late is not used again: its answer must not be taken for that of the next
        // message.
        let reply = tokio::time::timeout(PATIENCE, line.call(words)).await.ok()?.ok()?;
        self.lines.insert(node, line);
        Some(reply)
    }
}

/// What was acknowledged, by channel.
#[derive(Debug, Default)]
pub(super) struct PublishedMessages(BTreeMap<String, Vec<PublishedMessage>>);

/// A publisher at work in the background.
pub(super) struct PublishLoad {
    stop: CancellationToken,
    task: JoinHandle<PublishedMessages>,
}

impl PublishLoad {
    /// Publishes to each of the channels in turn, a round every few milliseconds, until it is
    /// stopped.
    pub(super) fn start(cluster: &Arc<RedisCluster>, channels: Vec<(String, PublishMode)>) -> Self {
        let stop = CancellationToken::new();
        let publisher =
            Publisher { cluster: cluster.clone(), lines: HashMap::new(), owners: HashMap::new(), turn: 0 };
        Self { task: tokio::spawn(publish_until(publisher, channels, stop.clone())), stop }
    }

    /// Stops when each channel was heard once more.
    pub(super) async fn stop(self) -> PublishedMessages {
        self.stop.cancel();
        self.task.await.expect("the publisher does not panic")
    }
}

async fn publish_until(
    mut by: Publisher,
    channels: Vec<(String, PublishMode)>,
    stop: CancellationToken,
) -> PublishedMessages {
    let mut ledger = PublishedMessages::default();
    let mut pace = tokio::time::interval(Duration::from_millis(2));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut next: u64 = 0;
    while !stop.is_cancelled() {
        for (channel, way) in &channels {
            next += 1;
            ledger.publish(&mut by, *way, channel, next).await;
        }
        pace.tick().await;
    }
    for (channel, way) in &channels {
        let given_up = Instant::now() + SOON;
        loop {
            next += 1;
            if ledger.publish(&mut by, *way, channel, next).await > 0 {
                break;
            }
            assert!(Instant::now() < given_up, "nobody hears {channel} any more");
            pace.tick().await;
        }
    }
    ledger
}

/// A reader at work in the background, until it is told to finish.
pub(super) struct Reader {
    stop: CancellationToken,
    log: Arc<Mutex<ReceivedEvents>>,
    task: JoinHandle<Subscription>,
}

/// What came, and when it was read.
#[derive(Debug, Default)]
pub(super) struct ReceivedEvents(Vec<(Instant, Event)>);

impl Reader {
    pub(super) fn start(mut subscription: Subscription) -> Self {
        let stop = CancellationToken::new();
        let log = Arc::<Mutex<ReceivedEvents>>::default();
        let stopped = stop.clone();
        let pages = log.clone();
        let task = tokio::spawn(async move {
            loop {
                let batch = tokio::select! {
                    batch = subscription.next_batch() => batch,
                    () = stopped.cancelled() => return subscription,
                };
                assert!(!batch.is_empty(), "nobody closed it");
                let now = Instant::now();
                pages.lock().unwrap().0.extend(batch.into_iter().map(|event| (now, event)));
            }
        });
        Self { stop, log, task }
    }

    /// Looks at what has come so far.
    pub(super) fn look<T>(&self, at: impl FnOnce(&ReceivedEvents) -> T) -> T {
        at(&self.log.lock().unwrap())
    }

    /// Waits until every message has come, from any node, or some never will, and ends.
    pub(super) async fn finish_with_all(self, ledger: &PublishedMessages) -> (Subscription, ReceivedEvents) {
        for channel in ledger.0.keys() {
            let came = async || self.look(|log| ledger.missing(channel, log).is_empty()).then_some(());
            wait::until_some(SOON, came).await;
        }
        self.finish(ledger).await
    }

    /// Waits until the last message of each channel has come, and ends.
    pub(super) async fn finish(self, ledger: &PublishedMessages) -> (Subscription, ReceivedEvents) {
        for (channel, sent) in &ledger.0 {
            let Some(&PublishedMessage { number: last, node, receivers, .. }) = sent.last() else { continue };
            let came = wait::until_some(SOON, async || {
                self.look(|log| log.numbers(channel).contains(&last)).then_some(())
            });
            if came.await.is_none() {
                let (numbers, signals) = self.look(|log| (log.numbers(channel), log.signals(channel)));
                let came = numbers.last();
                panic!(
                    "{channel}: {last} (node {node}, {receivers} receivers) does not come, the last one was {came:?}; \
                     signals {signals:?}"
                );
            }
        }
        self.stop.cancel();
        let subscription = self.task.await.expect("the reader does not panic");
        (subscription, std::mem::take(&mut self.log.lock().unwrap()))
    }
}

/// What came of a channel between two signals.
struct Interval {
    /// Whether nothing may be missing.
    live: bool,
    /// When its beginning was read.
    since: Option<Instant>,
    numbers: Vec<u64>,
}

impl ReceivedEvents {
    /// The signals about a channel, by name.
    pub(super) fn signals(&self, channel: &str) -> Vec<&'static str> {
        self.0.iter().filter_map(|(_, e)| e.signal()).filter(|s| speaks_of(s, channel)).map(name).collect()
    }

    /// How long the gaps of a channel lasted.
    pub(super) fn gaps(&self, channel: &str) -> Vec<Duration> {
        let of_channel = self.0.iter().filter_map(|(_, e)| e.signal()).filter(|s| speaks_of(s, channel));
        of_channel
            .filter_map(|signal| match signal {
                Signal::Resumed { after, .. } => Some(*after),
                _ => None,
            })
            .collect()
    }

    /// The numbers of the messages of a channel.
    pub(super) fn numbers(&self, channel: &str) -> Vec<u64> {
        let messages = self.0.iter().filter_map(|(_, e)| e.message());
        messages.filter(|m| m.channel == channel.as_bytes()).map(number).collect()
    }

    /// A channel's messages, cut where its gaps begin and end.
    fn pieces(&self, channel: &str) -> Vec<Interval> {
        let mut pieces = vec![Interval { live: true, since: None, numbers: Vec::new() }];
        for (at, event) in &self.0 {
            match event {
                Event::Message(m) if m.channel == channel.as_bytes() => {
                    pieces.last_mut().expect("there is one").numbers.push(number(m));
                }
                Event::Signal(signal) if speaks_of(signal, channel) => match signal {
                    Signal::Gap { .. } => {
                        pieces.push(Interval { live: false, since: None, numbers: Vec::new() });
                    }
                    Signal::Resumed { .. } => {
                        pieces.push(Interval { live: true, since: Some(*at), numbers: Vec::new() });
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        pieces
    }
}

fn speaks_of(signal: &Signal, channel: &str) -> bool {
    let channels = match signal {
        Signal::Moved { channels, .. }
        | Signal::NodeLost { channels, .. }
        | Signal::Gap { channels, .. }
        | Signal::Resumed { channels, .. }
        | Signal::Stalled { channels, .. }
        | Signal::TimedOut { channels, .. } => channels,
        other => panic!("nobody was slow: {other:?}"),
    };
    channels.iter().any(|c| c == channel.as_bytes())
}

impl PublishedMessages {
    async fn publish(&mut self, by: &mut Publisher, way: PublishMode, channel: &str, number: u64) -> i64 {
        let begun = Instant::now();
        let Some((receivers, node)) = by.publish(way, channel, number).await else { return 0 };
        self.0.entry(channel.to_owned()).or_default().push(PublishedMessage {
            number,
            begun,
            receivers,
            node,
        });
        receivers
    }

    /// The part about these channels.
    pub(super) fn only(&self, channels: &[String]) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(c, _)| channels.contains(c))
                .map(|(c, s)| (c.clone(), s.clone()))
                .collect(),
        )
    }

    fn sent(&self, channel: &str) -> &[PublishedMessage] {
        self.0.get(channel).map_or(&[], Vec::as_slice)
    }

    /// The messages that a node took for a subscriber of its own. Others cross the cluster first,
    /// and may be overtaken.
    fn heard(&self, channel: &str) -> BTreeMap<u64, PublishedMessage> {
        self.sent(channel).iter().filter(|s| s.receivers > 0).map(|s| (s.number, *s)).collect()
    }

    /// Messages that some node acknowledged and that did not come.
    pub(super) fn missing(&self, channel: &str, log: &ReceivedEvents) -> Vec<String> {
        let came: BTreeSet<u64> = log.numbers(channel).into_iter().collect();
        let missing = self.sent(channel).iter().filter(|s| !came.contains(&s.number));
        missing.map(|s| format!("{} at node {}, {} receivers", s.number, s.node, s.receivers)).collect()
    }

    /// How many messages were acknowledged.
    pub(super) fn len(&self, channel: &str) -> usize {
        self.sent(channel).len()
    }

    /// Everything that a node took for a subscriber came, once and in that node's order, with or
    /// without signals. Returns how many messages had no subscriber.
    pub(super) fn all_came(&self, channel: &str, log: &ReceivedEvents) -> usize {
        let heard = self.heard(channel);
        let came = log.numbers(channel);
        let nodes: BTreeSet<usize> = heard.values().map(|s| s.node).collect();
        for node in nodes {
            let at_node = |n: &u64| heard.get(n).is_some_and(|s| s.node == node);
            let came: Vec<u64> = came.iter().copied().filter(at_node).collect();
            let wanted: Vec<u64> = heard.keys().copied().filter(at_node).collect();
            let sorted = came.is_sorted();
            assert!(
                came == wanted,
                "{channel}: {:?} missing, in order: {sorted}",
                self.missing(channel, log)
            );
        }
        self.len(channel) - heard.len()
    }

    /// Nothing is missing where no gap is told: between a channel's confirmation and its next gap,
    /// everything that its node has taken comes, in order. Returns how many the gaps miss.
    ///
    /// Nodes hand messages to each other as well, in their own time. So a message that another node
    /// took may come late, and after a change of nodes a second time.
    pub(super) fn no_silent_gap(&self, channel: &str, log: &ReceivedEvents) -> usize {
        let heard = self.heard(channel);
        let came: BTreeSet<u64> = log.numbers(channel).into_iter().collect();
        let mut before: BTreeSet<u64> = BTreeSet::new();
        let pieces = log.pieces(channel);
        let count = pieces.len();
        for (n, piece) in pieces.into_iter().enumerate() {
            let news: Vec<PublishedMessage> = piece
                .numbers
                .iter()
                .filter(|n| !before.contains(*n))
                .filter_map(|n| heard.get(n))
                .copied()
                .collect();
            before.extend(&piece.numbers);
            if !piece.live {
                assert!(n + 1 < count, "{channel} is still in its gap");
                continue;
            }
            let Some(home) = most_common(&news) else { continue };
            let direct: Vec<u64> = news.iter().filter(|s| s.node == home).map(|s| s.number).collect();
            let wrong = direct.windows(2).find(|pair| pair[0] >= pair[1]);
            assert!(wrong.is_none(), "{channel}: out of order, or twice: {wrong:?}");
            let first = direct[0];
            let last = direct[direct.len() - 1];
            let owed = |s: &PublishedMessage| {
                let early = s.number < first && piece.since.is_some_and(|at| s.begun > at);
                let late = s.number > last && n + 1 == count;
                s.node == home && (early || late || (first..=last).contains(&s.number))
            };
            let silent: Vec<&PublishedMessage> =
                heard.values().filter(|s| owed(s) && !came.contains(&s.number)).collect();
            assert!(silent.is_empty(), "{channel}: silently missing: {silent:?}");
        }
        heard.keys().filter(|n| !came.contains(n)).count()
    }
}

/// The node that took most of these messages.
fn most_common(sent: &[PublishedMessage]) -> Option<usize> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    sent.iter().for_each(|s| *counts.entry(s.node).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(node, _)| node)
}
