//! Subjects `redis` and `redis-rc` as subscribers: a `PubSub` connection and its stream of
//! messages. Both versions share this text by a macro, because their types are unrelated to the
//! compiler.

macro_rules! redis_subject {
    ($module:ident, $crate_name:ident) => {
        pub(crate) mod $module {
            use crate::pubsub::subject::Subject;
            use anyhow::{Context, Result};
            use futures_util::StreamExt;
            use $crate_name::aio::{PubSubSink, PubSubStream};
            use $crate_name::io::tcp::TcpSettings;
            use $crate_name::{Client, IntoConnectionInfo, Msg};

            pub(crate) struct Redis {
                sink: PubSubSink,
                stream: PubSubStream,
            }

            impl Subject for Redis {
                type Message = Msg;

                async fn connect(port: u16) -> Result<Self> {
                    let tcp = TcpSettings::default().set_nodelay(true);
                    let info = ("127.0.0.1", port).into_connection_info()?.set_tcp_settings(tcp);
                    let (sink, stream) = Client::open(info)?.get_async_pubsub().await?.split();
                    Ok(Self { sink, stream })
                }

                async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
                    Ok(self.sink.subscribe(channels).await?)
                }

                async fn next(&mut self) -> Result<Msg> {
                    self.stream.next().await.context("the stream of messages ended")
                }

                fn payload(message: &Msg) -> &[u8] {
                    message.get_payload_bytes()
                }
            }
        }
    };
}

redis_subject!(stable, redis);
redis_subject!(next, redis_rc);
