//! The engine's clock: logical time (`crate::clock`) over the machine's wall clock.
//!
//! It expects what passed since the machine started, sleep included. So a wall clock that is set,
//! forward or back, changes no lease and no delay. The time that records show follows it slowly.
//!
//! It never goes back, not even over a restart: opening starts it after everything that is stored.
//! Files keep its offset, too, so that it goes on from there unless the machine started anew.

use super::step::Now;
#[cfg(feature = "embedded")]
use super::values::KeptClock;
#[cfg(feature = "embedded")]
use crate::clock::boot_id;
use crate::clock::{Expected, LogicalClock, SHRINK, STEP, boot_us};
use std::sync::Mutex;
use std::time::{Duration, Instant as RealInstant, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// How often the state of the clock is renewed, in µs.
const KEEP: u64 = 1_000_000;
/// How far the offset may be from the one that is stored, in µs.
#[cfg(feature = "embedded")]
const STORE: u64 = 1_000_000;
pub(super) struct Clock {
    start: Instant,
    real_start: RealInstant,
    state: Mutex<State>,
}

/// What the machine's clocks show, in µs.
#[derive(Clone, Copy)]
struct ClockReading {
    wall: u64,
    boot: u64,
}

struct State {
    clock: LogicalClock,
    /// When the clock was kept, by the time since the machine started.
    kept: u64,
    /// The newest time that was told.
    newest: u64,
    /// The offset that the store has.
    #[cfg_attr(not(feature = "embedded"), expect(dead_code, reason = "memory stores no clock"))]
    stored: i64,
}

impl Clock {
    /// A clock that starts now.
    pub(super) fn start() -> Self {
        Self::with(State::new(ClockReading::now(), 0))
    }

    /// A clock that goes on from what is stored, or starts now, but after `newest_us`.
    #[cfg(feature = "embedded")]
    pub(super) fn start_after(newest_us: u64, kept: Option<KeptClock>) -> Self {
        let now = ClockReading::now();
        let same_boot = boot_id();
        let stored = kept.map_or(0, |kept| kept.offset);
        let goes_on = kept.filter(|kept| same_boot == Some(kept.boot_id) && kept.boot <= now.boot);
        let state = match goes_on {
            Some(kept) => State::going_on(now, newest_us, kept),
            None => State::new(now, newest_us),
        };
        Self::with(State { stored, ..state })
    }

    fn with(state: State) -> Self {
        Self { start: Instant::now(), real_start: RealInstant::now(), state: Mutex::new(state) }
    }

    /// The clock as the store should have it, if that has another offset.
    #[cfg(feature = "embedded")]
    pub(super) fn to_store(&self) -> Option<KeptClock> {
        let state = self.state.lock().expect("nothing panics while it holds this lock");
        let LogicalClock { offset, last } = state.clock;
        let is_old = offset.abs_diff(state.stored) > STORE;
        is_old.then_some(KeptClock { boot_id: boot_id()?, boot: state.kept, offset, last })
    }

    #[cfg(feature = "embedded")]
    pub(super) fn was_stored(&self, kept: KeptClock) {
        self.state.lock().expect("nothing panics while it holds this lock").stored = kept.offset;
    }

    /// The time now. Reads tokio's clock, so call it from the caller's task.
    pub(super) fn now(&self) -> Now {
        // A test may have paused tokio's clock and moved it.
        let passed = micros(self.start.elapsed());
        let really = micros(self.real_start.elapsed());
        let moved = |us: u64| (us + passed).saturating_sub(really);
        let reading = ClockReading { wall: moved(wall_us()), boot: moved(boot_us()) };
        Now { us: self.state.lock().expect("nothing panics while it holds this lock").at(reading) }
    }
}

impl ClockReading {
    fn now() -> Self {
        Self { wall: wall_us(), boot: boot_us() }
    }
}

impl State {
    fn new(start: ClockReading, newest_us: u64) -> Self {
        let now = start.wall.max(newest_us + 1);
        Self { clock: LogicalClock::kept(start.wall, now), kept: start.boot, newest: now, stored: 0 }
    }

    /// The state of a clock that was kept by an earlier process.
    #[cfg(feature = "embedded")]
    fn going_on(start: ClockReading, newest_us: u64, kept: KeptClock) -> Self {
        let KeptClock { boot, offset, last, .. } = kept;
        let clock = LogicalClock { offset, last };
        let mut state = Self { clock, kept: boot, newest: 0, stored: offset };
        let now = state.at(start).max(newest_us + 1);
        Self { clock: LogicalClock::kept(start.wall, now), kept: start.boot, newest: now, stored: offset }
    }

    fn at(&mut self, ClockReading { wall, boot }: ClockReading) -> u64 {
        let passed = boot.saturating_sub(self.kept);
        let expected = Expected { us: self.clock.last + passed, slack: STEP + passed / u64::from(SHRINK) };
        let by_wall = self.clock.now(wall, Some(expected));
        // The clock has no other client that knows better.
        let stepped_back = by_wall + expected.slack < expected.us;
        let now = if stepped_back { expected.us } else { by_wall };
        let offset = LogicalClock::kept(wall, now).offset;
        let moved = offset.abs_diff(self.clock.offset);
        if moved > expected.slack || now > self.clock.last + KEEP {
            if moved > expected.slack {
                tracing::warn!(
                    ms = moved / 1000,
                    "the wall clock was set: leases and delays go on, the times of records follow slowly"
                );
            }
            self.clock = LogicalClock::kept(wall, now);
            self.kept = boot;
        }
        self.newest = self.newest.max(now);
        self.newest
    }
}

fn wall_us() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3600 * SECOND;
    const T: u64 = 1_800_000_000 * SECOND;

    /// A clock that started at `T`; times are told since then, with the wall clock off by seconds.
    struct World(State);

    impl World {
        fn new() -> Self {
            Self(State::new(ClockReading { wall: T, boot: 0 }, 0))
        }

        fn at(&mut self, passed: u64, off: i64) -> u64 {
            let wall = (T + passed).saturating_add_signed(off * 1_000_000);
            self.0.at(ClockReading { wall, boot: passed }).checked_sub(T).unwrap()
        }
    }

    #[test]
    fn q21_a_sleep_counts() {
        let mut world = World::new();
        assert_eq!(world.at(10 * SECOND, 0), 10 * SECOND);
        assert_eq!(world.at(8 * HOUR, 0), 8 * HOUR, "both clocks went on while the machine slept");
        assert_eq!(world.at(8 * HOUR + SECOND, 0), 8 * HOUR + SECOND);
    }

    #[test]
    fn q21_setting_the_clock_neither_lengthens_nor_shortens_a_lease() {
        for off in [-3600, 3600, -86_400 * 365] {
            for idle in [SECOND, 15 * SECOND, 2 * HOUR] {
                let mut world = World::new();
                let start = world.at(SECOND, 0);
                let now = world.at(SECOND + idle, off);
                assert!(now.abs_diff(start + idle) <= STEP, "{off} {idle}: {now}");
                let later = world.at(16 * SECOND + idle, off);
                assert!(later.abs_diff(now + 15 * SECOND) <= SECOND, "{off} {idle}: {later}");
                let back = world.at(31 * SECOND + idle, 0);
                assert!(back.abs_diff(later + 15 * SECOND) <= SECOND, "{off} {idle}: {back}");
            }
        }
    }

    #[test]
    fn q21_a_clock_that_was_wrong_at_the_start_becomes_right() {
        let mut world = World::new();
        let mut now = 0;
        for second in 1..=21 * 3600 {
            let next = world.at(second * SECOND, 3600);
            assert!(next > now, "it never stands still");
            now = next;
        }
        assert_eq!(now, 22 * HOUR);
        let mut never_set = State::new(ClockReading { wall: 0, boot: 0 }, 0);
        assert_eq!(never_set.at(ClockReading { wall: T, boot: SECOND }), T);
    }

    #[cfg(feature = "embedded")]
    #[test]
    fn q10_a_restart_goes_on_from_the_offset_that_was_kept() {
        for off in [3600, -3600] {
            let mut world = World::new();
            assert_eq!(world.at(10 * SECOND, off), 10 * SECOND);
            let LogicalClock { offset, last } = world.0.clock;
            let kept = KeptClock { boot_id: 1, boot: world.0.kept, offset, last };
            let wall = |passed: u64| (T + passed).saturating_add_signed(off * 1_000_000);
            let start = ClockReading { wall: wall(40 * SECOND), boot: 40 * SECOND };
            let mut again = State::going_on(start, T + 9 * SECOND, kept);
            let now = again.at(start) - T;
            assert!(now.abs_diff(40 * SECOND) <= 2 * SECOND, "{off}: {now}");
            let later = again.at(ClockReading { wall: wall(50 * SECOND), boot: 50 * SECOND }) - T;
            assert!(later.abs_diff(now + 10 * SECOND) <= SECOND, "{off}: {later}");
            let late = State::going_on(start, T + HOUR, kept).at(start);
            assert!(late > T + HOUR, "it starts after what is stored");
        }
    }

    #[test]
    fn q21_the_clock_never_goes_back() {
        let mut state = State::new(ClockReading { wall: T, boot: 0 }, T + HOUR);
        let start = state.at(ClockReading { wall: T, boot: 0 });
        assert!(start > T + HOUR, "it starts after what is stored");
        let little = state.at(ClockReading { wall: T - SECOND, boot: SECOND });
        assert!(little >= start && state.at(ClockReading { wall: T, boot: SECOND }) >= little);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_follows_no_wall_clock() {
        let clock = Clock::start();
        let start = clock.now().us;
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!((clock.now().us - start).abs_diff(60_000_000) < 20_000);
    }
}
