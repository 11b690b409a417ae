//! [`Copies`]: a bar for each table that is being copied, on stderr where that is a terminal.

use crate::cli::progress;
use crate::wire::SourceShown;
use indicatif::{MultiProgress, ProgressBar};
use std::collections::BTreeMap;

/// The bars, by source and table.
#[derive(Default)]
pub(super) struct Copies {
    drawn: MultiProgress,
    bars: BTreeMap<(String, String), ProgressBar>,
}

impl Copies {
    /// Draws how far the copies of a source are.
    pub(super) fn update(&mut self, source: &SourceShown) {
        for copy in &source.snapshots {
            let place = (source.name.clone(), copy.table.clone());
            // The estimate may be too low; a finished copy is whole.
            let length = copy.estimate.unwrap_or(0).max(copy.rows);
            let bar = self.bars.entry(place).or_insert_with(|| {
                let bar = self.drawn.add(progress::steps("", length));
                bar.set_prefix(copy.table.clone());
                bar
            });
            bar.set_length(if copy.done { copy.rows } else { length });
            bar.set_position(copy.rows);
            if copy.done && !bar.is_finished() {
                bar.finish_with_message("copied");
            }
        }
    }

    /// Writes beside the bars.
    pub(super) fn beside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.drawn.suspend(write)
    }
}
