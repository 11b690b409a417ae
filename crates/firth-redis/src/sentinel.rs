//! Finding the master that sentinels watch. Asked anew for every connection, so that a client follows a failover: the
//! sentinels close the connections of a demoted master, and the next connection goes to the new one.

use std::time::Duration;

use crate::{
    command::cmd,
    config::{Address, Config, Sentinels, Server},
    connection::{Connection, Endpoint, Greeting, Replies, Request},
    error::{Chain, ConnectError},
    resp::FromValue,
};

/// One sentinel must answer within this time, or the next is asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// The master's address according to the first sentinel that knows it.
pub(crate) async fn locate(config: &Config, sentinels: &Sentinels) -> Result<Endpoint, ConnectError> {
    let mut order: Vec<&Address> = sentinels.addresses.iter().collect();
    fastrand::shuffle(&mut order);
    let mut problems = Vec::new();
    for address in order {
        match ask(config, sentinels, address).await {
            Ok(master) => return Ok(Endpoint::Tcp(master)),
            Err(problem) => problems.push(format!("{address}: {problem}")),
        }
    }
    Err(ConnectError::NoMaster { name: sentinels.master.clone(), problem: problems.join("; ") })
}

/// A sentinel may lag behind: what it calls the master must call itself so.
pub(crate) fn check_role(config: &Config, greeting: &Greeting) -> Result<(), ConnectError> {
    match &config.server {
        Server::Sentinel(sentinels) if greeting.role != "master" && greeting.protocol == 3 => {
            let problem = format!("the server that the sentinels name is a {}", greeting.role);
            Err(ConnectError::NoMaster { name: sentinels.master.clone(), problem })
        }
        _ => Ok(()),
    }
}

async fn ask(config: &Config, sentinels: &Sentinels, address: &Address) -> Result<Address, String> {
    let mut config = config.at(Server::Tcp(address.clone()));
    config.username = sentinels.username.clone();
    config.password = sentinels.password.clone();
    config.database = 0;
    config.setup = std::sync::Arc::from([]);
    config.reconnect = None;
    config.trace = None;
    let limit = config.timeouts.connect.unwrap_or(PATIENCE).min(PATIENCE);
    (config.timeouts.resolve, config.timeouts.connect, config.timeouts.handshake) =
        (Some(limit), Some(limit), Some(limit));
    let connection = Connection::spawn(config, "sentinel");
    let question = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(sentinels.master.as_str());
    let answer = connection.send(Request::One(question), Some(limit)).await;
    connection.abort().await;
    match answer.map_err(|e| Chain(&e).to_string())? {
        Replies::One(frame) => match Option::<(String, u16)>::from_frame(frame) {
            Ok(Some((host, port))) => Ok(Address::new(host, port)),
            Ok(None) => Err("does not know this master".into()),
            Err(e) => Err(e.to_string()),
        },
        Replies::Many(_) => Err("gave more than one answer".into()),
    }
}
