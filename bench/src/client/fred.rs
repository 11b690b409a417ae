//! Subject `fred`: one client, cloned for every task; it pipelines across tasks by default.
//!
//! Keys and values are given as `Bytes`, which fred takes without a copy, and replies are read as
//! `Bytes`; TCP_NODELAY is on.

use super::subject::{Subject, check};
use super::workload::{APPENDED, BATCH, CONSUMER, FIELD, GROUP, Key, READ};
use anyhow::Result;
use bytes::Bytes;
use fred::bytes_utils::Str;
use fred::prelude::*;
use fred::types::Key as FredKey;
use fred::types::config::TcpConfig;

#[derive(Clone)]
pub(crate) struct Fred(Client);

/// Streams, each with its records: id, then fields and values in turn.
type Read = Option<Vec<(Bytes, Vec<(Str, Vec<Bytes>)>)>>;

impl Subject for Fred {
    async fn connect(port: u16) -> Result<Self> {
        let config = Config::from_url(&format!("redis://127.0.0.1:{port}"))?;
        let client = Builder::from_config(config)
            .with_connection_config(|connection| {
                connection.tcp = TcpConfig { nodelay: Some(true), ..TcpConfig::default() };
            })
            .build()?;
        client.init().await?;
        Ok(Self(client))
    }

    async fn get(&mut self, key: &Key) -> Result<usize> {
        let value: Bytes = self.0.get(key.bytes.clone()).await?;
        Ok(value.len())
    }

    async fn set(&mut self, key: &Key, value: &Bytes) -> Result<()> {
        Ok(self.0.set(key.bytes.clone(), value.clone(), None, None, false).await?)
    }

    async fn get_all(&mut self, keys: &[Key]) -> Result<usize> {
        let pipeline = self.0.pipeline();
        for key in keys {
            let _queued: () = pipeline.get(key.bytes.clone()).await?;
        }
        let values: Vec<Bytes> = pipeline.all().await?;
        check("values of a pipeline", values.len(), keys.len())?;
        Ok(values.iter().map(Bytes::len).sum())
    }

    async fn append(&mut self, value: &Bytes) -> Result<()> {
        let stream = FredKey::from_static_str(APPENDED);
        let record = vec![(FredKey::from_static_str(FIELD), Value::Bytes(value.clone()))];
        let _id: Str = self.0.xadd(stream, false, None, "*", record).await?;
        Ok(())
    }

    async fn read_and_ack(&mut self) -> Result<usize> {
        let count = Some(BATCH as u64);
        let streams: Read = self.0.xreadgroup(GROUP, CONSUMER, count, None, false, READ, ">").await?;
        let Some((_, records)) = streams.and_then(|mut streams| streams.pop()) else { return Ok(0) };
        let read = records.len();
        let ids: Vec<Str> = records.into_iter().map(|(id, _)| id).collect();
        let acked: usize = self.0.xack(FredKey::from_static_str(READ), GROUP, ids).await?;
        check("acknowledged records", acked, read)?;
        Ok(acked)
    }
}
