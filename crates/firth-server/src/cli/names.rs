//! U16: one name means one thing, on the command line and in the environment.

use super::Cli;
use crate::config;
use clap::{Arg, Command, CommandFactory};
use std::collections::{BTreeMap, BTreeSet};

/// Options whose help says in each command what the one meaning comes to there.
const TOLD_BY_COMMAND: [(&str, &str); 25] = [
    ("after", "go on after this entry of a list"),
    ("dir", "the directory to write"),
    ("engine", "where topics are kept"),
    ("exec", "run this command in a shell"),
    ("file", "read payloads from this file"),
    ("filter", "only what this CEL expression is true of"),
    ("follow", "go on with what comes"),
    ("from", "where a new group starts"),
    ("gateway", "the gateway of a subscription"),
    ("group", "the consumer group"),
    ("jobs", "how many run at a time"),
    ("keep", "how many of the newest stay"),
    ("key", "the key of a message"),
    ("listen", "the address to serve"),
    ("lossy", "remove also what some group has not settled"),
    ("max", "at most this many"),
    ("older-than", "what is at least this old"),
    ("partition", "the number of one partition"),
    ("partitions", "how many partitions"),
    ("payload", "the payload, as text"),
    ("reason", "only dead letters whose reason contains this"),
    ("tenant", "the tenant"),
    ("topic", "the topic"),
    ("ttl", "how long something lives without a sign of life"),
    ("worker", "the name of a worker"),
];

/// An option as one command has it.
struct Described {
    command: String,
    help: String,
    kind: String,
    /// What its value is called; none for a flag.
    value: Option<String>,
    variable: Option<String>,
}

fn walk(command: &Command, path: &str, found: &mut BTreeMap<String, Vec<Described>>) {
    for option in command.get_arguments().filter(|option| option.get_id() != "help") {
        if let Some(name) = option.get_long() {
            found.entry(name.to_owned()).or_default().push(describe(option, path));
        }
    }
    for command in command.get_subcommands() {
        walk(command, &format!("{path} {}", command.get_name()), found);
    }
}

fn describe(option: &Arg, path: &str) -> Described {
    let value = option.get_value_names().filter(|_| option.get_action().takes_values());
    Described {
        command: path.trim_start().to_owned(),
        help: option.get_help().map(ToString::to_string).unwrap_or_default(),
        kind: format!("{:?}", option.get_value_parser().type_id()),
        value: value.map(|names| names.join(" ")),
        variable: option.get_env().and_then(|name| name.to_str()).map(str::to_owned),
    }
}

fn options() -> BTreeMap<String, Vec<Described>> {
    let mut found = BTreeMap::new();
    let mut root = Cli::command();
    root.build();
    walk(&root, "", &mut found);
    found
}

#[test]
fn u16_an_option_has_one_type_and_one_name_for_its_value() {
    for (option, found) in options() {
        let [first, rest @ ..] = &found[..] else { continue };
        for one in rest {
            let of = format!("--{option} of {} and {}", first.command, one.command);
            assert_eq!(one.kind, first.kind, "{of}");
            if let (Some(one), Some(first)) = (&one.value, &first.value) {
                assert_eq!(one, first, "{of}");
            }
        }
    }
}

#[test]
fn u16_an_option_has_one_meaning() {
    let told: BTreeMap<_, _> = TOLD_BY_COMMAND.into();
    let mut wrong = Vec::new();
    for (option, found) in options() {
        let texts: BTreeSet<_> = found.into_iter().map(|one| one.help).collect();
        if (texts.len() > 1) != told.contains_key(option.as_str()) {
            wrong.push((option, texts));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn u16_a_variable_belongs_to_one_option_and_is_known() {
    let mut options_of = BTreeMap::<String, BTreeSet<String>>::new();
    for (option, found) in options() {
        for variable in found.into_iter().filter_map(|one| one.variable) {
            options_of.entry(variable).or_default().insert(option.clone());
        }
    }
    for (variable, options) in options_of {
        assert_eq!(options.len(), 1, "{variable}: {options:?}");
        assert!(config::variables().any(|known| known == variable), "{variable}");
    }
}

#[test]
fn u16_older_spellings_are_accepted_and_not_shown() {
    let older = [
        (&["produce", "t", "x", "--after", "1s"][..], "--deliver-after"),
        (&["claims", "work", "s", "--exec", "true", "--name", "w"], "--worker"),
        (&["claims", "follow", "s", "u", "t", "--name", "w"], "--worker"),
        (&["group", "policy", "t", "g", "--attempts", "3"], "--max-attempts"),
        (&["group", "policy", "t", "g", "--crashes", "3"], "--max-crashes"),
    ];
    for (line, now) in older {
        let given = Cli::command().try_get_matches_from([&["firth"], line].concat());
        assert!(given.is_ok(), "{line:?}: {}", given.unwrap_err());
        let mut command = Cli::command();
        command.build();
        let mut command = &mut command;
        while let Some(inner) = line.iter().find(|word| command.find_subcommand(word).is_some()) {
            command = command.find_subcommand_mut(inner).unwrap();
        }
        let help = command.render_long_help().to_string();
        let old = line.iter().find(|word| word.starts_with("--") && **word != "--exec").unwrap();
        assert!(help.contains(now) && !help.contains(&format!("{old} ")), "{line:?}: {help}");
    }
}
