//! The console: static files inside the program, served at `/` and below `/console/`.
//!
//! The files need no token and hold no data. The page asks the public HTTP API, as any client does.
//! They are kept as they are written, so a change needs no tool but the compiler.

mod files;

use crate::app::App;
use crate::auth::hex;
use crate::problem::{Answer, Problem};
use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use files::{Asset, FILES, INDEX};
use firth::ErrorKind;
use sha2::{Digest, Sha256};

/// What a browser may do with the page: load and ask this server alone, and never in a frame.
const POLICY: &str = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    // A browser asks each time whether its copy is still good.
    (header::CACHE_CONTROL, "no-cache"),
];

/// The routes of the console.
pub(crate) fn routes() -> Router<App> {
    Router::new().route("/", get(index)).route("/console/{*file}", get(file))
}

async fn index(headers: HeaderMap) -> Response {
    serve(&INDEX, &headers)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Answer<Response> {
    match FILES.iter().find(|asset| asset.name == name) {
        Some(asset) => Ok(serve(asset, &headers)),
        None => {
            let detail = format!("the console has no file {name}");
            Err(Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail))
        }
    }
}

fn serve(asset: &Asset, asked: &HeaderMap) -> Response {
    let tag = format!("\"{}\"", hex(&Sha256::digest(asset.bytes)[..8]));
    let has_copy = is_same(asked.get(header::IF_NONE_MATCH), &tag);
    let mut response = match has_copy {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, asset.kind)], asset.bytes).into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Whether `If-None-Match` names this tag.
fn is_same(given: Option<&HeaderValue>, tag: &str) -> bool {
    let given = given.and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(',').map(|one| one.trim().trim_start_matches("W/")).any(|one| one == tag || one == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 200 * 1024;

    #[test]
    fn the_console_has_at_most_200_kib_in_all() {
        let bytes: usize = FILES.iter().chain([&INDEX]).map(|asset| asset.bytes.len()).sum();
        assert!(bytes <= LIMIT, "{bytes}");
    }

    #[test]
    fn every_file_of_the_directory_is_served_and_nothing_is_inline() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let names: std::collections::BTreeSet<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != INDEX.name)
            .collect();
        assert_eq!(names, FILES.iter().map(|asset| asset.name.to_owned()).collect());
        let page = std::str::from_utf8(INDEX.bytes).unwrap();
        for inline in ["<style", "style=", "onclick", "javascript:", "://"] {
            assert!(!page.contains(inline), "{inline}");
        }
        for asset in FILES.iter().filter(|asset| asset.kind.starts_with("text/javascript")) {
            let code = std::str::from_utf8(asset.bytes).unwrap();
            for unsafe_way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!code.contains(unsafe_way), "{} has {unsafe_way}", asset.name);
            }
        }
    }

    #[test]
    fn a_copy_is_good_as_long_as_its_tag_is_the_same() {
        let given = |text: &'static str| Some(HeaderValue::from_static(text));
        for good in ["\"a\"", "W/\"a\"", "\"b\", \"a\"", "*"] {
            assert!(is_same(given(good).as_ref(), "\"a\""), "{good}");
        }
        assert!(!is_same(given("\"b\"").as_ref(), "\"a\"") && !is_same(None, "\"a\""));
    }
}
