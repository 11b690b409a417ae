//! As much of HTTP/1.1 as a load needs: prepared requests, and messages read by their content
//! length.

use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any answer takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(70);

/// A request, ready to be written.
pub(crate) fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// One keep-alive connection.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// So much of the buffer was a message that its reader is done with.
    read: usize,
}

/// A message where it lies in the buffer.
struct Message {
    start: usize,
    end: usize,
}

impl Connection {
    pub(crate) async fn open(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).await.context("connect")?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        Self { stream, buffer: Vec::with_capacity(64 * 1024), read: 0 }
    }

    /// Sends a request and reads its answer, which must be a success and come in time; gives the
    /// body.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<&[u8]> {
        tokio::time::timeout(PATIENCE, self.exchange(request)).await.context("no answer in time")?
    }

    /// As [`ask`](Self::ask), for as long as it takes.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.write(request).await?;
        let Message { start, end } = self.receive().await?.context("the server closed the connection")?;
        let status = &self.buffer[9..12];
        let body = &self.buffer[start..end];
        let shown = String::from_utf8_lossy;
        ensure!(status.starts_with(b"2"), "status {}: {}", shown(status), shown(body));
        Ok(body)
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// The body of the next message; `None` at the end.
    pub(crate) async fn message(&mut self) -> Result<Option<&[u8]>> {
        let message = self.receive().await?;
        Ok(message.map(|Message { start, end }| &self.buffer[start..end]))
    }

    async fn receive(&mut self) -> Result<Option<Message>> {
        self.buffer.drain(..std::mem::take(&mut self.read));
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let start = end + 4;
                let end = start + content_length(&self.buffer[..end])?;
                if self.buffer.len() >= end {
                    self.read = end;
                    return Ok(Some(Message { start, end }));
                }
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { bail!("the connection broke") };
            }
        }
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn content_length(head: &[u8]) -> Result<usize> {
    let head = std::str::from_utf8(head).context("a head that is no text")?;
    for line in head.lines() {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            return value.trim().parse().context("content length");
        }
    }
    ensure!(!head.to_ascii_lowercase().contains("transfer-encoding"), "an answer without a length");
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_its_length() {
        let text = String::from_utf8(request("POST", "/x", "{}")).unwrap();
        assert!(text.ends_with("\r\n\r\n{}"));
        assert_eq!(content_length(text.as_bytes()).unwrap(), 2);
    }
}
