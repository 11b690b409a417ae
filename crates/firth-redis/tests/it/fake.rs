//! A server made of a script, for what real servers never say.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const GREETING: &[u8] =
    b"%5\r\n$6\r\nserver\r\n$4\r\nfake\r\n$7\r\nversion\r\n$5\r\n9.9.9\r\n$2\r\nid\r\n:7\r\n\
$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";

/// A listener that follows a script; ends with its value.
pub struct Fake {
    addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Fake {
    /// Greets every client as a RESP3 server, then lets `script` go on. The script gets the number
    /// of the connection, 0 being the first.
    pub async fn answering_hello<F, R>(script: F) -> Self
    where
        F: Fn(usize, Peer) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let script = Arc::new(script);
        Self::bare(move |number, mut peer| {
            let script = script.clone();
            async move {
                if peer.greet().await.is_some() {
                    script(number, peer).await;
                }
            }
        })
        .await
    }

    /// Lets `script` do everything, the greeting included.
    pub async fn bare<F, R>(script: F) -> Self
    where
        F: Fn(usize, Peer) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let task = tokio::spawn(async move {
            let mut peers = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let number = count.fetch_add(1, Ordering::SeqCst);
                peers.spawn(script(number, Peer(BufReader::new(stream))));
            }
        });
        Self { addr, accepted, task }
    }

    /// Answers each command, on the first connection with `bytes`, on later ones with `+OK`.
    pub async fn once_saying(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes: Arc<[u8]> = bytes.into().into();
        Self::answering_hello(move |number, mut peer| {
            let bytes = bytes.clone();
            async move {
                while peer.command().await.is_some() {
                    peer.say(if number == 0 { &bytes } else { b"+OK\r\n" }).await;
                }
            }
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The server's side of one connection.
pub struct Peer(BufReader<TcpStream>);

impl Peer {
    /// Answers HELLO and the two words about the library.
    pub async fn greet(&mut self) -> Option<()> {
        let hello = self.command().await?;
        assert_eq!(hello[..2], ["HELLO", "3"]);
        self.say(GREETING).await;
        for _ in 0..2 {
            assert_eq!(self.command().await?[0], "CLIENT");
            self.say(b"+OK\r\n").await;
        }
        Some(())
    }

    /// The next command, or `None` when the client is gone.
    pub async fn command(&mut self) -> Option<Vec<String>> {
        let count = self.length(b'*').await?;
        let mut words = Vec::new();
        for _ in 0..count {
            let mut word = vec![0; self.length(b'$').await? + 2];
            self.0.read_exact(&mut word).await.ok()?;
            word.truncate(word.len() - 2);
            words.push(String::from_utf8(word).expect("tests send text"));
        }
        Some(words)
    }

    async fn length(&mut self, kind: u8) -> Option<usize> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        assert_eq!(line.as_bytes()[0], kind, "a client sends arrays of bulk strings");
        Some(line[1..].trim_end().parse().expect("a length"))
    }

    /// Sends bytes; a client that is gone does not mind.
    pub async fn say(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
    }

    /// Sends a bulk string.
    pub async fn say_text(&mut self, text: &str) {
        self.say(format!("${}\r\n{text}\r\n", text.len()).as_bytes()).await;
    }

    /// Reads this many bytes in pieces, with a rest after each.
    pub async fn take_slowly(&mut self, total: usize, piece: usize, rest: std::time::Duration) {
        let mut taken = 0;
        let mut bytes = vec![0; piece];
        while taken < total {
            taken += self.0.read_exact(&mut bytes[..piece.min(total - taken)]).await.unwrap_or(total);
            tokio::time::sleep(rest).await;
        }
    }

    /// Reads everything and answers nothing more.
    pub async fn fall_silent(mut self) {
        let _ = tokio::io::copy(&mut self.0, &mut tokio::io::sink()).await;
    }
}
