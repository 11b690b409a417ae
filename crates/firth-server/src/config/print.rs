//! `firth config`: the effective configuration as a file with comments. What it prints can be used
//! as `firth.yaml`. Secrets are left out.

use super::table::{SETTINGS, Setting};
use super::values::{SettingValues, Source};
use std::fmt::Write;

/// The file.
pub(crate) fn effective_file(values: &SettingValues) -> String {
    let mut file = String::from(
        "# firth.yaml: the configuration of `firth serve`. Flags win over FIRTH_* variables, those over this file.\n\
         # (live): taken over on SIGHUP; everything else needs a restart.\n",
    );
    let mut section = "";
    for setting in &SETTINGS {
        let (of, name) = setting.key.split_once('.').unwrap_or(("", setting.key));
        if of != section {
            section = of;
            let _ = write!(file, "\n{of}:\n");
        } else if section.is_empty() {
            file.push('\n');
        }
        let indent = if of.is_empty() { "" } else { "  " };
        let _ = writeln!(file, "{indent}# {}{}", setting.doc, if setting.live { " (live)" } else { "" });
        let _ = writeln!(file, "{indent}# {}{}", setting.env, origin(values.source(setting.key)));
        let _ = writeln!(file, "{indent}{}", line(setting, name, values));
    }
    file.push_str(&routing(values));
    file.push_str(&connect(values));
    file
}

/// The section of the router as it was given, or how one looks.
fn routing(values: &SettingValues) -> String {
    let mut text = String::from(
        "\n# A node of the router runs here if this section is there; see docs/router.md for all options.\n",
    );
    match values.routing() {
        None => text.push_str(
            "# routing:\n#   topic: changes\n#   mode: direct\n#   num_partitions: 1\n#   batch: { max_size: 100, max_wait: 50ms }\n",
        ),
        // JSON is YAML, and quoting is its own affair.
        Some(section) => {
            let _ = writeln!(text, "routing: {section}");
        }
    }
    text
}

/// The section of the sources as it was given, or how one looks.
fn connect(values: &SettingValues) -> String {
    let mut text = String::from(
        "\n# The databases whose changes this server reads; see docs/connect.md for all options.\n",
    );
    match values.connect() {
        None => text.push_str(
            "# connect:\n#   shop:\n#     kind: postgres\n#     url: postgres://firth@127.0.0.1/shop\n#     topic: changes\n#     tables: [orders]\n#     tenant: { constant: acme }\n",
        ),
        Some(section) => {
            let _ = writeln!(text, "connect: {section}");
        }
    }
    text
}

fn origin(source: &Source) -> String {
    match source {
        Source::Default => String::new(),
        source => format!(", set by: {source}"),
    }
}

fn line(setting: &Setting, name: &str, values: &SettingValues) -> String {
    match values.option(setting.key) {
        None => format!("# {name}:"),
        Some(_) if setting.secret => format!("# {name}: (set, not shown)"),
        Some(value) => format!("{name}: {}", scalar(&without_password(value))),
    }
}

/// As YAML: plain where that is safe, else quoted.
fn scalar(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "./_-".contains(c);
    match value.chars().all(plain) && !value.starts_with(['-', '.']) {
        true => value.to_owned(),
        false => serde_json::Value::from(value).to_string(),
    }
}

/// A URL without the password in it.
pub(crate) fn without_password(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return value.to_owned() };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    match authority.rsplit_once('@') {
        Some((user, _)) => {
            let name = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{name}:…@{}", &rest[user.len() + 1..])
        }
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_printed_is_a_valid_file_with_every_setting() {
        let file = effective_file(&SettingValues::defaults());
        for setting in &SETTINGS {
            assert!(file.contains(setting.env) && file.contains(setting.doc), "{}", setting.key);
        }
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), &file).unwrap();
        let given = crate::config::Given { file: Some(path.path().to_owned()), flags: Vec::new() };
        let again = Config::load(&given).unwrap();
        assert_eq!(again.limits, Config::read(&SettingValues::defaults()).unwrap().limits);
    }

    #[test]
    fn passwords_in_urls_are_not_shown() {
        assert_eq!(without_password("redis://me:planted@host:1/2"), "redis://me:…@host:1/2");
        assert_eq!(without_password("redis://:planted@host"), "redis://:…@host");
        assert_eq!(without_password("redis://host/?a=b@c"), "redis://host/?a=b@c");
        assert_eq!(without_password("file:./data"), "file:./data");
    }
}
