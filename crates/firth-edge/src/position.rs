//! [`Position`]: a place in what a tenant's clients can see, for resuming. Opaque to clients: `epoch:offset`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The place behind an event. Positions of different epochs cannot be compared: another process, or another life of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Position {
    /// Which journal counts; random.
    pub epoch: u64,
    /// How many events it has seen.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.epoch, self.offset)
    }
}

/// The text is not a position that a gateway gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a position is the text that came as `at`, unchanged")]
pub struct NotAPosition;

impl FromStr for Position {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        let (epoch, offset) = text.split_once(':').ok_or(NotAPosition)?;
        let plain = |text: &str| !text.starts_with('+');
        if epoch.len() != 16 || !plain(epoch) || !plain(offset) {
            return Err(NotAPosition);
        }
        let epoch = u64::from_str_radix(epoch, 16).map_err(|_| NotAPosition)?;
        Ok(Self { epoch, offset: offset.parse().map_err(|_| NotAPosition)? })
    }
}

impl TryFrom<String> for Position {
    type Error = NotAPosition;

    fn try_from(text: String) -> Result<Self, NotAPosition> {
        text.parse()
    }
}

impl From<Position> for String {
    fn from(position: Position) -> Self {
        position.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_position_reads_back_as_it_was_written(epoch in any::<u64>(), offset in any::<u64>()) {
            let position = Position { epoch, offset };
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }

        #[test]
        fn any_other_text_is_refused_without_a_panic(text in ".{0,30}") {
            if let Ok(position) = text.parse::<Position>() {
                prop_assert_eq!(position.to_string().to_ascii_lowercase().len(), 17 + position.offset.to_string().len());
            }
        }
    }
}
