//! Validated names: 1 to 128 characters of `[a-zA-Z0-9._-]`, and never `..`. Code that holds one of
//! these types may put it into a key, a path, a hash tag or a metric without another check.
//!
//! Names are cheap to clone. Braces, slashes, spaces and control characters cannot occur, so that a
//! name can neither break out of a hash tag nor out of a directory.

use crate::error::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// The longest name, in bytes.
pub const MAX_NAME: usize = 128;

/// `what` is the name's kind for people, `field` for programs.
fn check(what: &'static str, field: &'static str, value: &str) -> Result<()> {
    let wrong = |context: String| Err(Error::invalid(context).with_field(field));
    if value.is_empty() {
        let context = format!("{what} is empty; give 1 to {MAX_NAME} characters");
        return Err(Error::beyond(field, MAX_NAME, context));
    }
    if value.len() > MAX_NAME {
        let context = format!("{what} has {} bytes; at most {MAX_NAME} are allowed", value.len());
        return Err(Error::beyond(field, MAX_NAME, context));
    }
    if let Some(bad) = value.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-')) {
        return wrong(format!("{what} contains {bad:?}; use letters, digits, '.', '_' and '-' only"));
    }
    if value.contains("..") {
        return wrong(format!("{what} contains \"..\"; separate the dots"));
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `value` and wraps it; the error names the field, the problem and the limit.
            pub fn new(value: impl AsRef<str>) -> Result<Self> {
                let value = value.as_ref();
                check($what, $field, value)?;
                Ok(Self(value.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = Error;
            fn from_str(value: &str) -> Result<Self> {
                Self::new(value)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;
            fn try_from(value: &str) -> Result<Self> {
                Self::new(value)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type!(
    /// A topic: a named log of one or more partitions.
    TopicName, "topic name", "topic"
);
name_type!(
    /// A group: readers who share a topic.
    GroupName, "group name", "group"
);
name_type!(
    /// Who holds a lease. Choose a fresh one per process: a restarted process must not look like
    /// its zombie.
    HolderName, "holder name", "holder"
);
name_type!(
    /// An idempotent producer.
    ProducerName, "producer name", "producer"
);
name_type!(
    /// A source of changes outside, such as a database, whose reader appends them to a topic.
    SourceName, "source name", "source"
);
name_type!(
    /// A pool of leases that are listed and renewed together.
    PoolName, "pool name", "pool"
);
name_type!(
    /// One lease inside a pool, or one member of a claim shard.
    MemberName, "member name", "member"
);
name_type!(
    /// A service whose work is offered and claimed.
    ServiceName, "service name", "service"
);
name_type!(
    /// One offer of a service: a named unit of work.
    OfferName, "offer name", "name"
);
name_type!(
    /// A section of the catalog, listed and watched as one.
    SpaceName, "catalog space", "space"
);
name_type!(
    /// A channel of the bus.
    ChannelName, "channel name", "channel"
);

/// One partition of a topic.
///
/// Everything that a fenced step touches (records, groups, due and dead letters, the group's lease)
/// belongs to one partition, so that an engine can keep it together: one hash tag, one script, one
/// atomic batch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The topic.
    pub topic: TopicName,
    /// Which part of it, from 0.
    pub index: u32,
}

impl Partition {
    /// Partition `index` of `topic`.
    pub fn new(topic: TopicName, index: u32) -> Self {
        Self { topic, index }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_break_out_of_a_key_or_a_path_are_refused() {
        let long = "a".repeat(129);
        for bad in ["", "a b", "a/b", "{a}", "a..b", "a\0b", "a\nb", "ä", long.as_str()] {
            let error = TopicName::new(bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{bad:?}");
            assert!(error.context().starts_with("topic name"), "{error}");
        }
    }

    #[test]
    fn usual_names_pass_and_print_as_they_are() {
        let longest = "a".repeat(128);
        for good in ["orders", "orders.v2", "A-b_c.9", longest.as_str()] {
            assert_eq!(TopicName::new(good).unwrap().to_string(), good);
        }
    }
}
