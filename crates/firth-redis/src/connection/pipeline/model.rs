//! Random operations on a pipeline beside a plain model of it.
//!
//! Each request gets its own replies or one failure, the output holds exactly what may still be
//! sent, and in the end nothing is left.

use super::tests::frame;
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::task::Waker;

#[derive(Debug, Clone)]
enum ModelStep {
    Ask { replies: u32, patience: u64 },
    Take,
    Answer,
    Drop(usize),
    PickUp(usize),
    Wait(u64),
    Withdraw,
    Lose,
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        4 => (1..4u32, 1..60u64).prop_map(|(replies, patience)| ModelStep::Ask { replies, patience }),
        2 => Just(ModelStep::Take),
        6 => Just(ModelStep::Answer),
        2 => (0..8usize).prop_map(ModelStep::Drop),
        2 => (0..8usize).prop_map(ModelStep::PickUp),
        2 => (1..30u64).prop_map(ModelStep::Wait),
        1 => Just(ModelStep::Withdraw),
        1 => Just(ModelStep::Lose),
    ]
}

/// A request as the model knows it.
#[derive(Debug, Clone)]
struct ModelRequest {
    id: i64,
    /// Where its caller waits, if it still does.
    slot: Option<usize>,
    wanted: u32,
    answered: u32,
    deadline: u64,
    sent: bool,
    /// What the caller will find: `None` while it waits, else whether it may have been sent.
    failed: Option<bool>,
}

#[derive(Default)]
struct Model {
    /// In the order of the output; answered and failed ones leave.
    queue: VecDeque<ModelRequest>,
    /// Done, and not picked up yet.
    done: Vec<ModelRequest>,
    now: u64,
    next: i64,
    taken: u64,
    out: Vec<u8>,
}

impl Model {
    fn ask(&mut self, p: &mut Pipeline, replies: u32, patience: u64) {
        let id = self.next;
        let deadline = self.now + patience;
        self.next += 1;
        let start = self.taken + self.out.len() as u64;
        let meta = RequestMeta { replies, start, deadline, blocking: false, long: false };
        let slot = Some(p.push(meta, Waker::noop().clone()));
        self.out.extend(bytes(id));
        self.queue.push_back(ModelRequest {
            id,
            slot,
            wanted: replies,
            answered: 0,
            deadline,
            sent: false,
            failed: None,
        });
    }

    fn take(&mut self) {
        self.taken += self.out.len() as u64;
        self.out.clear();
        self.queue.iter_mut().for_each(|asked| asked.sent = true);
    }

    /// The server answers what it was asked first.
    fn answer(&mut self, p: &mut Pipeline) {
        let Some(asked) = self.queue.front_mut().filter(|asked| asked.sent) else {
            assert!(p.reply(frame(-1), self.taken).is_err(), "nobody has asked yet");
            return;
        };
        let number = asked.id * 10 + i64::from(asked.answered);
        asked.answered += 1;
        let woken = p.reply(frame(number), self.taken).expect("it was asked").is_some();
        let complete = asked.answered == asked.wanted;
        assert_eq!(woken, complete && asked.slot.is_some() && asked.failed.is_none());
        if complete {
            let asked = self.queue.pop_front().expect("it stands first");
            self.done.extend(Some(asked).filter(|a| a.slot.is_some() && a.failed.is_none()));
        }
    }

    fn expire(&mut self, p: &mut Pipeline) {
        let mut wake = Vec::new();
        p.expire(self.now, self.taken, &mut wake);
        let mut expected = 0;
        for asked in self.queue.iter_mut().filter(|a| a.failed.is_none() && a.deadline <= self.now) {
            asked.failed = Some(asked.sent);
            if asked.slot.is_some() {
                expected += 1;
                self.done.push(asked.clone());
            }
        }
        assert_eq!(wake.len(), expected, "each waiting caller is woken once");
        self.withdraw(p);
    }

    fn withdraw(&mut self, p: &mut Pipeline) {
        let unwanted = |a: &ModelRequest| !a.sent && (a.failed.is_some() || a.slot.is_none());
        let expected = self.queue.iter().filter(|a| unwanted(a)).count();
        assert_eq!(p.withdraw(self.taken, &mut self.out), expected);
        self.queue.retain(|a| !unwanted(a));
        let kept: Vec<u8> = self.queue.iter().filter(|a| !a.sent).flat_map(|a| bytes(a.id)).collect();
        assert_eq!(self.out, kept, "the output holds what may still be sent");
    }

    fn lose(&mut self, p: &mut Pipeline) {
        let mut wake = Vec::new();
        p.fail_all(self.taken, |sent| RequestFailure::Closed { sent }, &mut wake);
        for mut asked in self.queue.drain(..).filter(|a| a.slot.is_some() && a.failed.is_none()) {
            asked.failed = Some(asked.sent);
            self.done.push(asked);
        }
        (self.taken, self.out) = (0, Vec::new());
    }

    /// A caller drops its future.
    fn drop_one(&mut self, p: &mut Pipeline, pick: usize) {
        let waiting: Vec<i64> = self.callers();
        let Some(id) = waiting.get(pick % waiting.len().max(1)).copied() else { return };
        if let Some(at) = self.done.iter().position(|a| a.id == id) {
            p.abandon(self.done.remove(at).slot.expect("it waits"));
        } else if let Some(asked) = self.queue.iter_mut().find(|a| a.id == id) {
            p.abandon(asked.slot.take().expect("it waits"));
        }
        self.forget(id);
    }

    /// A caller polls for its answer.
    fn pick_up(&mut self, p: &mut Pipeline, pick: usize) {
        let waiting: Vec<i64> = self.callers();
        let Some(id) = waiting.get(pick % waiting.len().max(1)).copied() else { return };
        let Some(at) = self.done.iter().position(|a| a.id == id) else {
            let slot = self.queue.iter().find(|a| a.id == id).and_then(|a| a.slot).expect("it waits");
            assert!(p.poll(slot, Waker::noop()).is_none(), "not all replies have come");
            return;
        };
        let asked = self.done.remove(at);
        match p.poll(asked.slot.expect("it waits"), Waker::noop()).expect("it is done") {
            Ok(replies) => {
                assert_eq!(asked.failed, None);
                let wanted: Vec<i64> = (0..asked.wanted).map(|i| asked.id * 10 + i64::from(i)).collect();
                assert_eq!(numbers(replies), wanted, "its own replies");
            }
            Err(
                RequestFailure::Timeout { sent }
                | RequestFailure::Closed { sent }
                | RequestFailure::Lost { sent, .. },
            ) => {
                assert_eq!(asked.failed, Some(sent), "whether it may have run");
            }
        }
        self.forget(id);
    }

    fn callers(&self) -> Vec<i64> {
        let waiting = self.queue.iter().filter(|a| a.slot.is_some() && a.failed.is_none());
        waiting.chain(&self.done).map(|a| a.id).collect()
    }

    /// The caller is gone; its place in the queue, if there is one, stays.
    fn forget(&mut self, id: i64) {
        self.queue.iter_mut().filter(|a| a.id == id).for_each(|a| a.slot = None);
    }
}

/// As many bytes as the request's number says, so that lengths differ.
fn bytes(id: i64) -> Vec<u8> {
    let id = u8::try_from(id % 251).expect("in range");
    vec![id; usize::from(id % 7) + 1]
}

fn numbers(replies: Replies) -> Vec<i64> {
    let frames = match replies {
        Replies::One(frame) => vec![frame],
        Replies::Many(frames) => frames,
    };
    frames.iter().map(|f| f.value().as_i64().expect("a number")).collect()
}

proptest! {
    #[test]
    fn whatever_happens_each_request_gets_its_own(steps in prop::collection::vec(step(), 1..120)) {
        let mut p = Pipeline::new();
        let mut model = Model::default();
        for step in steps {
            match step {
                ModelStep::Ask { replies, patience } => model.ask(&mut p, replies, patience),
                ModelStep::Take => model.take(),
                ModelStep::Answer => model.answer(&mut p),
                ModelStep::Drop(pick) => model.drop_one(&mut p, pick),
                ModelStep::PickUp(pick) => model.pick_up(&mut p, pick),
                ModelStep::Wait(ms) => {
                    model.now += ms;
                    model.expire(&mut p);
                }
                ModelStep::Withdraw => model.withdraw(&mut p),
                ModelStep::Lose => model.lose(&mut p),
            }
            prop_assert_eq!(p.len(), model.queue.len());
        }
        model.lose(&mut p);
        while !model.done.is_empty() {
            model.pick_up(&mut p, 0);
        }
        prop_assert_eq!(p.unfinished(), 0, "nothing is left");
    }
}
