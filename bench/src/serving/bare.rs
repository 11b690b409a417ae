//! The limit: a server that reads requests and answers what a produce is answered, without parsing
//! or storing anything.

use super::wire::Connection;
use anyhow::Result;
use tokio::net::TcpListener;

/// Serves until it is killed.
pub(crate) fn serve() -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("raw listens on http://{}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(answer(Connection::over(stream)));
        }
    })
}

async fn answer(mut connection: Connection) -> Result<()> {
    let one = r#"{"partition":0,"id":"1700000000000-1000000"}"#;
    let reply = |count: usize| {
        let body = format!("{{\"receipts\":[{}]}}", vec![one; count].join(","));
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let single = reply(1);
    let batch = reply(100);
    while let Some(body) = connection.message().await? {
        let reply = if body.starts_with(b"[") { &batch } else { &single };
        connection.write(reply.as_bytes()).await?;
    }
    Ok(())
}
