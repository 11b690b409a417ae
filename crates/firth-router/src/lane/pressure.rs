//! The level of pressure of a lane, with hysteresis: a level is left only when the lane is 10
//! percent emptier than where it began.

use crate::config::Backpressure;

/// How full a lane is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    /// All is well.
    #[default]
    None,
    /// Low priority may be conflated or left out.
    Soft,
    /// The gateway should be fed from the topic.
    Hard,
}

impl Pressure {
    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }

    /// The next level, by events and bytes held. No more than `reach` events can ever be held.
    pub(super) fn after(self, limits: &Backpressure, (events, reach): (usize, usize), bytes: usize) -> Self {
        let percent = |held: usize, limit: usize| held as f64 * 100.0 / limit.max(1) as f64;
        let full = percent(events, limits.queue_size.min(reach)).max(percent(bytes, limits.queue_bytes));
        let soft = f64::from(limits.soft_watermark);
        let hard = f64::from(limits.hard_watermark);
        let slack = |reached: bool| if reached { 10.0 } else { 0.0 };
        if full >= hard - slack(self >= Self::Hard) {
            Self::Hard
        } else if full >= soft - slack(self >= Self::Soft) {
            Self::Soft
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RoutingConfig;

    #[test]
    fn levels_begin_at_the_marks_and_end_below_them() {
        let limits =
            Backpressure { queue_size: 100, queue_bytes: 1000, ..RoutingConfig::default().backpressure };
        let mut level = Pressure::None;
        let mut at = |events, bytes| {
            level = level.after(&limits, (events, usize::MAX), bytes);
            level
        };
        assert_eq!(at(69, 0), Pressure::None);
        assert_eq!(at(70, 0), Pressure::Soft);
        assert_eq!(at(60, 0), Pressure::Soft);
        assert_eq!(at(59, 0), Pressure::None);
        assert_eq!(at(0, 700), Pressure::Soft, "bytes count as well");
        assert_eq!(at(0, 900), Pressure::Hard);
        assert_eq!(at(81, 0), Pressure::Hard);
        assert_eq!(at(79, 0), Pressure::Soft);
        assert_eq!(at(10, 0), Pressure::None);
    }

    #[test]
    fn rte26_a_queue_that_can_never_be_full_is_measured_by_what_it_can_hold() {
        let limits = RoutingConfig::default().backpressure;
        let at = |events| Pressure::None.after(&limits, (events, 500), 0);
        assert_eq!([at(349), at(350), at(450)], [Pressure::None, Pressure::Soft, Pressure::Hard]);
    }
}
