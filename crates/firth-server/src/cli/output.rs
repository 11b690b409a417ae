//! Tables for people, JSON for programs.

use firth::{Error, ErrorKind, Result};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Writes a line; a reader that went away (`| head`) is an error, so that nothing is acked unread.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| Error::new(ErrorKind::Closed, "nobody reads the output any more").with_source(error))
}

/// Tells the user on stderr. If stderr is closed, the command goes on.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Asks a person at a terminal before something is lost; programs are not asked.
pub(crate) fn ask(is_sure: bool, question: impl FnOnce() -> String) -> Result<()> {
    if is_sure || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(());
    }
    let _ = write!(std::io::stderr().lock(), "{} [y/N] ", question());
    let mut answer = String::new();
    let _ = std::io::stdin().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Error::new(ErrorKind::Invalid, "nothing was changed; --yes does not ask")),
    }
}

/// Writes one JSON value on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::Internal, "cannot be written as JSON").with_source(error))?;
    // Payloads that are JSON pass through as they were written; line ends in them stand between
    // values only.
    line(&text.replace(['\n', '\r'], " "))
}

/// A table with aligned columns.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: Vec<[String; N]>) -> Result<()> {
    let mut widths = head.map(|name| name.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let write = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    write(head)?;
    rows.iter().try_for_each(|row| write(row.each_ref().map(String::as_str)))
}

/// Terminal control characters made visible, so that data cannot steer the reader's terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() && c != '\t' { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}
