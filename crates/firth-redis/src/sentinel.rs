//! Finding the master that sentinels watch, and following it. Asked anew for every connection; and because a replaced
//! master may go on serving for many seconds before it is told so, one connection of each client listens to a sentinel
//! and tells the others when the master is another.

use std::{
    convert::Infallible,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    command::{Command, cmd},
    config::{Address, Config, Sentinels, Server},
    connection::{Connection, Endpoint, Established, Replies, establish},
    error::{Chain, ConnectError},
    resp::{Frame, FromValue},
};

/// If no sentinel has answered for this long, the next is asked too.
const PATIENCE: Duration = Duration::from_secs(1);
/// The limit of a question where requests have none.
const LIMIT: Duration = Duration::from_secs(5);
/// How often a sentinel is asked whose news may not reach us; also the pause before another one is listened to.
const POLL: Duration = Duration::from_secs(1);

/// The generation of a connection that never reconnects.
const FIRST: u64 = 1;

/// What the connections of one client know together: which sentinel to ask first, and who is master.
#[derive(Debug)]
pub(crate) struct Guide {
    sentinels: Sentinels,
    /// The sentinel that answered last comes first: sentinels may differ for a moment, a client should not waver.
    order: Mutex<Vec<Address>>,
    master: watch::Sender<Option<Address>>,
}

impl Guide {
    pub(crate) fn new(sentinels: &Sentinels) -> Self {
        let mut order = sentinels.addresses.clone();
        fastrand::shuffle(&mut order);
        Self { sentinels: sentinels.clone(), order: Mutex::new(order), master: watch::Sender::new(None) }
    }

    /// Connects to the master. A sentinel's word counts only once the server that it names calls
    /// itself master: a stale sentinel is asked last from then on, and what it said is told to no
    /// other connection.
    pub(crate) async fn connect(&self, config: &Config) -> Result<Established, ConnectError> {
        let mut answers = self.ask_all(config, "GET-MASTER-ADDR-BY-NAME");
        let (mut problems, mut failures, mut tried) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((sentinel, answer)) = answers.next().await {
            let master = match answer.and_then(address) {
                Ok(master) if tried.contains(&master) => continue,
                Ok(master) => master,
                Err(problem) => {
                    problems.push(format!("{sentinel}: {problem}"));
                    continue;
                }
            };
            match self.reach(config, &master).await {
                Ok(established) => {
                    self.prefer(&sentinel);
                    self.publish(&master);
                    return Ok(established);
                }
                Err(error) => {
                    self.put_last(&sentinel);
                    problems.push(format!("{sentinel} names {master}: {}", Chain(&error)));
                    failures.push(error);
                }
            }
            tried.push(master);
        }
        // What the user must mend (a password) is told as it is; so is the only failure.
        let fatal = failures.iter().position(|error| !error.is_retryable());
        let only =
            (failures.len() == 1 && !matches!(failures[0], ConnectError::NoMaster { .. })).then_some(0);
        match fatal.or(only) {
            Some(at) => Err(failures.swap_remove(at)),
            None => Err(self.no_master(problems.join("; "))),
        }
    }

    /// Connects to what a sentinel calls the master, which must call itself so.
    async fn reach(&self, config: &Config, master: &Address) -> Result<Established, ConnectError> {
        let mut established = establish(config, Endpoint::Tcp(master.clone())).await?;
        match established.is_master(config.timeouts.handshake).await {
            Some(false) => Err(self.no_master("this server is a replica".to_owned())),
            // A server that does not say is believed to be what the sentinel says.
            Some(true) | None => Ok(established),
        }
    }

    /// How many replicas the master has according to the first sentinel that knows it, in reach or
    /// not.
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
    fn ask_all<'a>(&'a self, config: &'a Config, about: &str) -> Answers<'a> {
        let rest = self.order().clone().into_iter();
        Answers { guide: self, config, question: self.question(about), rest, asked: JoinSet::new() }
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

    /// Keeps the master's address fresh, from whichever sentinel can be reached.
    pub(crate) async fn keep_watch(&self, config: &Config) -> Infallible {
        loop {
            let Some(sentinel) = self.order().first().cloned() else { return std::future::pending().await };
            let Err(problem) = self.listen_to(config, &sentinel).await;
            tracing::debug!(%sentinel, problem, "a sentinel cannot be listened to");
            self.put_last(&sentinel);
            sleep(POLL).await;
        }
    }

    async fn listen_to(&self, config: &Config, sentinel: &Address) -> Result<Infallible, String> {
        let connection = self.call_on(config, sentinel);
        let mut news = connection.pushes();
        connection.opened(true).await.map_err(|e| Chain(&e).to_string())?;
        if connection.greeting().is_some_and(|g| g.protocol >= 3) {
            let mut subscribe = Vec::new();
            cmd("SUBSCRIBE").arg("+switch-master").encode(&mut subscribe);
            // The confirmation is a push, too: no reply is to be paired. If the connection is lost, the question shows it.
            connection.send_unpaired(FIRST, 1, &subscribe);
        }
        let question = self.question("GET-MASTER-ADDR-BY-NAME");
        loop {
            let named = address(ask(&connection, &question).await?)?;
            if self.master.borrow().as_ref() != Some(&named) {
                // Others are told only what is true.
                self.reach(config, &named).await.map_err(|e| format!("it names {named}: {}", Chain(&e)))?;
                self.publish(&named);
            }
            // News or not, ask: whatever was said, the answer is what counts.
            let _ = timeout(POLL, news.recv()).await;
        }
    }

    /// A connection to a sentinel.
    fn call_on(&self, config: &Config, sentinel: &Address) -> Connection {
        let mut config = config.at(Server::Tcp(sentinel.clone()));
        config.username = self.sentinels.username.clone();
        config.password = self.sentinels.password.clone();
        config.database = 0;
        config.setup = std::sync::Arc::from([]);
        config.reconnect = None;
        config.trace = None;
        config.guide = None;
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

/// The answers of the sentinels as they come. One more is asked when another has failed, or none
/// has answered for a moment: a sentinel that hangs costs that moment, and one that is far away
/// still has all the configured time.
struct Answers<'a> {
    guide: &'a Guide,
    config: &'a Config,
    question: Command,
    rest: std::vec::IntoIter<Address>,
    asked: JoinSet<(Address, Result<Frame, String>)>,
}

impl Answers<'_> {
    async fn next(&mut self) -> Option<(Address, Result<Frame, String>)> {
        loop {
            if self.asked.is_empty() && !self.ask_another() {
                return None;
            }
            tokio::select! {
                Some(told) = self.asked.join_next() => match told {
                    Ok((sentinel, answer)) => {
                        if answer.is_err() {
                            self.ask_another();
                        }
                        return Some((sentinel, answer));
                    }
                    Err(error) => tracing::error!(%error, "asking a sentinel ended in a panic"),
                },
                () = sleep(PATIENCE), if self.rest.len() > 0 => drop(self.ask_another()),
            }
        }
    }

    /// False if all were asked.
    fn ask_another(&mut self) -> bool {
        let Some(sentinel) = self.rest.next() else { return false };
        let connection = self.guide.call_on(self.config, &sentinel);
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
    // A question to a connection that has failed already would only hear that it is closed, and not why.
    sentinel.opened(true).await.map_err(|e| Chain(&e).to_string())?;
    let limit = sentinel.config().timeouts.request.unwrap_or(LIMIT);
    let answer = sentinel.send(question.into(), Some(limit)).await;
    let Replies::One(frame) = answer.map_err(|e| Chain(&e).to_string())? else {
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

    fn guide() -> Guide {
        let addresses = (1..=3).map(|port| Address::new("s", port)).collect();
        Guide::new(&Sentinels { addresses, master: "m".into(), username: None, password: None })
    }

    #[test]
    fn the_sentinel_that_answered_comes_first_and_the_one_that_did_not_last() {
        let guide = guide();
        guide.prefer(&Address::new("s", 2));
        assert_eq!(guide.order()[0].port, 2);
        guide.put_last(&Address::new("s", 2));
        let order = guide.order();
        assert_eq!((order[2].port, order.len()), (2, 3));
    }

    #[tokio::test]
    async fn a_connection_learns_only_of_another_master() {
        let guide = guide();
        let here = Endpoint::Tcp(Address::new("a", 1));
        guide.publish(&Address::new("a", 1));
        let mut replaced = Box::pin(guide.replaced(&here));
        assert!(futures_util::poll!(&mut replaced).is_pending());
        guide.publish(&Address::new("b", 1));
        replaced.await;
    }
}
