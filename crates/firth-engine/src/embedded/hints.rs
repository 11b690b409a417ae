//! Hints inside this process: one counter of changes per key that has listeners. If a key has lost
//! its last listener, the next touch removes it from the table.

use crate::watch::{Hint, HintKey};
use std::collections::HashMap;
use std::sync::Mutex;
use tokio::sync::watch;

#[derive(Default)]
pub(super) struct HintTable(Mutex<HashMap<HintKey, watch::Sender<u64>>>);

impl HintTable {
    pub(super) fn listen(&self, key: HintKey) -> Hint {
        let mut table = self.0.lock().expect("nothing panics while it holds this lock");
        let sender = table.entry(key).or_insert_with(|| watch::Sender::new(0));
        Hint::new(sender.subscribe(), None)
    }

    pub(super) fn touch(&self, keys: impl IntoIterator<Item = HintKey>) {
        let mut table = self.0.lock().expect("nothing panics while it holds this lock");
        for key in keys {
            if let Some(sender) = table.get(&key) {
                if sender.receiver_count() == 0 {
                    table.remove(&key);
                } else {
                    sender.send_modify(|changes| *changes += 1);
                }
            }
        }
    }
}
