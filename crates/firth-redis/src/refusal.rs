//! Whose word an error is. A script may answer with any error after any write, so the code alone proves nothing; but the
//! words by which a server refuses a script *before* it runs are never given to a command inside a script. Pure.
//!
//! Words that a script can meet in its middle (OOM, READONLY, MISCONF and NOREPLICAS of a write) are left out, although a
//! server may say them before a script too. A script that repeats one of the words below literally is believed.

/// Whether these are the words of a server that refused to run a script.
pub(crate) fn refused_script(code: &str, message: &str) -> bool {
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

/// A script that says of itself that it writes, at a replica.
const WRITING_SCRIPT: &str = "Can not run script with write flag on readonly replica";

/// Whether these are the words of a server that is no master, be it to a command or to one inside a script.
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
            assert_eq!(refused_script(code, message), refused, "{line}");
        }
    }

    #[test]
    fn a_demotion_is_told_by_the_servers_words() {
        let told = |message| is_demoted("READONLY", message);
        assert!(told("You can't write against a read only replica."));
        assert!(told("You can't write against a read only replica. script: 6f, on @user_script:1."));
        assert!(!told("of my own") && !is_demoted("ERR", "You can't write against a read only replica."));
    }
}
