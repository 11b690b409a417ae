//! The client for browsers, its types, and a page that shows it. Browsers keep them, and ask
//! whether they changed.

use crate::edge::Edge;
use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
/// Path, type, content.
const FILES: [(&str, &str, &str); 4] = [
    ("/v1/firth.js", JAVASCRIPT, include_str!("../../js/firth.js")),
    ("/v1/firth.d.ts", "text/plain; charset=utf-8", include_str!("../../js/firth.d.ts")),
    ("/v1/example.js", JAVASCRIPT, include_str!("../../js/example.js")),
    ("/v1/example", "text/html; charset=utf-8", include_str!("../../js/example.html")),
];
/// The page runs its own scripts only and talks to its own host only.
const PAGE_MAY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

pub(super) fn routes() -> Router<Edge> {
    FILES.into_iter().fold(Router::new(), |routes, (path, kind, content)| {
        let digest = Sha256::digest(content.as_bytes());
        let tag: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let tag = format!("\"{tag}\"");
        routes.route(path, get(async move |headers: HeaderMap| answer(&headers, kind, content, &tag)))
    })
}

fn answer(asked: &HeaderMap, kind: &'static str, content: &'static str, tag: &str) -> Response {
    let known = asked.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    let is_known = known
        .flat_map(|list| list.split(','))
        .any(|known| matches!(known.trim(), "*") || known.trim().trim_start_matches("W/") == tag);
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => content.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_MAY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}
