//! How often something happened in the last 24 hours (pure: the time is a parameter).

const HOUR_MS: u64 = 3_600_000;
const HOURS: u64 = 24;

/// A count per hour, of the last 24 hours that have begun.
#[derive(Default)]
pub(super) struct DayCount {
    hours: [u64; HOURS as usize],
    /// The newest hour that was counted in, from 1970.
    newest: u64,
}

impl DayCount {
    /// Counts events that happened at this time.
    pub(super) fn add(&mut self, at_ms: u64, count: u64) {
        self.pass_to(at_ms);
        self.hours[slot(self.newest)] += count;
    }

    /// How many happened in the last 24 hours.
    pub(super) fn sum(&self) -> u64 {
        self.hours.iter().sum()
    }

    /// Forgets the hours that are over by now.
    pub(super) fn pass_to(&mut self, now_ms: u64) {
        let hour = now_ms / HOUR_MS;
        for passed in (self.newest + 1..=hour).rev().take(HOURS as usize) {
            self.hours[slot(passed)] = 0;
        }
        self.newest = hour.max(self.newest);
    }
}

fn slot(hour: u64) -> usize {
    usize::try_from(hour % HOURS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_counts_for_a_day_and_no_longer() {
        let mut day = DayCount::default();
        let start = 500_000 * HOUR_MS;
        day.add(start, 3);
        day.add(start + HOUR_MS, 4);
        assert_eq!(day.sum(), 7);
        day.add(start, 1);
        assert_eq!(day.sum(), 8, "a clock that steps back counts in the newest hour");
        day.pass_to(start + 23 * HOUR_MS);
        assert_eq!(day.sum(), 8);
        day.pass_to(start + 24 * HOUR_MS);
        assert_eq!(day.sum(), 5);
        day.add(start + 1000 * HOUR_MS, 2);
        assert_eq!(day.sum(), 2);
    }
}
