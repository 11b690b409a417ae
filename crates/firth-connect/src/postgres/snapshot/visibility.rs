//! [`Visibility`]: which transactions a query saw. Pure.
//!
//! **Why not by place in the log.** A transaction stands in the log before others see it: while it
//! waits for a replica, the change stream has it and a query does not.

use crate::error::{Error, Result};
use std::str::FromStr;

/// PostgreSQL's `pg_snapshot`: `xmin:xmax:running,…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// All transactions before it are over.
    pub(crate) oldest: u64,
    /// No transaction from here on was seen.
    pub(crate) end: u64,
    /// Those in between that were not over, in order.
    running: Vec<u64>,
}

impl Visibility {
    /// Whether the query saw a committed transaction of this number, as the stream names it.
    pub fn sees(&self, xid: u32) -> bool {
        // The stream leaves out how often the numbers began anew: it is the nearest such one.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "numbers are compared modulo 2^32"
        )]
        let distance = i64::from(xid.wrapping_sub(self.end as u32) as i32);
        let whole = self.end.saturating_add_signed(distance);
        whole < self.oldest || (whole < self.end && self.running.binary_search(&whole).is_err())
    }
}

impl FromStr for Visibility {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let odd = || Error::corrupt("the server describes a snapshot in an unknown form");
        let number = |text: &str| text.parse::<u64>().map_err(|_| odd());
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or_else(odd);
        let (oldest, end, running) = (number(part()?)?, number(part()?)?, part()?);
        let running = running.split(',').filter(|text| !text.is_empty()).map(number);
        Ok(Self { oldest, end, running: running.collect::<Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_or_began_later_was_not_seen() {
        let visibility: Visibility = "10:20:10,14".parse().unwrap();
        let seen: Vec<u32> = (8..22).filter(|xid| visibility.sees(*xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 13, 15, 16, 17, 18, 19]);
        let none: Visibility = "7:7:".parse().unwrap();
        assert!(none.sees(6) && !none.sees(7));
        assert!("7:7".parse::<Visibility>().is_err() && "a:7:".parse::<Visibility>().is_err());
    }

    #[test]
    fn numbers_that_began_anew_are_told_apart() {
        let wrapped: Visibility = format!("{}:{}:", (3_u64 << 32) + 5, (3_u64 << 32) + 5).parse().unwrap();
        assert!(wrapped.sees(4) && wrapped.sees(u32::MAX) && !wrapped.sees(5));
    }
}
