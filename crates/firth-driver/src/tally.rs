//! `final`: how a group stands, in one line.

use crate::protocol::Event;
use crate::wire::Out;
use firth::{Broker, Record, Result};

/// Dead letters per step.
const PAGE: usize = 500;

pub(crate) async fn take(broker: Broker, topic: &str, group: &str) -> Result<Event> {
    let info = broker.admin().group(topic, group).await?;
    let lag = info.lag();
    let due = info.due();
    let dead = dead(&broker, topic, group).await?;
    broker.close().await?;
    Ok(Event::Final { pending: lag - due, due, lag, dead })
}

pub(crate) async fn tell(tally: Event) -> anyhow::Result<()> {
    let out = Out::new(std::io::stdout());
    out.say(&tally).await?;
    out.end()
}

async fn dead(broker: &Broker, topic: &str, group: &str) -> Result<Vec<String>> {
    let view = broker.dead_letters(topic).group(group);
    let mut ids = Vec::new();
    let mut after = None;
    loop {
        let page = view.list(after.as_ref(), PAGE).await?;
        ids.extend(page.letters.iter().map(|letter| id_of(&letter.record)));
        after = page.next;
        if after.is_none() {
            ids.sort();
            return Ok(ids);
        }
    }
}

/// What the sender calls the record, or its place if another program sent it.
pub(crate) fn id_of(record: &Record) -> String {
    match record.headers().get("id") {
        Some(id) => String::from_utf8_lossy(&id).into_owned(),
        None => format!("{}/{}", record.partition(), record.id()),
    }
}
