//! [`Finding`]: what a look at a source's other side found, with the statements that help.

use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Level {
    /// The source cannot work.
    Error,
    /// It works, and may surprise its operator one day.
    Warning,
    /// What the operator should know.
    Note,
}

impl Level {
    /// Its stable lower-case name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What is the matter.
    pub text: String,
    /// The statements that mend it, for an operator to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sql: Vec<String>,
}

impl Finding {
    /// A finding with the statements that help.
    pub(crate) fn new(level: Level, text: impl Into<String>, sql: impl IntoIterator<Item = String>) -> Self {
        Self { level, text: text.into(), sql: sql.into_iter().collect() }
    }
}
