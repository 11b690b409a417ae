//! Passwords and ACL users, and the fixture's own way past them.

use firth_testkit::resp::Conn;
use firth_testkit::{Flavor, RedisServer, on_both};
use tokio::net::TcpStream;

on_both!(a_password_is_asked_for, users_have_only_their_rights, even_a_closed_default_user_leaves_control);

async fn a_password_is_asked_for(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).password("p@ss \"w/rd").start().await;
    let mut conn = Conn::over(TcpStream::connect(server.addr()).await.unwrap());
    assert!(conn.call(&["PING"]).await.unwrap().text().starts_with("NOAUTH"));
    assert!(conn.call(&["AUTH", "wrong"]).await.unwrap().text().starts_with("WRONGPASS"));
    assert_eq!(conn.call(&["AUTH", "p@ss \"w/rd"]).await.unwrap().text(), "OK");
    assert_eq!(server.url(), format!("redis://:p%40ss%20%22w%2Frd@127.0.0.1:{}/", server.port()));
}

async fn users_have_only_their_rights(flavor: Flavor) {
    let server =
        RedisServer::builder().flavor(flavor).acl_user("reader", "on >pw ~* -@all +get").start().await;
    let mut conn = Conn::over(TcpStream::connect(server.addr()).await.unwrap());
    assert_eq!(conn.call(&["AUTH", "reader", "pw"]).await.unwrap().text(), "OK");
    assert!(conn.call(&["GET", "k"]).await.unwrap().is_nil());
    assert!(conn.call(&["SET", "k", "v"]).await.unwrap().text().starts_with("NOPERM"));
}

async fn even_a_closed_default_user_leaves_control(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).acl_user("default", "off").start().await;
    assert_eq!(server.command(&["PING"]).await.text(), "PONG");
}
