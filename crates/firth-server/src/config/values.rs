//! Where each setting's value comes from: flags over the environment over the file over the
//! default.
//!
//! Names that do not exist are refused with the nearest one that does. Nothing here knows what a
//! value means.

use super::table::{SETTINGS, Setting, find, mistaken_variable, nearest};
use crate::wire::invalid;
use firth::Result;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The file that is read if it is there and none is named.
pub(crate) const USUAL_FILE: &str = "firth.yaml";

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Environment(&'static str),
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag => f.write_str("command line"),
        }
    }
}

/// What was given where, before it is merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// The file that was named; else [`USUAL_FILE`] is read if it is there.
    pub(crate) file: Option<PathBuf>,
    /// Settings of the command line.
    pub(crate) flags: Vec<(String, String)>,
}

/// Every setting with its value and where it comes from; and the sections that other crates read.
pub(crate) struct SettingValues(BTreeMap<&'static str, (String, Source)>, Sections);

/// The sections that are not in the table.
#[derive(Default)]
struct Sections {
    routing: Option<Value>,
    connect: Option<Value>,
}

const ROUTING: &str = "routing";
const CONNECT: &str = "connect";

impl SettingValues {
    /// The defaults alone.
    pub(crate) fn defaults() -> Self {
        let entry = |setting: &Setting| (setting.key, (setting.default.to_owned(), Source::Default));
        Self(SETTINGS.iter().map(entry).collect(), Sections::default())
    }

    /// Everything merged, from this process's environment and the files that `given` names.
    pub(crate) fn load(given: &Given) -> Result<Self> {
        let usual = PathBuf::from(USUAL_FILE);
        let file = given.file.clone().or_else(|| usual.is_file().then_some(usual));
        let text = match &file {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                invalid(format!("the configuration {} cannot be read", path.display())).with_source(error)
            })?,
        };
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        known_variables(names)?;
        let variable = |name: &str| std::env::var(name).ok();
        Self::merge(file.as_deref().map(|path| (path, text.as_str())), variable, &given.flags)
    }

    /// Pure: the file's text, the environment and the flags come in.
    fn merge(
        file: Option<(&Path, &str)>,
        variable: impl Fn(&str) -> Option<String>,
        flags: &[(String, String)],
    ) -> Result<Self> {
        let mut values = Self::defaults();
        if let Some((path, text)) = file {
            let (settings, sections) = read(path, text)?;
            values.1 = sections;
            for (key, value) in settings {
                values.set(&key, value, Source::File(path.to_owned()))?;
            }
        }
        for setting in &SETTINGS {
            if let Some(value) = variable(setting.env).filter(|value| !value.is_empty()) {
                values.set(setting.key, value, Source::Environment(setting.env))?;
            }
        }
        for (key, value) in flags {
            values.set(key, value.clone(), Source::Flag)?;
        }
        Ok(values)
    }

    fn set(&mut self, key: &str, value: String, source: Source) -> Result<()> {
        if let Some(rest) = key.strip_prefix("routing.") {
            let section = self.1.routing.get_or_insert_with(|| Value::Object(serde_json::Map::new()));
            return put(section, rest, value).ok_or_else(|| {
                invalid(format!("{key}: there is a value where a section is needed ({source})"))
            });
        }
        let Some(setting) = find(key) else { return Err(unknown(key, &source)) };
        self.0.insert(setting.key, (value, source));
        Ok(())
    }

    /// The value of a setting.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map(|(value, _)| value.as_str()).expect("only names of the table are asked for")
    }

    /// The value of a setting that may be absent.
    pub(crate) fn option(&self, key: &str) -> Option<&str> {
        Some(self.get(key)).filter(|value| !value.is_empty())
    }

    /// What stands under `routing:`, if anything does.
    pub(crate) fn routing(&self) -> Option<&Value> {
        self.1.routing.as_ref()
    }

    /// What stands under `connect:`, if anything does.
    pub(crate) fn connect(&self) -> Option<&Value> {
        self.1.connect.as_ref()
    }

    pub(crate) fn source(&self, key: &str) -> &Source {
        self.0.get(key).map(|(_, source)| source).expect("only names of the table are asked for")
    }

    /// A value read as what it must be; the error names the setting, where it comes from, and what
    /// to write.
    pub(crate) fn parse<T>(&self, key: &str, wanted: &str, read: impl Fn(&str) -> Option<T>) -> Result<T> {
        let value = self.get(key);
        read(value).ok_or_else(|| {
            let shown = if find(key).is_some_and(|setting| setting.secret) { "…" } else { value };
            invalid(format!("{key} is {shown:?} ({}): write {wanted}", self.source(key)))
        })
    }
}

/// Fails at the first variable that is meant for firth and that nothing reads.
fn known_variables(mut names: impl Iterator<Item = String>) -> Result<()> {
    let mistaken = names.find_map(|name| mistaken_variable(&name).map(|near| (name, near)));
    let Some((name, near)) = mistaken else { return Ok(()) };
    let hint = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "`firth config` prints all of them".to_owned(),
    };
    Err(invalid(format!("{name}: there is no such variable (environment); {hint}")))
}

fn unknown(key: &str, source: &Source) -> firth::Error {
    let sections =
        SETTINGS.iter().filter_map(|setting| setting.key.split_once('.')).map(|(section, _)| section);
    let near = nearest(key, SETTINGS.iter().map(|setting| setting.key)).or_else(|| nearest(key, sections));
    let hint = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "`firth config` prints all of them".to_owned(),
    };
    invalid(format!("{key}: there is no such setting ({source}); {hint}"))
}

/// Puts a scalar at its place in a tree of sections.
fn put(section: &mut Value, key: &str, value: String) -> Option<()> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let fields = section.as_object_mut()?;
    match rest {
        Some(rest) => {
            let inner = fields.entry(first).or_insert_with(|| Value::Object(serde_json::Map::new()));
            put(inner, rest, value)
        }
        None => {
            // As YAML reads it: a number, true or false, else text.
            let scalar = serde_saphyr::from_str::<Value>(&value).ok();
            let scalar = scalar.filter(|scalar| scalar.is_number() || scalar.is_boolean());
            fields.insert(first.to_owned(), scalar.unwrap_or(Value::String(value)));
            Some(())
        }
    }
}

/// Settings under their dotted names, and the sections of other crates.
type Parts = (Vec<(String, String)>, Sections);

/// The file's scalars under their dotted names, and the sections of other crates as they are.
fn read(path: &Path, text: &str) -> Result<Parts> {
    let shown = path.display();
    let wrong =
        |error: String| invalid(format!("{shown} is not the YAML of a configuration")).with_source(error);
    let mut tree: Value =
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            Value::Null
        } else {
            serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string()))?
        };
    let mut found = Vec::new();
    // The name alone, with all options in comments, means the defaults.
    let mut take = |name: &str| {
        let section = tree.as_object_mut().and_then(|fields| fields.remove(name));
        section.map(|section| match section {
            Value::Null => Value::Object(serde_json::Map::new()),
            section => section,
        })
    };
    let sections = Sections { routing: take(ROUTING), connect: take(CONNECT) };
    match tree {
        Value::Null => {}
        Value::Object(_) => flatten("", &tree, &mut found).map_err(wrong)?,
        _ => return Err(wrong("at the top there are names with values".to_owned())),
    }
    Ok((found, sections))
}

fn flatten(prefix: &str, value: &Value, found: &mut Vec<(String, String)>) -> Result<(), String> {
    let scalar = match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&key, value, found)?;
            }
            return Ok(());
        }
        Value::Array(_) => return Err(format!("{prefix} is a list; write one value")),
        // A section whose settings are all comments.
        Value::Null if SETTINGS.iter().any(|setting| setting.key.split('.').next() == Some(prefix)) => {
            return Ok(());
        }
        Value::Null => String::new(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => value.clone(),
    };
    found.push((prefix.to_owned(), scalar));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(file: &str, env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<SettingValues> {
        let variable =
            |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let flags: Vec<_> =
            flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        SettingValues::merge(Some((Path::new("firth.yaml"), file)), variable, &flags)
    }

    #[test]
    fn flags_win_over_the_environment_over_the_file_over_the_default() {
        let file = "engine: \"memory:\"\nlisten: 127.0.0.1:1\nlog: { level: debug }\nlimits:\n  rate: 5\n";
        let env = [("FIRTH_LISTEN", "127.0.0.1:2"), ("FIRTH_LOG", "warn")];
        let values = merge(file, &env, &[("listen", "127.0.0.1:3")]).unwrap();
        assert_eq!(values.get("listen"), "127.0.0.1:3");
        assert_eq!(values.get("log.level"), "warn");
        assert_eq!(values.get("engine"), "memory:");
        assert_eq!(values.get("limits.rate"), "5");
        assert_eq!(values.get("limits.burst"), "100");
        assert_eq!(*values.source("log.level"), Source::Environment("FIRTH_LOG"));
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known_one() {
        let refused = |file: &str| merge(file, &[], &[]).err().unwrap().context().to_owned();
        assert!(refused("lisen: x").contains("did you mean listen?"));
        assert!(refused("limits: { requst_size: 1MiB }").contains("limits.request_size"));
        assert!(refused("limit: { rate: 1 }").contains("limits.rate"));
        assert!(refused("colour: red").contains("firth config"));
        let flag = merge("", &[], &[("limits.rat", "1")]).err().unwrap();
        assert!(flag.context().contains("command line") && flag.context().contains("limits.rate"), "{flag}");
    }

    #[test]
    fn u13_unknown_variables_are_refused_and_those_of_others_are_not() {
        let check = |name: &str| known_variables([name.to_owned()].into_iter());
        let refused = |name: &str| check(name).err().unwrap().context().to_owned();
        assert!(refused("FIRTH_LISTENN").contains("did you mean FIRTH_LISTEN?"));
        assert!(refused("FIRTH_SERVR").contains("FIRTH_SERVER"));
        assert!(refused("FIRTH_LIMITS_COLOUR").contains("firth config"));
        for name in [
            "FIRTH_LISTEN",
            "FIRTH_SERVER",
            "FIRTH_SERVICE_HOST",
            "FIRTH_PORT",
            "FIRTH_PORT_7171_TCP_ADDR",
            "FIRTH_HEADER_COLOR",
            "FIRTH_CHECKPOINT_BASE64",
            "FIRTH_TOPIC",
            "FIRTH_BIN",
            "FIRTH_SERVICE",
            "OTHER_LISTENN",
        ] {
            assert!(check(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_no_configuration_is_refused() {
        for wrong in ["- a\n- b", "text", "a: [", "limits: [1]", "listen: a\nlisten: b"] {
            assert!(merge(wrong, &[], &[]).is_err(), "{wrong}");
        }
        assert!(merge("# only words\n", &[], &[]).is_ok());
        assert!(merge("", &[], &[]).is_ok());
    }

    #[test]
    fn the_routing_section_is_kept_as_it_is_and_flags_go_into_it() {
        let file = "routing:\n  mode: direct\n  batch: { max_size: 100 }\n";
        let flags =
            [("routing.batch.max_size", "7"), ("routing.topic", "changes"), ("routing.dlq.enabled", "false")];
        let values = merge(file, &[], &flags).unwrap();
        let expected = serde_json::json!({
            "mode": "direct", "batch": { "max_size": 7 }, "topic": "changes", "dlq": { "enabled": false },
        });
        assert_eq!(values.routing(), Some(&expected));
        assert!(merge("", &[], &[]).unwrap().routing().is_none());
        assert_eq!(merge("routing:\n", &[], &[]).unwrap().routing(), Some(&serde_json::json!({})));
        assert!(merge(file, &[], &[("routing.mode.x", "1")]).is_err());
    }

    #[test]
    fn secrets_are_not_part_of_errors() {
        let values = merge("", &[("FIRTH_TOKEN", "planted-secret")], &[]).unwrap();
        let error = values.parse("auth.token", "nothing", |_| None::<()>).unwrap_err();
        assert!(!format!("{error:?}").contains("planted-secret"));
    }
}
