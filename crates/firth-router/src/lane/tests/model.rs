//! A model of the lane: random schedules of refusals, lost answers, pauses and parking. After each
//! step the accounting balance, and a gateway sees the events of a document in order.

use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

#[derive(Clone, Debug)]
enum Step {
    Offer {
        key: u8,
        priority: u8,
        overflow: u8,
    },
    Poll,
    /// Which batch on its way, what happens to it, and what its answers are.
    Settle {
        which: prop::sample::Index,
        how: u8,
        answers: u64,
    },
    Wait(u16),
    Park(bool),
    /// This many events are gone before they were routed.
    Lose(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..5, 0_u8..3, 0_u8..3).prop_map(|(key, priority, overflow)| Step::Offer { key, priority, overflow }),
        4 => Just(Step::Poll),
        4 => (any::<prop::sample::Index>(), 0_u8..6, any::<u64>())
            .prop_map(|(which, how, answers)| Step::Settle { which, how, answers }),
        2 => (0_u16..500).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Park),
        1 => (1_u8..20).prop_map(Step::Lose),
    ]
}

/// A gateway that keeps the contract: it goes through a batch in order, and after a refusal refuses
/// the rest of that document.
#[derive(Default)]
struct Gateway {
    seen: HashSet<Position>,
    last: HashMap<Key, u64>,
    gaps: HashSet<Position>,
    lost: u64,
}

impl Gateway {
    fn receive(
        &mut self,
        batch: &Batch,
        refuses: impl Fn(usize) -> bool,
    ) -> Result<Vec<Answer>, TestCaseError> {
        let mut refused = HashSet::new();
        let mut answers = Vec::new();
        self.gaps.extend(batch.gap.iter().flat_map(Gap::positions));
        self.lost += batch.gap.as_ref().map_or(0, Gap::lost);
        for (place, item) in batch.items.iter().enumerate() {
            if refuses(place) || refused.contains(&item.key()) {
                refused.insert(item.key());
                answers.push(refuse());
                continue;
            }
            answers.push(Answer::Accepted);
            if self.seen.insert(item.position) {
                let last = self.last.entry(item.key()).or_default();
                prop_assert!(*last < item.position.seq, "event {} overtook {}", last, item.position.seq);
                *last = item.position.seq;
            }
        }
        Ok(answers)
    }
}

struct World {
    lane: Lane,
    gateway: Gateway,
    out: Vec<Batch>,
    taken: HashMap<Position, Priority>,
    released: HashMap<Position, ReleaseCause>,
    now: Instant,
    seq: u64,
    lost: u64,
}

const PRIORITIES: [Priority; 3] = Priority::ALL;
const POLICIES: [Overflow; 3] = [Overflow::Conflate, Overflow::Shed, Overflow::Keep];

impl World {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Offer { key, priority, overflow } => {
                self.seq += 1;
                let key = "k".repeat(usize::from(*key) + 1);
                let (priority, overflow) =
                    (PRIORITIES[usize::from(*priority)], POLICIES[usize::from(*overflow)]);
                let item = item(self.seq, &key, priority, overflow);
                let position = item.position;
                if self.lane.offer(item, self.now) == Offer::Taken {
                    self.taken.insert(position, priority);
                }
            }
            Step::Poll => self.out.extend(self.lane.poll(self.now)),
            Step::Settle { which, how, answers } if !self.out.is_empty() => {
                let batch = self.out.remove(which.index(self.out.len()));
                let outcome = match how {
                    0 => Outcome::Unreached,
                    1 => {
                        // It arrived, but the answer was lost.
                        self.gateway.receive(&batch, |_| false)?;
                        Outcome::Unreached
                    }
                    2 => Outcome::Busy(None),
                    3 => Outcome::Answered(
                        self.gateway.receive(&batch, |place| answers >> (place % 64) & 1 == 1)?,
                    ),
                    4 => {
                        let mut some =
                            self.gateway.receive(&batch, |place| place >= batch.items.len() / 2)?;
                        some.truncate(batch.items.len() / 2);
                        Outcome::Answered(some)
                    }
                    _ => {
                        self.gateway.receive(&batch, |_| false)?;
                        Outcome::Accepted
                    }
                };
                let released = self.lane.settle(batch.id, outcome.clone(), self.now, 0.5);
                self.note(released)?;
                prop_assert_eq!(self.lane.settle(batch.id, outcome, self.now, 0.5), [], "settled twice");
            }
            Step::Settle { .. } => {}
            Step::Wait(millis) => self.now += Duration::from_millis(u64::from(*millis)),
            Step::Park(odd) => {
                let released = self.lane.park(u32::from(*odd), 0);
                self.note(released)?;
            }
            Step::Lose(count) => {
                self.lost += u64::from(*count);
                self.lane.lose(u32::from(count % 2), u64::from(*count), self.now);
            }
        }
        self.check()
    }

    fn note(&mut self, released: Vec<Released>) -> Result<(), TestCaseError> {
        for one in released {
            let priority = self.taken[&one.position];
            match one.cause {
                ReleaseCause::Delivered => prop_assert!(self.gateway.seen.contains(&one.position)),
                ReleaseCause::Gapped => {
                    prop_assert!(self.gateway.gaps.contains(&one.position), "nobody was told");
                    prop_assert_eq!(priority, Priority::Low);
                }
                ReleaseCause::Dead(_) | ReleaseCause::Parked => {}
            }
            prop_assert!(self.released.insert(one.position, one.cause).is_none(), "released twice");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut sum = LaneAccounting::default();
        for (_, accounting) in self.lane.all_accounting() {
            prop_assert!(accounting.balance(), "{:?}", accounting);
            sum = sum.plus(accounting);
        }
        prop_assert_eq!(sum.taken, self.taken.len() as u64 + self.lost);
        let gapped = self.released.values().filter(|cause| **cause == ReleaseCause::Gapped).count() as u64;
        let told = sum.gapped - gapped;
        prop_assert!(told <= self.lost && told <= self.gateway.lost, "nobody was told");
        prop_assert_eq!(sum.held, self.lane.held() as u64 + self.lost - told);
        prop_assert_eq!(self.taken.len() - self.released.len(), self.lane.held());
        prop_assert!(self.lane.held() <= 20);
        let (out, _) = self.lane.in_flight();
        prop_assert_eq!(out, self.out.len());
        prop_assert!(out <= 4);
        prop_assert!(self.out.iter().all(|batch| batch.items.len() <= 4));
        Ok(())
    }

    /// A gateway that is well again gets everything that is left, woken by nothing but the lane's
    /// own clock.
    fn finish(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..1000 {
            while let Some(batch) = self.lane.poll(self.now) {
                self.out.push(batch);
            }
            self.check()?;
            let Some(batch) = self.out.pop() else {
                match self.lane.wake(self.now) {
                    Some(wake) => self.now = self.now.max(wake),
                    None => break,
                }
                continue;
            };
            self.gateway.receive(&batch, |_| false)?;
            let released = self.lane.settle(batch.id, Outcome::Accepted, self.now, 0.5);
            self.note(released)?;
        }
        prop_assert_eq!(self.lane.held(), 0, "the lane fell asleep with {:?}", self.lane);
        prop_assert_eq!(self.lane.bytes, 0);
        prop_assert_eq!(self.released.len(), self.taken.len());
        prop_assert!(
            self.lane.all_accounting().all(|(_, accounting)| accounting.held == 0),
            "somebody was not told"
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn the_books_balance_and_order_holds_whatever_happens(steps in proptest::collection::vec(step(), 1..150)) {
        let mut world = World {
            lane: Lane::new(config()),
            gateway: Gateway::default(),
            out: Vec::new(),
            taken: HashMap::new(),
            released: HashMap::new(),
            now: Instant::now(),
            seq: 0,
            lost: 0,
        };
        for step in &steps {
            world.step(step)?;
        }
        world.finish()?;
    }
}
