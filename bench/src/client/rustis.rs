//! Subject `rustis`: one multiplexed client, cloned for every task, with the crate's own commands.

use super::subject::{Subject, check};
use super::workload::{APPENDED, BATCH, CONSUMER, FIELD, GROUP, Key, READ};
use anyhow::Result;
use bytes::Bytes;
use rustis::client::{BatchPreparedCommand, Client};
use rustis::commands::{StreamCommands, StringCommands, XAddOptions, XReadGroupOptions};
use rustis::resp::{BulkString, RefBulkString};

#[derive(Clone)]
pub(crate) struct Rustis(Client);

/// Streams, each with its records: id, then fields and values in turn.
type Read = Option<Vec<(String, Vec<(String, Vec<BulkString>)>)>>;

impl Subject for Rustis {
    async fn connect(port: u16) -> Result<Self> {
        Ok(Self(Client::connect(format!("redis://127.0.0.1:{port}")).await?))
    }

    async fn get(&mut self, key: &Key) -> Result<usize> {
        let value: BulkString = self.0.get(&key.text).await?;
        Ok(value.len())
    }

    async fn set(&mut self, key: &Key, value: &Bytes) -> Result<()> {
        Ok(self.0.set(&key.text, RefBulkString::new(value)).await?)
    }

    async fn get_all(&mut self, keys: &[Key]) -> Result<usize> {
        let mut pipeline = self.0.create_pipeline();
        pipeline.reserve(keys.len());
        for key in keys {
            pipeline.get::<()>(&key.text).queue();
        }
        let values: Vec<BulkString> = pipeline.execute().await?;
        check("values of a pipeline", values.len(), keys.len())?;
        Ok(values.iter().map(|value| value.len()).sum())
    }

    async fn append(&mut self, value: &Bytes) -> Result<()> {
        let record = (FIELD, RefBulkString::new(value));
        let _id: String = self.0.xadd(APPENDED, "*", record, XAddOptions::default()).await?;
        Ok(())
    }

    async fn read_and_ack(&mut self) -> Result<usize> {
        let options = XReadGroupOptions::default().count(u32::try_from(BATCH)?);
        let streams: Read = self.0.xreadgroup(GROUP, CONSUMER, options, READ, ">").await?;
        let Some((_, records)) = streams.and_then(|mut streams| streams.pop()) else { return Ok(0) };
        let ids: Vec<&str> = records.iter().map(|(id, _)| id.as_str()).collect();
        let acked = self.0.xack(READ, GROUP, ids).await?;
        check("acknowledged records", acked, records.len())?;
        Ok(acked)
    }
}
