//! The files of the console, as they stand in `console/`.

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// A file inside the program.
pub(super) struct Asset {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) bytes: &'static [u8],
}

macro_rules! asset {
    ($name:literal, $kind:expr) => {
        Asset { name: $name, kind: $kind, bytes: include_bytes!(concat!("../../console/", $name)) }
    };
}

/// The page itself.
pub(super) const INDEX: Asset = asset!("index.html", HTML);

/// Everything that the page loads.
pub(super) const FILES: [Asset; 22] = [
    asset!("api.js", SCRIPT),
    asset!("chart.js", SCRIPT),
    asset!("claims.js", SCRIPT),
    asset!("console.css", STYLE),
    asset!("dead.js", SCRIPT),
    asset!("dialog.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("group.js", SCRIPT),
    asset!("groups.js", SCRIPT),
    asset!("hold.js", SCRIPT),
    asset!("icon.svg", PICTURE),
    asset!("json.js", SCRIPT),
    asset!("main.js", SCRIPT),
    asset!("overview.js", SCRIPT),
    asset!("record.js", SCRIPT),
    asset!("routing.js", SCRIPT),
    asset!("shift.js", SCRIPT),
    asset!("sources.js", SCRIPT),
    asset!("stats.js", SCRIPT),
    asset!("topic.js", SCRIPT),
    asset!("topics.js", SCRIPT),
    asset!("try.js", SCRIPT),
];
