//! Finds the master that sentinels watch, and follows it.
//!
//! Every new connection asks the sentinels. **Why also listen.** A replaced master may serve for
//! many seconds before it is told so. So one connection of each client listens to a sentinel and
//! tells the others when the master changes.

use crate::command::{Command, cmd};
use crate::config::{Address, Config, Sentinels, Server};
use crate::connection::{Connection, Endpoint, Established, Replies, establish};
use crate::error::{ConnectError, ErrorChain};
use crate::resp::{Frame, FromValue};
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// If no sentinel has answered for this long, the next one is asked too.
const NEXT_AFTER: Duration = Duration::from_secs(1);
/// The limit of a question where requests have none.
const LIMIT: Duration = Duration::from_secs(5);
/// Interval of questions to a sentinel whose notifications may be lost; also the pause before the
/// next sentinel is followed.
const POLL: Duration = Duration::from_secs(1);

/// The generation of a connection that never reconnects.
const FIRST: u64 = 1;

/// Shared by the connections of one client: which sentinel to ask first, and the current master.
#[derive(Debug)]
pub(crate) struct SentinelResolver {
    sentinels: Sentinels,
    /// The sentinel that answered last comes first. Sentinels may differ for a moment, and a client
    /// must not switch back and forth.
    order: Mutex<Vec<Address>>,
    master: watch::Sender<Option<Address>>,
}

impl SentinelResolver {
    pub(crate) fn new(sentinels: &Sentinels) -> Self {
        let mut order = sentinels.addresses.clone();
        fastrand::shuffle(&mut order);
        Self { sentinels: sentinels.clone(), order: Mutex::new(order), master: watch::Sender::new(None) }
    }

    /// Connects to the master. A sentinel's answer counts only if the server that it names calls
    /// itself master. A stale sentinel goes to the end of the list, and its answer is told to no
    /// other connection.
    pub(crate) async fn connect(&self, config: &Config) -> Result<Established, ConnectError> {
        let mut answers = self.ask_all(config, "GET-MASTER-ADDR-BY-NAME");
        let mut problems = Vec::new();
        let mut failures = Vec::new();
        let mut tried = Vec::new();
        while let Some((sentinel, answer)) = answers.next().await {
            let master = match answer.and_then(address) {
                Ok(master) if tried.contains(&master) => continue,
                Ok(master) => master,
                Err(problem) => {
                    problems.push(format!("{sentinel}: {problem}"));
                    continue;
                }
            };
            match self.connect_to_named(config, &master).await {
                Ok(established) => {
                    self.prefer(&sentinel);
                    self.publish(&master);
                    return Ok(established);
                }
                Err(error) => {
                    self.put_last(&sentinel);
                    problems.push(format!("{sentinel} names {master}: {}", ErrorChain(&error)));
                    failures.push(error);
                }
            }
            tried.push(master);
        }
        // An error that the user must fix (a password) is returned as it is; so is the only
        // failure.
        let fatal = failures.iter().position(|error| !error.is_retryable());
        let only =
            (failures.len() == 1 && !matches!(failures[0], ConnectError::NoMaster { .. })).then_some(0);
        match fatal.or(only) {
            Some(at) => Err(failures.swap_remove(at)),
            None => Err(self.no_master(problems.join("; "))),
        }
    }

    /// Connects to the server that a sentinel calls the master. The server must call itself so.
    async fn connect_to_named(&self, config: &Config, master: &Address) -> Result<Established, ConnectError> {
        let mut established = establish(config, Endpoint::Tcp(master.clone())).await?;
        match established.is_master(config.timeouts.handshake).await {
            Some(false) => Err(self.no_master("this server is a replica".to_owned())),
            // A server that does not say is believed to be what the sentinel says.
            Some(true) | None => Ok(established),
        }
    }

    /// The master that the sentinels named last.
    pub(crate) fn master(&self) -> Option<Address> {
        self.master.borrow().clone()
    }

    /// Number of replicas that the first answering sentinel knows, reachable or not.
    pub(crate) async fn replicas(&self, config: &Config) -> Result<usize, ConnectError> {
        let mut answers = self.ask_all(config, "REPLICAS");
        let mut problems = Vec::new();
        while let Some((sentinel, answer)) = answers.next().await {
            match answer {
                Ok(answer) => return Ok(answer.value().len()),
                Err(problem) => problems.push(format!("{sentinel}: {problem}")),
            }
        }
        Err(self.no_master(problems.join("; ")))
    }

    /// Asks the sentinels, one after the other.
    fn ask_all<'a>(&'a self, config: &'a Config, about: &str) -> SentinelReplies<'a> {
        let rest = self.order().clone().into_iter();
        SentinelReplies {
            resolver: self,
            config,
            question: self.question(about),
            rest,
            asked: JoinSet::new(),
        }
    }

    fn no_master(&self, problem: String) -> ConnectError {
        ConnectError::NoMaster { name: self.sentinels.master.clone(), problem }
    }

    /// Waits until the master is another than this one.
    pub(crate) async fn replaced(&self, master: &Endpoint) {
        let other = |now: &Option<Address>| match (now, master) {
            (Some(now), Endpoint::Tcp(then)) => now != then,
            _ => false,
        };
        // The sender lives in `self`.
        let _ = self.master.subscribe().wait_for(other).await;
    }

    /// Keeps the master's address current, from any sentinel that can be reached.
    pub(crate) async fn watch_master(&self, config: &Config) -> Infallible {
        loop {
            let Some(sentinel) = self.order().first().cloned() else { return std::future::pending().await };
            let Err(problem) = self.follow(config, &sentinel).await;
            tracing::debug!(%sentinel, problem, "a sentinel cannot be listened to");
            self.put_last(&sentinel);
            sleep(POLL).await;
        }
    }

    async fn follow(&self, config: &Config, sentinel: &Address) -> Result<Infallible, String> {
        let connection = self.connect_to_sentinel(config, sentinel);
        let mut news = connection.pushes();
        connection.opened(true).await.map_err(|e| ErrorChain(&e).to_string())?;
        if connection.server_info().is_some_and(|g| g.protocol >= 3) {
            let mut subscribe = Vec::new();
            cmd("SUBSCRIBE").arg("+switch-master").encode(&mut subscribe);
            // The confirmation is a push too, so no reply is to be paired. If the connection is
            // lost, the next question fails.
            connection.send_unpaired(FIRST, 1, &subscribe);
        }
        let question = self.question("GET-MASTER-ADDR-BY-NAME");
        loop {
            let named = address(ask(&connection, &question).await?)?;
            if self.master.borrow().as_ref() != Some(&named) {
                // Publish only what was verified.
                self.connect_to_named(config, &named)
                    .await
                    .map_err(|e| format!("it names {named}: {}", ErrorChain(&e)))?;
                self.publish(&named);
            }
            // Ask with or without a notification: only the answer counts.
            let _ = timeout(POLL, news.recv()).await;
        }
    }

    /// A connection to a sentinel.
    fn connect_to_sentinel(&self, config: &Config, sentinel: &Address) -> Connection {
        let mut config = config.at(Server::Tcp(sentinel.clone()));
        config.username = self.sentinels.username.clone();
        config.password = self.sentinels.password.clone();
        config.database = 0;
        config.setup = std::sync::Arc::from([]);
        config.reconnect = None;
        config.trace = None;
        config.sentinel_resolver = None;
        Connection::spawn(config, "sentinel")
    }

    fn question(&self, about: &str) -> Command {
        cmd("SENTINEL").arg(about).arg(self.sentinels.master.as_str())
    }

    fn publish(&self, master: &Address) {
        self.master.send_if_modified(|known| {
            let news = known.as_ref() != Some(master);
            if news {
                tracing::debug!(%master, "the sentinels name a master");
                *known = Some(master.clone());
            }
            news
        });
    }

    fn order(&self) -> MutexGuard<'_, Vec<Address>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prefer(&self, sentinel: &Address) {
        self.order().sort_by_key(|other| other != sentinel);
    }

    fn put_last(&self, sentinel: &Address) {
        self.order().sort_by_key(|other| other == sentinel);
    }
}

/// Answers of the sentinels as they come. The next sentinel is asked when one has failed, or when
/// none has answered for a moment. So a sentinel that hangs costs that moment, and a slow one still
/// has all the configured time.
struct SentinelReplies<'a> {
    resolver: &'a SentinelResolver,
    config: &'a Config,
    question: Command,
    rest: std::vec::IntoIter<Address>,
    asked: JoinSet<(Address, Result<Frame, String>)>,
}

impl SentinelReplies<'_> {
    async fn next(&mut self) -> Option<(Address, Result<Frame, String>)> {
        loop {
            if self.asked.is_empty() && !self.ask_another() {
                return None;
            }
            tokio::select! {
                Some(asked) = self.asked.join_next() => match asked {
                    Ok((sentinel, answer)) => {
                        if answer.is_err() {
                            self.ask_another();
                        }
                        return Some((sentinel, answer));
                    }
                    Err(error) => tracing::error!(%error, "asking a sentinel ended in a panic"),
                },
                () = sleep(NEXT_AFTER), if self.rest.len() > 0 => drop(self.ask_another()),
            }
        }
    }

    /// False if all were asked.
    fn ask_another(&mut self) -> bool {
        let Some(sentinel) = self.rest.next() else { return false };
        let connection = self.resolver.connect_to_sentinel(self.config, &sentinel);
        let question = self.question.clone();
        self.asked.spawn(async move {
            let answer = ask(&connection, &question).await;
            connection.abort().await;
            (sentinel, answer)
        });
        true
    }
}

/// What a sentinel says, if it knows the master.
async fn ask(sentinel: &Connection, question: &Command) -> Result<Frame, String> {
    // On a failed connection, a request would only say that it is closed, and not why.
    sentinel.opened(true).await.map_err(|e| ErrorChain(&e).to_string())?;
    let limit = sentinel.config().timeouts.request.unwrap_or(LIMIT);
    let answer = sentinel.send(question.into(), Some(limit)).await;
    let Replies::One(frame) = answer.map_err(|e| ErrorChain(&e).to_string())? else {
        unreachable!("one command has one reply")
    };
    if let Some(error) = crate::ServerError::from_value(frame.value()) {
        return Err(error.to_string());
    }
    if frame.value().is_null() {
        return Err("does not know this master".into());
    }
    Ok(frame)
}

fn address(answer: Frame) -> Result<Address, String> {
    let (host, port) = <(String, u16)>::from_frame(answer).map_err(|e| e.to_string())?;
    Ok(Address::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver() -> SentinelResolver {
        let addresses = (1..=3).map(|port| Address::new("s", port)).collect();
        SentinelResolver::new(&Sentinels { addresses, master: "m".into(), username: None, password: None })
    }

    #[test]
    fn the_sentinel_that_answered_comes_first_and_the_one_that_did_not_last() {
        let resolver = resolver();
        resolver.prefer(&Address::new("s", 2));
        assert_eq!(resolver.order()[0].port, 2);
        resolver.put_last(&Address::new("s", 2));
        let order = resolver.order();
        assert_eq!((order[2].port, order.len()), (2, 3));
    }

    #[tokio::test]
    async fn a_connection_learns_only_of_another_master() {
        let resolver = resolver();
        let here = Endpoint::Tcp(Address::new("a", 1));
        resolver.publish(&Address::new("a", 1));
        let mut replaced = Box::pin(resolver.replaced(&here));
        assert!(futures_util::poll!(&mut replaced).is_pending());
        resolver.publish(&Address::new("b", 1));
        replaced.await;
    }
}
