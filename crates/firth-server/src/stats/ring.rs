//! A ring of samples at fixed steps of time (pure: the time is a parameter).
//!
//! A slot stands for one step. A step without a sample stays empty, so that a gap is seen as such.

/// Samples of `N` columns: the last `slots.len()` steps.
pub(super) struct SampleRing<const N: usize> {
    step_ms: u64,
    slots: Vec<[f32; N]>,
    /// The newest step that was written, counted from 1970; `None` before the first.
    newest: Option<u64>,
    /// How many samples each column of the newest slot is the mean of.
    counts: [u16; N],
}

/// An empty slot.
const fn empty<const N: usize>() -> [f32; N] {
    [f32::NAN; N]
}

impl<const N: usize> SampleRing<N> {
    pub(super) fn new(step_ms: u64, slots: usize) -> Self {
        Self { step_ms, slots: vec![empty(); slots.max(1)], newest: None, counts: [0; N] }
    }

    /// Takes in a sample; a slot that has some already becomes their mean. NaN is no sample of its
    /// column. A sample that is older than the newest step is left out.
    pub(super) fn put(&mut self, at_ms: u64, sample: [f32; N]) {
        let step = at_ms / self.step_ms;
        let len = self.slots.len() as u64;
        match self.newest {
            Some(newest) if step < newest => return,
            Some(newest) if step == newest => {}
            newest => {
                let skipped = newest.map_or(len, |newest| step - newest).min(len);
                for passed in (step + 1).saturating_sub(skipped)..=step {
                    let slot = self.slot(passed);
                    self.slots[slot] = empty();
                }
                self.newest = Some(step);
                self.counts = [0; N];
            }
        }
        let slot = self.slot(step);
        let columns = self.slots[slot].iter_mut().zip(&mut self.counts);
        for ((mean, count), value) in columns.zip(sample).filter(|(_, value)| !value.is_nan()) {
            *count = count.saturating_add(1);
            *mean = if mean.is_nan() { value } else { *mean + (value - *mean) / f32::from(*count) };
        }
    }

    /// The samples of steps that begin after `after_ms`, oldest first, and when the first of them
    /// begins.
    pub(super) fn since(&self, after_ms: u64) -> (u64, Vec<[f32; N]>) {
        let Some(newest) = self.newest else { return (after_ms, Vec::new()) };
        let oldest = (newest + 1).saturating_sub(self.slots.len() as u64);
        let first = oldest.max((after_ms / self.step_ms).saturating_add(u64::from(after_ms > 0)));
        let samples = (first..=newest).map(|step| self.slots[self.slot(step)]).collect();
        (first.saturating_mul(self.step_ms), samples)
    }

    /// Heap memory that it takes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<[f32; N]>()
    }

    fn slot(&self, step: u64) -> usize {
        usize::try_from(step % self.slots.len() as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(ring: &SampleRing<1>, after_ms: u64) -> (u64, Vec<Option<f32>>) {
        let (from, samples) = ring.since(after_ms);
        (from, samples.iter().map(|[value]| (!value.is_nan()).then_some(*value)).collect())
    }

    #[test]
    fn the_ring_keeps_the_last_steps_and_shows_gaps() {
        let mut ring = SampleRing::<1>::new(1000, 4);
        assert_eq!(column(&ring, 0), (0, vec![]));
        ring.put(10_500, [1.0]);
        ring.put(12_500, [3.0]);
        let all = column(&ring, 0);
        assert_eq!(all, (9000, vec![None, Some(1.0), None, Some(3.0)]));
        ring.put(14_500, [5.0]);
        assert_eq!(column(&ring, 0), (11_000, vec![None, Some(3.0), None, Some(5.0)]));
        ring.put(900_000, [9.0]);
        assert_eq!(column(&ring, 0), (897_000, vec![None, None, None, Some(9.0)]));
    }

    #[test]
    fn only_what_is_new_is_given_to_a_reader_that_has_the_rest() {
        let mut ring = SampleRing::<1>::new(1000, 10);
        (0..5_u8).for_each(|second| ring.put(u64::from(second) * 1000 + 50_000, [f32::from(second)]));
        assert_eq!(column(&ring, 52_000), (53_000, vec![Some(3.0), Some(4.0)]));
        assert_eq!(column(&ring, 54_000), (55_000, vec![]));
        assert_eq!(column(&ring, u64::MAX).1, vec![]);
    }

    #[test]
    fn a_slot_with_several_samples_is_their_mean_and_time_never_goes_back() {
        let mut ring = SampleRing::<1>::new(60_000, 3);
        for (at, value) in [(60_000, 1.0), (80_000, 2.0), (119_999, 6.0), (10_000, 100.0)] {
            ring.put(at, [value]);
        }
        assert_eq!(column(&ring, 60_000 - 1).1, vec![Some(3.0)]);
        for (at, value) in [(120_000, f32::NAN), (130_000, 4.0), (140_000, f32::NAN), (150_000, 8.0)] {
            ring.put(at, [value]);
        }
        assert_eq!(column(&ring, 120_000 - 1).1, vec![Some(6.0)], "a column without a value");
    }
}
