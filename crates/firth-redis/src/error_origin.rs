//! Where an error comes from: the server, or a script. Pure.
//!
//! A script may answer with any error after any write, so the code alone proves nothing. But the
//! texts by which a server refuses a script *before* it runs are never given to a command inside a
//! script.
//!
//! A command inside a script can meet OOM, READONLY, MISCONF and NOREPLICAS. These texts count only
//! for a script that declares its writes, because the server checks those before it runs. A script
//! that repeats one of the texts below literally is believed.

/// Possible origins of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ErrorOrigin {
    /// The server: the command runs no script.
    #[default]
    Server,
    /// The server, or a script.
    Script,
    /// The server, or a script that declares what it does: one with a first line `#!lua`, or a
    /// function.
    DeclaredScript,
}

impl ErrorOrigin {
    /// By the name of a command.
    pub(crate) fn of(name: &str) -> Self {
        let is_one_of = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        match name.as_bytes().first() {
            Some(b'E' | b'e') if is_one_of(&["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"]) => Self::Script,
            Some(b'F' | b'f') if is_one_of(&["FCALL", "FCALL_RO"]) => Self::DeclaredScript,
            _ => Self::Server,
        }
    }

    /// Of a script, by its source.
    pub(crate) fn of_script(source: &str) -> Self {
        if source.starts_with("#!") { Self::DeclaredScript } else { Self::Script }
    }

    /// Whether this is the text of a server that refused to run the command.
    pub(crate) fn was_refused(self, code: &str, message: &str) -> bool {
        match self {
            Self::Server => true,
            Self::Script => refused_script(code, message),
            Self::DeclaredScript => refused_script(code, message) || refused_write(code, message),
        }
    }
}

/// Refusals of any write. Inside a script the text ends with the script's name.
fn refused_write(code: &str, message: &str) -> bool {
    let words = match code {
        "OOM" => message.starts_with("command not allowed when used memory"),
        "READONLY" => message.starts_with("You can't write against a read only replica"),
        "NOREPLICAS" => message.starts_with("Not enough good replicas to write"),
        "MISCONF" => {
            message.contains("is configured to ") || message.starts_with("Errors writing to the AOF file")
        }
        _ => false,
    };
    words && !message.contains(" script: ")
}

/// Refusals of any script.
fn refused_script(code: &str, message: &str) -> bool {
    match code {
        "NOSCRIPT" => message.starts_with("No matching script"),
        "TRYAGAIN" => message.starts_with("Multiple keys request during rehashing of slot"),
        "CLUSTERDOWN" => message.starts_with("The cluster is down") || message == "Hash slot not served",
        "CROSSSLOT" => message.starts_with("Keys in request don't hash to the same slot"),
        "LOADING" => message.ends_with(" is loading the dataset in memory"),
        "BUSY" => message.contains(" is busy running a "),
        "MASTERDOWN" => message.starts_with("Link with MASTER is down"),
        "READONLY" => message.starts_with(WRITING_SCRIPT),
        "OOM" => message.starts_with("allow-oom flag is not set on the script"),
        "MISCONF" => message.contains("Writable scripts are blocked"),
        "NOAUTH" => message == "Authentication required.",
        "NOPERM" => {
            let message = message.to_ascii_lowercase();
            message.contains("no permissions to ") && !message.contains("script")
        }
        _ => false,
    }
}

/// Refusal of a script that declares writes, at a replica.
const WRITING_SCRIPT: &str = "Can not run script with write flag on readonly replica";

/// Whether this is the text of a server that is no master, in answer to a command or to one inside
/// a script.
pub(crate) fn is_demoted(code: &str, message: &str) -> bool {
    code == "READONLY"
        && (message.starts_with("You can't write against a read only replica")
            || message.starts_with(WRITING_SCRIPT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_words_of_a_server_that_ran_nothing_count() {
        for (line, refused) in [
            ("NOSCRIPT No matching script. Please use EVAL.", true),
            ("NOSCRIPT No matching script.", true),
            ("TRYAGAIN Multiple keys request during rehashing of slot", true),
            ("CLUSTERDOWN The cluster is down", true),
            ("CLUSTERDOWN The cluster is down and only accepts read commands", true),
            ("CLUSTERDOWN Hash slot not served", true),
            ("LOADING Redis is loading the dataset in memory", true),
            ("LOADING Valkey is loading the dataset in memory", true),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", true),
            ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", true),
            ("READONLY Can not run script with write flag on readonly replica.", true),
            ("NOPERM this user has no permissions to run the 'eval' command", true),
            ("NOPERM User app has no permissions to run the 'evalsha' command", true),
            ("NOPERM No permissions to access a key", true),
            // What a script can meet in its middle, or make up.
            ("NOPERM ACL failure in script: No permissions to access a key", false),
            ("READONLY You can't write against a read only replica.", false),
            ("READONLY You can't write against a read only replica. script: 6f, on @user_script:1.", false),
            ("OOM command not allowed when used memory > 'maxmemory'.", false),
            ("MISCONF Errors writing to the AOF file: No space left on device", false),
            ("NOREPLICAS Not enough good replicas to write.", false),
            ("UNBLOCKED force unblock from blocking operation", false),
            ("EXECABORT Transaction discarded because of previous errors.", false),
            ("TRYAGAIN x", false),
            ("NOSCRIPT", false),
            ("MOVED 5 127.0.0.1:7000", false),
        ] {
            let (code, message) = line.split_once(' ').unwrap_or((line, ""));
            assert_eq!(ErrorOrigin::Script.was_refused(code, message), refused, "{line}");
        }
    }

    #[test]
    fn a_script_that_declares_its_writes_is_refused_like_a_write() {
        for (line, refused) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", true),
            ("READONLY You can't write against a read only replica.", true),
            ("NOREPLICAS Not enough good replicas to write.", true),
            ("MISCONF Errors writing to the AOF file: No space left on device", true),
            ("LOADING Redis is loading the dataset in memory", true),
            ("READONLY You can't write against a read only replica. script: 6f, on @user_script:1.", false),
            ("OOM x", false),
            ("WRONGTYPE Operation", false),
        ] {
            let (code, message) = line.split_once(' ').unwrap_or((line, ""));
            assert_eq!(ErrorOrigin::DeclaredScript.was_refused(code, message), refused, "{line}");
        }
        assert_eq!(ErrorOrigin::of_script("#!lua\nreturn 1"), ErrorOrigin::DeclaredScript);
        assert_eq!(ErrorOrigin::of("fcall"), ErrorOrigin::DeclaredScript);
        assert_eq!([ErrorOrigin::of("EvalSha"), ErrorOrigin::of("EVAL_RO")], [ErrorOrigin::Script; 2]);
        assert_eq!(
            [ErrorOrigin::of("EXISTS"), ErrorOrigin::of("FLUSHALL"), ErrorOrigin::of("")],
            [ErrorOrigin::Server; 3]
        );
    }

    #[test]
    fn a_demotion_is_told_by_the_servers_words() {
        let told = |message| is_demoted("READONLY", message);
        assert!(told("You can't write against a read only replica."));
        assert!(told("You can't write against a read only replica. script: 6f, on @user_script:1."));
        assert!(!told("of my own") && !is_demoted("ERR", "You can't write against a read only replica."));
    }
}
