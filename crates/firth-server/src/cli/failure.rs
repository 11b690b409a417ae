//! How failures end: what happened, what to do, and an exit code by kind.

use firth::{Error, ErrorKind};

/// Each kind with its exit code and what a person can do. 2 is what wrong arguments end with, too.
const TABLE: [(ErrorKind, u8, &str); 13] = [
    (ErrorKind::Internal, 1, "look at the server's log; `firth doctor` checks the whole way"),
    (
        ErrorKind::Corrupt,
        1,
        "look at the server's log, and keep a copy of the data before you change anything",
    ),
    (
        ErrorKind::WentBack,
        1,
        "the engine lost its newest records in a crash or a failover: read on from an earlier place",
    ),
    (ErrorKind::Invalid, 2, "change what it names; --help shows an example"),
    (ErrorKind::NotFound, 3, "`firth topic list` and `firth group list TOPIC` show what there is"),
    (ErrorKind::AlreadyExists, 4, "choose another name, or look at what is there with `firth topic show`"),
    (
        ErrorKind::Unauthorized,
        5,
        "set FIRTH_TOKEN to a token of the server, or give the engine's user the rights it names",
    ),
    (
        ErrorKind::Unavailable,
        6,
        "start the server (`firth serve`) or the engine, and check the address, the disk, and that no other process has the directory open; `firth doctor` helps",
    ),
    (ErrorKind::Closed, 6, "it is shutting down: try again in a moment"),
    (ErrorKind::Timeout, 7, "try again; `firth top` shows the load of the server"),
    (ErrorKind::Overloaded, 8, "slow down and try again; `firth top` shows the load of the server"),
    (ErrorKind::Fenced, 9, "a newer owner has it: what was not settled comes again"),
    (
        ErrorKind::Unsupported,
        10,
        "change the setting that it names, or use a server and an engine of matching versions: see `firth doctor`",
    ),
];

/// For `firth --help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done            4  already exists   8  overloaded, try later
  1  internal error  5  unauthorized     9  fenced: a newer owner has it
  2  invalid         6  unavailable     10  unsupported
  3  not found       7  timeout";

fn row(kind: ErrorKind) -> (u8, &'static str) {
    let found = TABLE.iter().find(|row| row.0 == kind).unwrap_or(&TABLE[0]);
    (found.1, found.2)
}

pub(crate) fn exit_code(kind: ErrorKind) -> u8 {
    row(kind).0
}

/// What a person can do about it.
pub(crate) fn hint(kind: ErrorKind) -> &'static str {
    row(kind).1
}

/// Whether the error is only that the reader closed the output, as `| head` does. The command then
/// ends with success.
pub(crate) fn is_unread(error: &Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let io = cause.downcast_ref::<std::io::Error>();
        if error.kind() == ErrorKind::Closed
            && io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
        {
            return true;
        }
        source = cause.source();
    }
    false
}

/// On stderr: the error, its causes, and what to do.
pub(crate) fn explain(error: &Error) {
    eprintln!("error: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
    if error.may_have_happened() {
        eprintln!("  it may have happened all the same");
    }
    eprintln!("  hint: {}", hint(error.kind()));
}

/// In one line.
pub(crate) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code_and_a_hint_and_the_help_lists_them() {
        for (kind, code, hint) in TABLE {
            assert!(code > 0 && !hint.is_empty());
            assert!(EXIT_CODES.contains(&format!("{code}  ")), "{code}");
            assert_eq!(exit_code(kind), code);
        }
        assert_eq!(exit_code(ErrorKind::NotFound), 3);
    }
}
