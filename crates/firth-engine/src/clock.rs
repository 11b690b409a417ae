//! Logical time: a wall clock plus an offset that takes back the clock's steps.
//!
//! Leases, retries, delays and rests are durations. They must not end early or late because an
//! operator, NTP or a failover sets the wall clock. The rule below is the same for the embedded
//! engine and for Redis, where it is written in `redis/lua/lib/clock.lua`.
//!
//! **How a step is seen.** A client expects a time: the last one that it was told, plus what passed
//! on its own clock since ([`Sample`]). If the wall clock says something else, the wall clock
//! stepped, and logical time goes on from what is expected. Without an expectation only a step back
//! is seen: logical time never goes back behind the last one that was kept.
//!
//! **Why the offset shrinks.** Ids of records show logical time. After a wrong clock was corrected,
//! logical time runs 5 % faster or slower until it shows the right time again.

use std::time::Duration;

/// Differences up to this are no step, in µs.
pub(crate) const STEP: u64 = 2_000_000;
/// An expectation further ahead of the last kept time than this is not believed, in µs: units in
/// use keep their time every 30 s.
const TRUST: u64 = 60_000_000;
/// A clock that steps further ahead than this was never set before: logical time follows it.
const FAR: u64 = 30 * 24 * 3_600_000_000;
/// The part of the passed time by which the offset shrinks.
pub(crate) const SHRINK: u32 = 20;
/// A client's expectation counts once it has known the unit for this long. Until then the clients
/// that knew it before a step have taken the step back.
#[cfg(any(test, feature = "redis"))]
const KNOWN: u64 = 10_000_000;

/// A logical clock; all times are in µs. One that was never kept shows the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogicalClock {
    /// What is added to the wall clock.
    pub(crate) offset: i64,
    /// The last logical time that was kept.
    pub(crate) last: u64,
}

/// What a client thinks that the time is, give or take `slack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) us: u64,
    pub(crate) slack: u64,
}

impl LogicalClock {
    /// The logical time when the wall clock shows `wall`.
    pub(crate) fn now(self, wall: u64, expected: Option<Expected>) -> u64 {
        let now = self.shrunk(wall);
        // A client behind what was kept is refuted: it was paused, or its clock stood still.
        let expected = expected.filter(|expected| expected.us + expected.slack >= self.last);
        let reference = expected.map_or(self.last, |expected| self.last.max(expected.us));
        if let Some(expected) = expected
            && now > reference + expected.slack
        {
            return if now - reference < FAR { reference } else { reference.max(wall) };
        }
        let believed = expected.filter(|expected| expected.us <= self.last + TRUST);
        match believed {
            Some(Expected { us, slack }) if us > self.last && now + slack < us => us,
            _ if now + STEP < self.last => self.last,
            _ => now,
        }
    }

    /// The clock after `now` was told at `wall`.
    pub(crate) fn kept(wall: u64, now: u64) -> Self {
        Self { offset: now.cast_signed().wrapping_sub(wall.cast_signed()), last: now }
    }

    /// The wall clock with the offset as it has become.
    fn shrunk(self, wall: u64) -> u64 {
        let now = wall.saturating_add_signed(self.offset);
        let most = (now.saturating_sub(self.last) / u64::from(SHRINK)).min(self.offset.unsigned_abs());
        if self.offset > 0 { now - most } else { now + most }
    }
}

/// A time that a unit told, and when by the client's clock; all times are in µs.
#[cfg(any(test, feature = "redis"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    told: u64,
    sent: u64,
    received: u64,
    /// Since when the unit's time goes on as this client expects.
    since: u64,
}

#[cfg(any(test, feature = "redis"))]
impl Sample {
    /// A first sample: the request was sent and answered at these times.
    pub(crate) fn new(told: u64, sent: u64, received: u64) -> Self {
        Self { told, sent, received, since: sent }
    }

    /// What is expected at `now`, once the unit is known for long enough.
    pub(crate) fn expected(&self, now: u64) -> Option<Expected> {
        (now.saturating_sub(self.since) >= KNOWN).then(|| self.at(now))
    }

    fn at(&self, now: u64) -> Expected {
        let uncertain = self.received.saturating_sub(self.sent) / 2;
        let passed = now.saturating_sub(self.sent + uncertain);
        Expected { us: self.told + passed, slack: STEP + uncertain + passed / u64::from(SHRINK) }
    }

    /// The sample to go by after another one. `binding`: the unit told it after it had heard what
    /// this client expects, so it is right even if it is another time.
    pub(crate) fn then(self, next: Self, binding: bool) -> Self {
        let before = self.at(next.received);
        let after = next.at(next.received);
        if before.us.abs_diff(after.us) > before.slack + after.slack - STEP {
            return if binding { next } else { self };
        }
        // A slow answer says less than what is known from a quick one.
        if after.slack <= before.slack { Self { since: self.since, ..next } } else { self }
    }
}

/// Time since the machine started, also while it slept.
pub(crate) fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec);
        let nanos = u32::try_from(time.tv_nsec);
        Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
    }
    // Apple's goes on during sleep, unlike the clock of `Instant`.
    #[cfg(target_vendor = "apple")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec);
        let nanos = u32::try_from(time.tv_nsec);
        Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    {
        static START: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        START.elapsed()
    }
}

/// What tells this start of the machine from all others, where the system says so.
#[cfg(feature = "embedded")]
pub(crate) fn boot_id() -> Option<u128> {
    static ID: std::sync::LazyLock<Option<u128>> = std::sync::LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    });
    *ID
}

/// As [`since_boot`], in µs.
pub(crate) fn boot_us() -> u64 {
    u64::try_from(since_boot().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3600 * SECOND;
    const T: u64 = 1_800_000_000 * SECOND;

    fn expect(us: u64) -> Option<Expected> {
        Some(Expected { us, slack: STEP })
    }

    #[test]
    fn q10_a_clock_without_a_step_is_followed() {
        let clock = LogicalClock { offset: 0, last: T };
        for passed in [0, SECOND, HOUR, 1000 * HOUR] {
            assert_eq!(clock.now(T + passed, None), T + passed);
            assert_eq!(clock.now(T + passed, expect(T + passed)), T + passed);
        }
        assert_eq!(LogicalClock::default().now(T, None), T, "one that was never kept");
    }

    #[test]
    fn q10_a_step_is_taken_back_and_so_is_the_way_back() {
        for (there, back) in [(T + HOUR, T), (T - HOUR, T)] {
            let clock = LogicalClock { offset: 0, last: T };
            let now = clock.now(there + 10 * SECOND, expect(T + 10 * SECOND));
            assert_eq!(now, T + 10 * SECOND);
            let clock = LogicalClock::kept(there + 10 * SECOND, now);
            let now = clock.now(back + 20 * SECOND, expect(T + 20 * SECOND));
            assert_eq!(now, T + 20 * SECOND);
            assert_eq!(LogicalClock::kept(back + 20 * SECOND, now).offset, 0);
        }
    }

    #[test]
    fn q10_a_step_back_is_seen_without_an_expectation() {
        let clock = LogicalClock { offset: 0, last: T };
        assert_eq!(clock.now(T - HOUR, None), T);
        assert_eq!(
            LogicalClock::kept(T - HOUR, T).now(T - HOUR + SECOND, None),
            T + SECOND - SECOND / u64::from(SHRINK)
        );
        assert_eq!(clock.now(T - SECOND, None), T - SECOND, "no step");
    }

    #[test]
    fn q10_a_client_that_was_paused_is_refuted_by_the_others() {
        let clock = LogicalClock { offset: 0, last: T };
        assert_eq!(clock.now(T + SECOND, expect(T - HOUR)), T + SECOND);
        assert_eq!(clock.now(T + SECOND, expect(T + HOUR)), T + SECOND, "and one with a wrong clock");
        for passed in [3, 25, 29] {
            let now = T + passed * SECOND;
            assert_eq!(clock.now(now, expect(T - HOUR)), now, "it does not turn the time back either");
        }
    }

    #[test]
    fn q10_the_offset_shrinks_slowly() {
        let clock = LogicalClock::kept(T + HOUR, T);
        let day = 24 * HOUR;
        assert_eq!(clock.now(T + HOUR + day, None), T + HOUR + day);
        assert_eq!(clock.now(T + HOUR + HOUR, None), T + HOUR + HOUR / u64::from(SHRINK));
    }

    #[test]
    fn q10_a_lease_lasts_as_long_as_its_holder_counts_on_it() {
        let ttl = Duration::from_secs(15);
        let valid = u64::try_from(crate::hold::valid_for(ttl).as_micros()).unwrap();
        for stepped in [HOUR, 30 * SECOND, 3 * SECOND] {
            let mut clock = LogicalClock::kept(T + stepped, T);
            // However often the unit keeps its clock while the offset shrinks.
            for parts in [1, 3, 100] {
                for n in 1..=parts {
                    let wall = T + stepped + valid * n / parts;
                    clock = LogicalClock::kept(wall, clock.now(wall, None));
                }
                assert!(clock.last - T < 15 * SECOND, "{stepped} {parts}: {}", clock.last - T);
                clock = LogicalClock::kept(T + stepped, T);
            }
        }
    }

    #[test]
    fn q10_a_clock_that_was_never_set_is_followed_when_it_is() {
        let clock = LogicalClock { offset: 0, last: 10 * SECOND };
        assert_eq!(clock.now(T, expect(20 * SECOND)), T);
    }

    #[test]
    fn q10_a_slow_answer_neither_moves_the_time_for_long_nor_hides_what_is_known() {
        let known = Sample { since: 0, ..Sample::new(T, 20 * SECOND, 20 * SECOND) };
        let clock = LogicalClock { offset: 0, last: T };
        // The request waits for ten seconds on its way: that looks like a step.
        let told = clock.now(T + 15 * SECOND, known.expected(25 * SECOND));
        assert_eq!(told, T + 5 * SECOND);
        let clock = LogicalClock::kept(T + 15 * SECOND, told);
        let known = known.then(Sample::new(told, 25 * SECOND, 35 * SECOND), true);
        // The next one puts it right.
        assert_eq!(clock.now(T + 16 * SECOND, known.expected(36 * SECOND)), T + 16 * SECOND);
    }

    #[test]
    fn q10_a_client_has_no_say_before_it_knows_the_unit() {
        let sample = Sample::new(T, 0, 10);
        assert_eq!(sample.expected(9 * SECOND), None);
        let sample = sample.then(Sample::new(T + 9 * SECOND, 9 * SECOND, 9 * SECOND), true);
        assert!(sample.expected(11 * SECOND).is_some());
        let stepped = Sample::new(T + HOUR, 12 * SECOND, 12 * SECOND);
        assert_eq!(sample.then(stepped, false), sample, "a look decides nothing");
        assert_eq!(sample.then(stepped, true).expected(13 * SECOND), None, "begins anew");
    }

    proptest! {
        #[test]
        fn q10_time_goes_on_over_any_steps(steps in prop::collection::vec((1..40u64, -7200..7200i64), 1..50)) {
            let mut clock = LogicalClock { offset: 0, last: T };
            let mut right = T;
            for (passed, off) in steps {
                right += passed * SECOND;
                let wall = right.saturating_add_signed(off * 1_000_000);
                let before = clock.last;
                let now = clock.now(wall, expect(before + passed * SECOND));
                let went = now.abs_diff(before);
                prop_assert!(went.abs_diff(passed * SECOND) <= STEP + passed * SECOND / u64::from(SHRINK));
                clock = LogicalClock::kept(wall, now);
            }
        }
    }
}
