//! Subjects `redis` and `redis-rc`: a cluster connection over RESP3 with a push sender, which also
//! makes the requests. Both versions share this text by a macro, because their types are unrelated.
//!
//! The library says nothing of gaps, but hands on the server's `sunsubscribe` of a channel that
//! moves away; that is counted as a signal, since a user could act on it.

macro_rules! redis_subject {
    ($module:ident, $crate_name:ident) => {
        pub(crate) mod $module {
            use crate::pubsub::change::subject::{Follower, Heard, numbers};
            use anyhow::{Context, Result};
            use std::net::SocketAddr;
            use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
            use $crate_name::cluster::ClusterClientBuilder;
            use $crate_name::cluster_async::ClusterConnection;
            use $crate_name::io::tcp::TcpSettings;
            use $crate_name::{ProtocolVersion, PushInfo, PushKind, Value, cmd};

            pub(crate) struct Redis {
                connection: ClusterConnection,
                pushes: UnboundedReceiver<PushInfo>,
            }

            impl Follower for Redis {
                type Reader = ClusterConnection;

                async fn connect(nodes: &[SocketAddr]) -> Result<Self> {
                    let (sender, pushes) = unbounded_channel();
                    let urls = nodes.iter().map(|node| format!("redis://{node}"));
                    let client = ClusterClientBuilder::new(urls)
                        .use_protocol(ProtocolVersion::RESP3)
                        .tcp_settings(TcpSettings::default().set_nodelay(true))
                        .push_sender(sender)
                        .build()?;
                    Ok(Self { connection: client.get_async_connection().await?, pushes })
                }

                async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
                    // One by one: names of several slots cannot go into one command.
                    for channel in channels {
                        self.connection.ssubscribe(channel).await?;
                    }
                    Ok(())
                }

                async fn next(&mut self) -> Result<Heard> {
                    let push = self.pushes.recv().await.context("the pushes ended")?;
                    let text = |at: usize| match push.data.get(at) {
                        Some(Value::BulkString(bytes)) => &bytes[..],
                        _ => &[],
                    };
                    match push.kind {
                        PushKind::SMessage => Heard::message(text(0), text(1)),
                        PushKind::SUnsubscribe => Ok(Heard::Gap(numbers([text(0)]))),
                        PushKind::SSubscribe => Ok(Heard::Resumed(numbers([text(0)]))),
                        _ => Ok(Heard::Else),
                    }
                }

                fn reader(&self) -> ClusterConnection {
                    self.connection.clone()
                }

                async fn get(reader: &mut ClusterConnection, key: &str) -> Result<Option<Vec<u8>>> {
                    match cmd("GET").arg(key).query_async(reader).await? {
                        Value::BulkString(bytes) => Ok(Some(bytes)),
                        _ => Ok(None),
                    }
                }
            }
        }
    };
}

redis_subject!(stable, redis);
redis_subject!(next, redis_rc);
