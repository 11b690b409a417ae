//! `setup`: makes the topic and its groups, so that each group sees everything sent from then on.
//! Says nothing when it is done.

use firth::{Broker, Error, ErrorKind, Result, StartAt};

pub(crate) async fn run(broker: Broker, topic: &str, partitions: u32, groups: &[String]) -> Result<()> {
    let info = broker.create_topic(topic).partitions(partitions).if_missing().await?;
    let found = info.config.partitions;
    if found != partitions {
        let context = format!(
            "topic {topic} exists with {found} partitions, not {partitions}: delete it or take another name"
        );
        return Err(Error::new(ErrorKind::AlreadyExists, context));
    }
    for group in groups {
        broker.admin().create_group(topic, group, StartAt::Oldest).await?;
    }
    broker.close().await
}
