//! Subject `firth`: one `Client`, cloned for every task, with its default configuration.

use super::subject::{Subject, check};
use super::workload::{APPENDED, BATCH, CONSUMER, FIELD, GROUP, Key, READ};
use anyhow::Result;
use bytes::Bytes;
use firth_redis::resp::StreamEntry;
use firth_redis::{Client, Unpack, cmd, pipe};

#[derive(Clone)]
pub(crate) struct Firth(Client);

impl Subject for Firth {
    async fn connect(port: u16) -> Result<Self> {
        Ok(Self(Client::connect(format!("redis://127.0.0.1:{port}")).await?))
    }

    async fn get(&mut self, key: &Key) -> Result<usize> {
        let value: Bytes = self.0.call(cmd("GET").key(&key.text)).await?;
        Ok(value.len())
    }

    async fn set(&mut self, key: &Key, value: &Bytes) -> Result<()> {
        Ok(self.0.call(cmd("SET").key(&key.text).arg(value)).await?)
    }

    async fn get_all(&mut self, keys: &[Key]) -> Result<usize> {
        let mut gets = pipe();
        for key in keys {
            gets.push(&cmd("GET").key(&key.text));
        }
        let values: Vec<Bytes> = self.0.pipeline::<Vec<Bytes>>(gets).await?.unpack()?;
        check("values of a pipeline", values.len(), keys.len())?;
        Ok(values.iter().map(Bytes::len).sum())
    }

    async fn append(&mut self, value: &Bytes) -> Result<()> {
        let _id: Bytes = self.0.call(cmd("XADD").key(APPENDED).arg("*").field(FIELD, value)).await?;
        Ok(())
    }

    async fn read_and_ack(&mut self) -> Result<usize> {
        let read = cmd("XREADGROUP").arg("GROUP").arg(GROUP).arg(CONSUMER).arg("COUNT").arg(BATCH);
        let read = read.arg("STREAMS").key(READ).arg(">");
        let streams: Option<Vec<(Bytes, Vec<StreamEntry>)>> = self.0.call(read).await?;
        let Some((_, records)) = streams.and_then(|mut streams| streams.pop()) else { return Ok(0) };
        let ack = cmd("XACK").key(READ).arg(GROUP).args(records.iter().map(|record| &record.id));
        let acked: usize = self.0.call(ack).await?;
        check("acknowledged records", acked, records.len())?;
        Ok(acked)
    }
}
