//! What a lane counts between two looks of its driver.

use super::pressure::Pressure;

/// Events of a lane since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// How often the pressure rose to soft.
    pub soft: u64,
    /// How often the pressure rose to hard.
    pub hard: u64,
    /// Events that came back and are sent again: refused, unreached, or after a pause.
    pub retries: u64,
    /// Events that were removed from the topic before they were routed, of which the gateway knows
    /// now.
    pub lost: u64,
}

impl LaneCounters {
    /// The pressure changed.
    pub(super) fn note(&mut self, before: Pressure, after: Pressure) {
        self.soft += u64::from(before < Pressure::Soft && after >= Pressure::Soft);
        self.hard += u64::from(before < Pressure::Hard && after >= Pressure::Hard);
    }
}
