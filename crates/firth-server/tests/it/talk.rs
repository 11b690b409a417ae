//! HTTP by hand: calls that may fail, with any headers, and streams read as they come.

use crate::world::{PATIENCE, Reply, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// A call with these header lines; nothing if the connection broke.
pub(crate) fn try_call(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> Option<Reply> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {at}\r\nContent-Length: {}\r\nConnection: close\r\n",
        body.len()
    );
    for header in headers {
        request.push_str(header);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    // A server that refuses a request early may close before all of it is sent.
    let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    // An answer that was cut off is none.
    let length = head
        .to_ascii_lowercase()
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next()?.parse().ok());
    length.is_none_or(|length: usize| body.len() == length).then(|| Reply::parse(&answer))
}

pub(crate) fn call(at: SocketAddr, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Reply {
    try_call(at, method, path, headers, body).expect("an answer")
}

/// Sends raw bytes, ends its side, and reads what comes.
pub(crate) fn raw(at: SocketAddr, bytes: &[u8], end: bool) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    if end {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// A stream of entries.
pub(crate) struct Entries {
    lines: BufReader<TcpStream>,
    pub(crate) head: String,
}

impl Entries {
    pub(crate) fn open(at: SocketAddr, path: &str, accept: &str) -> Self {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(
                format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n")
                    .as_bytes(),
            )
            .unwrap();
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).unwrap() > 0, "no head: {head}");
        }
        Self { lines, head: head.to_ascii_lowercase() }
    }

    /// The next entry with its name (empty for plain lines); nothing at the end. Chunk sizes and
    /// signs of life are passed over.
    pub(crate) fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            if let Some(event) = line.strip_prefix("event: ") {
                event.clone_into(&mut name);
            } else if let Some(data) =
                line.strip_prefix("data: ").or_else(|| line.starts_with('{').then_some(line))
            {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }

    /// The next entry of this name.
    pub(crate) fn find(&mut self, wanted: &str) -> Value {
        loop {
            let (name, value) = self.next().unwrap_or_else(|| panic!("the stream ended before {wanted}"));
            if name == wanted {
                return value;
            }
        }
    }
}
