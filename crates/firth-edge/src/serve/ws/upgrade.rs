//! The opening of a WebSocket (RFC 6455, section 4.2), over HTTP/1.1.

use super::super::address;
use super::run;
use crate::edge::{Edge, bearer};
use crate::protocol::EdgeError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::upgrade::OnUpgrade;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

pub(in crate::serve) async fn upgrade(
    State(edge): State<Edge>,
    mut request: Request,
) -> Result<Response, EdgeError> {
    let accept = accept(request.method(), request.headers())?;
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let upgrade = upgrade.ok_or_else(|| EdgeError::invalid("connection", "this connection cannot change"))?;
    let permit = edge.enter(address(request.extensions()))?;
    let token = bearer(request.headers()).map(str::to_owned);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => run(edge, upgraded, token, permit).await,
            Err(error) => tracing::debug!(%error, "no WebSocket"),
        }
    });
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// What proves to the client that its opening was understood.
fn accept(method: &Method, headers: &HeaderMap) -> Result<HeaderValue, EdgeError> {
    let wrong = |field: &'static str, wanted: &str| {
        EdgeError::invalid(
            field,
            format!("a WebSocket is opened with GET and the header `{field}: {wanted}`"),
        )
    };
    if method != Method::GET || !lists(headers, header::CONNECTION, "upgrade") {
        return Err(wrong("connection", "upgrade"));
    }
    if !lists(headers, header::UPGRADE, "websocket") {
        return Err(wrong("upgrade", "websocket"));
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(wrong("sec-websocket-version", "13"));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| key.len() == 24);
    let key = key.ok_or_else(|| wrong("sec-websocket-key", "16 random bytes in base64"))?;
    HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|_| wrong("sec-websocket-key", "16 random bytes in base64"))
}

/// Whether a header that is a list has this word in it.
fn lists(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let texts = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        list.iter().map(pair).collect()
    }

    /// The example of RFC 6455, section 1.3.
    #[test]
    fn an_opening_is_accepted_as_the_standard_says_and_nothing_else_is() {
        let accepted = accept(&Method::GET, &headers(&RIGHT)).unwrap();
        assert_eq!(accepted, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        for (left_out, (name, _)) in RIGHT.iter().enumerate() {
            let mut list = RIGHT.to_vec();
            list.remove(left_out);
            let refused = accept(&Method::GET, &headers(&list)).unwrap_err();
            assert_eq!(refused.field.as_deref(), Some(*name));
            list.push((name, "8"));
            assert!(accept(&Method::GET, &headers(&list)).is_err());
        }
        assert!(accept(&Method::POST, &headers(&RIGHT)).is_err());
    }
}
