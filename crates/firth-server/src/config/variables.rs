//! Environment variables that are no settings, each with its one meaning, and older spellings.

use super::table::SETTINGS;

/// Every variable that firth reads besides those of the settings, and what it holds in every
/// command.
const OTHER_VARIABLES: [(&str, &str); 12] = [
    ("FIRTH_CA_FILE", "a file of certificates to trust besides those of the system"),
    ("FIRTH_CONFIG", "the configuration file of a server"),
    ("FIRTH_GATEWAY_ID", "the name of a gateway"),
    ("FIRTH_GATEWAY_LISTEN", "the address at which a gateway serves clients"),
    ("FIRTH_GATEWAY_TOKEN", "the token that a router sends and a gateway asks for with batches"),
    ("FIRTH_KEY_FILE", "the keys and tokens of a gateway's clients"),
    ("FIRTH_ROUTER", "the router with which a gateway registers"),
    ("FIRTH_ROUTER_TOKEN", "the token that a gateway sends and a router asks for on registration"),
    ("FIRTH_ROUTING_SIGNING_KEY", "the key with which a router signs batches"),
    ("FIRTH_SERVER", "the server to which commands speak"),
    ("FIRTH_SERVICE", "the service of a claim, for the command that handles it"),
    ("FIRTH_WORKER", "the lasting name of a worker"),
];

/// Older spellings that are still read, and their names today.
const OLD_VARIABLES: [(&str, &str); 2] =
    [("FIRTH_ROUTING_REGISTRY_TOKEN", "FIRTH_ROUTER_TOKEN"), ("FIRTH_ROUTING_TOKEN", "FIRTH_GATEWAY_TOKEN")];

/// What a variable holds, under its name or its older spelling; an empty one counts as not set.
pub(crate) fn variable(name: &str) -> Option<String> {
    let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut old = OLD_VARIABLES.iter().filter(|(_, now)| *now == name);
    read(name).or_else(|| old.find_map(|(old, _)| read(old)))
}

/// The names of all variables that firth reads.
pub(crate) fn variables() -> impl Iterator<Item = &'static str> {
    let other = OTHER_VARIABLES.iter().map(|(name, _)| *name);
    let old = OLD_VARIABLES.iter().map(|(name, _)| *name);
    SETTINGS.iter().map(|setting| setting.env).chain(other).chain(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn u16_every_variable_has_one_meaning() {
        let names: Vec<_> = variables().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        let meanings = SETTINGS.iter().map(|setting| setting.doc);
        let meanings: Vec<_> = meanings.chain(OTHER_VARIABLES.iter().map(|(_, holds)| *holds)).collect();
        assert_eq!(meanings.iter().collect::<BTreeSet<_>>().len(), meanings.len(), "{meanings:?}");
        for (old, now) in OLD_VARIABLES {
            assert!(OTHER_VARIABLES.iter().any(|(name, _)| *name == now), "{old} is {now}");
        }
    }
}
