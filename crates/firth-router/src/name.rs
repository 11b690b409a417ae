//! Checked names: tenants, gateways, subscriptions. They become parts of catalog names, groups,
//! headers and NATS subjects, so their alphabet is small. They travel with every event, so that
//! short ones lie in place: cloning them touches no memory of another.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use std::borrow::Borrow;
use std::fmt;

macro_rules! name {
    ($name:ident, $what:literal, $max:literal, $marks:literal, $doc:literal) => {
        #[doc = $doc]
        #[doc = ""]
        #[doc = concat!("1 to ", $max, " characters of `A-Z a-z 0-9 ", $marks, "`. Cloning is cheap.")]
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(SmolStr);

        impl $name {
            /// Checks the name.
            pub fn new(name: impl AsRef<str>) -> Result<Self> {
                check($what, $max, $marks, name.as_ref())?;
                Ok(Self(name.as_ref().into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(name: String) -> Result<Self> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.into()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
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
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

name!(
    Tenant,
    "a tenant",
    128,
    "-_:@",
    "Whose documents and subscriptions they are. Tenants never see each other."
);
impl Tenant {
    /// Stands for every tenant. No tenant has this name, because its character is none of a name's.
    pub(crate) const fn any() -> Self {
        Self(SmolStr::new_static("*"))
    }

    /// Whether it stands for every tenant, as in a control event without one.
    pub fn is_any(&self) -> bool {
        self.as_str() == "*"
    }
}

name!(GatewayId, "a gateway's id", 64, "-_", "A receiver of events.");
name!(SubscriptionId, "a subscription's id", 128, "-_:@", "One subscription of one client.");

fn check(what: &str, max: usize, marks: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > max {
        let error = Error::invalid(format!("{what} has {} bytes; give 1 to {max}", name.len()));
        return Err(error.with_limit(max as u64));
    }
    if name.bytes().all(|b| b.is_ascii_alphanumeric() || marks.as_bytes().contains(&b)) {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} contains a character that is none of A-Z a-z 0-9 {marks}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_break_out_of_a_subject_or_a_path_are_refused() {
        for bad in ["", "a.b", "a/b", "a*", "a>", "a b", "ü", "{x}", "a\n", "a:b"] {
            assert!(GatewayId::new(bad).is_err(), "{bad:?}");
        }
        assert!(Tenant::new("x".repeat(129)).is_err());
        assert_eq!(Tenant::new("acme-1:eu@x_y").unwrap().as_str(), "acme-1:eu@x_y");
    }
}
