//! From the client's errors to the engine's: what the caller can do about it, and whether the step
//! may have happened.
//!
//! A definite error (`may_have_happened` false) is a promise; everything that may have reached the
//! server without an answer is unknown. Server errors are told apart by their first word only,
//! because texts differ between servers.

use crate::error::{Error, ErrorKind};
use firth_redis::{CallError, ConnectError, LostCause, ServerError};

/// A failed request.
pub(super) fn of_call(error: CallError) -> Error {
    let (kind, context) = match &error {
        CallError::Server(server) => of_server(server),
        CallError::Convert(_) => {
            (ErrorKind::Corrupt, "the server's answer has an unexpected form".to_owned())
        }
        CallError::Timeout { after, .. } => {
            (ErrorKind::Timeout, format!("the server gave no answer within {after:?}"))
        }
        CallError::Full { what, limit } => {
            (ErrorKind::Overloaded, format!("{what} is full (limit {limit}): slow down and try again"))
        }
        CallError::Closed { .. } => (ErrorKind::Closed, "the engine was closed".to_owned()),
        CallError::Invalid(problem) => (ErrorKind::Internal, problem.clone()),
        CallError::Down { cause: LostCause::Reconnect(cause) } if !cause.is_retryable() => {
            (ErrorKind::Unauthorized, "the server refuses the connection".to_owned())
        }
        _ => (ErrorKind::Unavailable, "the connection to the server is lost".to_owned()),
    };
    let unknown = error.may_have_run();
    let error = Error::new(kind, context).with_source(error);
    if unknown { error.with_unknown_outcome() } else { error }
}

fn of_server(error: &ServerError) -> (ErrorKind, String) {
    let unavailable = |context: &str| (ErrorKind::Unavailable, context.to_owned());
    match &*error.code {
        "OOM" => unavailable(
            "the server's memory is full (maxmemory): trim topics, settle records, or give it more memory",
        ),
        "READONLY" => {
            unavailable("the server is a read-only replica: connect to the master, or wait for its promotion")
        }
        "LOADING" => unavailable("the server is loading its data: try again in a moment"),
        "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" => {
            unavailable("the cluster is changing: try again in a moment")
        }
        "MASTERDOWN" => unavailable("the replica lost its master: try again in a moment"),
        "BUSY" => unavailable("the server is busy with a script: try again in a moment"),
        "MISCONF" => unavailable("the server cannot save to its disk and refuses writes: look at its log"),
        "NOREPLICAS" => {
            unavailable("the server has too few replicas to accept writes (min-replicas-to-write)")
        }
        "NOPERM" | "NOAUTH" | "WRONGPASS" | "DENIED" => (
            ErrorKind::Unauthorized,
            "the server does not permit it: see docs/acl.md for the rules of the user".to_owned(),
        ),
        "ERR" if is_denied_in_script(&error.message) => (
            ErrorKind::Unauthorized,
            "the server does not permit a command of a script: see docs/acl.md for the rules of the user"
                .to_owned(),
        ),
        "WRONGTYPE" => (
            ErrorKind::Corrupt,
            "a key of ours holds something else: another program uses this prefix; choose one with ?prefix="
                .to_owned(),
        ),
        _ => (ErrorKind::Internal, "the server answered with an error".to_owned()),
    }
}

/// Refusals inside a script come under the code ERR; these words stand in Redis 7 and in Valkey.
fn is_denied_in_script(message: &str) -> bool {
    message.starts_with("The user executing the script can't") || message.starts_with("ACL failure in script")
}

/// A connection that did not come about.
pub(super) fn of_connect(error: ConnectError) -> Error {
    let (kind, context) = match &error {
        ConnectError::Config { .. } => (ErrorKind::Invalid, format!("the engine URL cannot work: {error}")),
        ConnectError::Refused { .. } if !error.is_retryable() => {
            (ErrorKind::Unauthorized, "the server refuses the user or the password".to_owned())
        }
        ConnectError::Timeout { .. } => (ErrorKind::Timeout, "the server did not answer in time".to_owned()),
        ConnectError::Closed => (ErrorKind::Closed, "the engine was closed".to_owned()),
        _ => (ErrorKind::Unavailable, "the server cannot be reached".to_owned()),
    };
    Error::new(kind, context).with_source(error)
}

/// An answer that a script of ours cannot have given.
pub(super) fn odd_answer() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "a script's answer has an unexpected form: do all processes run the same version?",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn server(code: &str, message: &str) -> Error {
        of_call(CallError::Server(ServerError::new(code, message)))
    }

    #[test]
    fn what_the_server_rejects_before_running_is_definite() {
        for (code, kind) in [
            ("OOM", ErrorKind::Unavailable),
            ("READONLY", ErrorKind::Unavailable),
            ("LOADING", ErrorKind::Unavailable),
            ("NOREPLICAS", ErrorKind::Unavailable),
            ("NOPERM", ErrorKind::Unauthorized),
        ] {
            let error = server(code, "x");
            assert_eq!((error.kind(), error.may_have_happened()), (kind, false), "{code}");
        }
    }

    #[test]
    fn a_lost_reply_leaves_the_outcome_unknown() {
        let lost = |sent| of_call(CallError::Lost { sent, cause: LostCause::Eof });
        assert!(lost(true).may_have_happened() && !lost(false).may_have_happened());
        let late = of_call(CallError::Timeout { after: Duration::from_secs(1), sent: true });
        assert_eq!((late.kind(), late.may_have_happened()), (ErrorKind::Timeout, true));
        assert!(server("ERR", "something broke in the middle").may_have_happened());
    }
}
