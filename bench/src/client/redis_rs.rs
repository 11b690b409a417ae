//! Subjects `redis` (the newest stable release) and `redis-rc` (the next major, a release
//! candidate): one `MultiplexedConnection`, cloned for every task, as the crate's guide advises.
//!
//! Both versions share this text by a macro, because their types are unrelated to the compiler.
//! TCP_NODELAY is on (the stable one leaves it off by default, which would only hurt it), and the
//! response timeout is kept, longer than the default so that a busy machine does not trip it.

macro_rules! redis_subject {
    ($module:ident, $crate_name:ident, $sized_pipeline:expr) => {
        pub(crate) mod $module {
            use crate::client::subject::{Subject, check};
            use crate::client::workload::{APPENDED, BATCH, CONSUMER, FIELD, GROUP, Key, READ};
            use anyhow::Result;
            use bytes::Bytes;
            use std::time::Duration;
            use $crate_name::aio::MultiplexedConnection;
            use $crate_name::io::tcp::TcpSettings;
            use $crate_name::{AsyncConnectionConfig, Client, IntoConnectionInfo, Pipeline, cmd};

            #[derive(Clone)]
            pub(crate) struct Redis(MultiplexedConnection);

            /// Streams, each with its records: id, then fields and values in turn.
            type Read = Option<Vec<(String, Vec<(String, Vec<Vec<u8>>)>)>>;

            impl Subject for Redis {
                async fn connect(port: u16) -> Result<Self> {
                    let tcp = TcpSettings::default().set_nodelay(true);
                    let info = ("127.0.0.1", port).into_connection_info()?.set_tcp_settings(tcp);
                    let config =
                        AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
                    let client = Client::open(info)?;
                    Ok(Self(client.get_multiplexed_async_connection_with_config(&config).await?))
                }

                async fn get(&mut self, key: &Key) -> Result<usize> {
                    let value: Vec<u8> = cmd("GET").arg(&key.text).query_async(&mut self.0).await?;
                    Ok(value.len())
                }

                async fn set(&mut self, key: &Key, value: &Bytes) -> Result<()> {
                    Ok(cmd("SET").arg(&key.text).arg(&value[..]).exec_async(&mut self.0).await?)
                }

                async fn get_all(&mut self, keys: &[Key]) -> Result<usize> {
                    let sized: fn(usize) -> Pipeline = $sized_pipeline;
                    let mut pipeline = sized(keys.len());
                    for key in keys {
                        pipeline.cmd("GET").arg(&key.text);
                    }
                    let values: Vec<Vec<u8>> = pipeline.query_async(&mut self.0).await?;
                    check("values of a pipeline", values.len(), keys.len())?;
                    Ok(values.iter().map(Vec::len).sum())
                }

                async fn append(&mut self, value: &Bytes) -> Result<()> {
                    let mut xadd = cmd("XADD");
                    xadd.arg(APPENDED).arg("*").arg(FIELD).arg(&value[..]);
                    let _id: String = xadd.query_async(&mut self.0).await?;
                    Ok(())
                }

                async fn read_and_ack(&mut self) -> Result<usize> {
                    let connection = &mut self.0;
                    let mut read = cmd("XREADGROUP");
                    read.arg("GROUP").arg(GROUP).arg(CONSUMER).arg("COUNT").arg(BATCH);
                    let streams: Read =
                        read.arg("STREAMS").arg(READ).arg(">").query_async(&mut *connection).await?;
                    let Some((_, records)) = streams.and_then(|mut streams| streams.pop()) else {
                        return Ok(0);
                    };
                    let mut ack = cmd("XACK");
                    ack.arg(READ).arg(GROUP);
                    for (id, _) in &records {
                        ack.arg(id);
                    }
                    let acked: usize = ack.query_async(connection).await?;
                    check("acknowledged records", acked, records.len())?;
                    Ok(acked)
                }
            }
        }
    };
}

redis_subject!(stable, redis, redis::Pipeline::with_capacity);
redis_subject!(next, redis_rc, |commands| {
    let mut pipeline = redis_rc::Pipeline::new();
    pipeline.reserve_for_commands(commands).reserve_for_args(2 * commands).reserve_for_data(24 * commands);
    pipeline
});
