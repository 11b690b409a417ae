//! As much of HTTP/1.1 as a load needs: prepared requests, and messages read by their content length.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(70);

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
}

impl Connection {
    pub(crate) async fn open(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).await.context("connect")?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        Self { stream, buffer: Vec::with_capacity(64 * 1024) }
    }

    /// Sends a request and reads its answer, which must be a success; gives the body.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        let asking = async {
            self.stream.write_all(request).await?;
            self.message().await?.context("the server closed the connection")
        };
        let (head, body) = tokio::time::timeout(PATIENCE, asking).await.context("no answer in time")??;
        let status = head.get(9..12).unwrap_or_default();
        ensure!(status.starts_with('2'), "status {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// The next message: its head and its body; `None` at the end.
    pub(crate) async fn message(&mut self) -> Result<Option<(String, Vec<u8>)>> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                let (start, length) = (end + 4, content_length(&head)?);
                if self.buffer.len() >= start + length {
                    let body = self.buffer[start..start + length].to_vec();
                    self.buffer.drain(..start + length);
                    return Ok(Some((head, body)));
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

fn content_length(head: &str) -> Result<usize> {
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
        assert_eq!(content_length(&text).unwrap(), 2);
    }
}
