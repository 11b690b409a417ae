//! The gateway's process: serves, and publishes as many messages as each line of its input names.
//! [`Server`] is the handle of the measuring process.

use anyhow::{Context, Result, bail};
use firth_edge::auth::{Keys, Origins};
use firth_edge::{Config, Edge, Hub, Limits};
use firth_router::Tenant;
use firth_router::event::{Document, Event, Operation};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;

/// A running gateway.
pub(crate) struct Server {
    child: Child,
    input: ChildStdin,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(subject: &str) -> Result<Self> {
        let own = std::env::current_exe().context("path of this program")?;
        let mut child = Command::new(own)
            .args(["edge-server", subject])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the gateway's process")?;
        let input = child.stdin.take().context("its input")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        let port = line.trim().parse().context("its port")?;
        Ok(Self { child, input, port })
    }

    pub(crate) fn publish(&mut self, messages: usize) -> Result<()> {
        writeln!(self.input, "{messages}").context("tell the gateway to publish")
    }

    /// Resident bytes.
    pub(crate) fn memory(&self) -> Result<usize> {
        let pages: usize = self.proc("statm")?.split(' ').nth(1).context("statm")?.parse()?;
        Ok(pages * 4096)
    }

    /// Seconds of CPU so far.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let stat = self.proc("stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next().context("stat")?.split_ascii_whitespace().collect();
        let user: f64 = fields[11].parse()?;
        let system: f64 = fields[12].parse()?;
        Ok((user + system) / 100.0)
    }

    fn proc(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.child.id());
        std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The gateway's side: runs until its input ends.
pub(crate) fn serve(mut args: impl Iterator<Item = String>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        match args.next().as_deref() {
            Some("firth") => firth(listener).await,
            Some("raw") => raw(listener).await,
            other => bail!("no subject {other:?}"),
        }
    })
}

/// Lines of the input, each a number of messages.
fn orders() -> mpsc::UnboundedReceiver<usize> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let Ok(messages) = line.trim().parse() else { return };
            if sender.send(messages).is_err() {
                return;
            }
        }
    });
    orders
}

async fn firth(listener: TcpListener) -> Result<()> {
    let many = 100_000;
    let limits = Limits { connections: many, per_tenant: many, per_address: many, ..Limits::default() };
    let hub = Hub::start(Config { limits, ..Config::default() })?;
    let tenant = Tenant::new("bench")?;
    let edge = Edge::new(hub.clone(), Keys::open(tenant.clone()), Origins::same_host());
    tokio::spawn(edge.serve(listener, std::future::pending(), Duration::ZERO));
    let mut orders = orders();
    let mut number = 0_u64;
    while let Some(messages) = orders.recv().await {
        // As a feed does with what one read of its topic brings.
        let mut burst = hub.burst();
        for _ in 0..messages {
            number += 1;
            burst.publish(event(&tenant, number)?)?;
        }
    }
    Ok(())
}

fn event(tenant: &Tenant, number: u64) -> Result<Event> {
    let document =
        Document::from_json(format!(r#"{{"state":"paid","total":{number},"customer":"c-{number}"}}"#))?;
    Ok(Event::new(Operation::Update, tenant.clone(), "orders", format!("o-{number}")).with_after(document))
}

/// The limit: as many sockets, the same bytes, one write for each socket and order.
async fn raw(listener: TcpListener) -> Result<()> {
    let (sender, mut sockets) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                let _ = socket.set_nodelay(true);
                let (mut read, mut write) = socket.into_split();
                let mut buffer = [0; 1024];
                let _request = read.read(&mut buffer).await?;
                write.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await?;
                write.write_all(&[0x81, 1, b'0', 0x81, 1, b'0']).await?;
                // Dropping this half would close nothing, but end the reading of what the client
                // says.
                std::mem::forget(read);
                let _ = sender.send(write);
                std::io::Result::Ok(())
            });
        }
    });
    let mut all: Vec<OwnedWriteHalf> = Vec::new();
    let mut orders = orders();
    let tenant = Tenant::new("bench")?;
    let mut number = 0;
    while let Some(messages) = orders.recv().await {
        while let Ok(socket) = sockets.try_recv() {
            all.push(socket);
        }
        let mut bytes = Vec::new();
        for _ in 0..messages {
            number += 1;
            frame(&tenant, number, &mut bytes)?;
        }
        let bytes = bytes::Bytes::from(bytes);
        let half = all.split_off(all.len() / 2);
        let (one, two) =
            tokio::join!(tokio::spawn(write_all(all, bytes.clone())), tokio::spawn(write_all(half, bytes)));
        all = one??;
        all.extend(two??);
    }
    Ok(())
}

async fn write_all(mut sockets: Vec<OwnedWriteHalf>, bytes: bytes::Bytes) -> Result<Vec<OwnedWriteHalf>> {
    for socket in &mut sockets {
        socket.write_all(&bytes).await?;
    }
    Ok(sockets)
}

/// What the gateway sends for an event.
fn frame(tenant: &Tenant, number: u64, out: &mut Vec<u8>) -> Result<()> {
    let event = String::from_utf8(event(tenant, number)?.to_json())?;
    let text =
        format!(r#"{{"type":"event","at":"00000000000000ff:{number}","subs":["all"],"event":{event}}}"#);
    out.extend_from_slice(&[0x81, 126]);
    out.extend_from_slice(&u16::try_from(text.len())?.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}
