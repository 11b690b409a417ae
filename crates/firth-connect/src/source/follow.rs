//! [`Follower`]: one session of a source, from its opening to its end. Only sequences what the pure
//! parts decide.

use super::{ChangeStream, Kept, MAX_POSITION, Opening, Reader, Rejected, Source, SourceChange, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::pump::{Batch, Change, Pump};
use crate::record::{RETRY, append, message, size_of};
use crate::sink::Sink;
use crate::state::Keep;
use bytes::Bytes;
use firth::Message;
use firth_router::event::{Event, Operation};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How often operators are told a place that does not change.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How often the follower looks around although nothing comes.
const IDLE: Duration = Duration::from_secs(1);
/// Steps that are taken before what is stored is looked at again.
const AT_ONCE: usize = 1_000;

type Saving<'a, P> = BoxFuture<'a, Result<Kept<P>>>;

pub(super) struct Follower<'a, S: Source, T, K> {
    reader: &'a Reader<'a, S, T, K>,
    stream: S::Stream,
    /// What is saved already.
    kept: &'a mut Kept<S::Place>,
    pump: Pump<Bytes, u64>,
    /// Places whose steps are not all stored or not saved, by the number that the pump confirms.
    places: VecDeque<(u64, S::Place)>,
    /// How many places there were.
    number: u64,
    appending: FuturesUnordered<BoxFuture<'static, (usize, Result<usize>)>>,
    saving: Option<Saving<'a, S::Place>>,
    saved: Instant,
    /// When operators were told the place last.
    told: Instant,
    /// The newest mark that some partition had when this session began.
    known: Option<Bytes>,
    /// The newest mark of this session.
    last: Option<Bytes>,
    /// Why it ends, once everything that was read is stored.
    ending: Option<Error>,
}

impl<'a, S: Source, T: Sink, K: Keep<Kept<S::Place>>> Follower<'a, S, T, K> {
    /// Reads until something ends it; never returns without a reason.
    pub(super) async fn follow(reader: &'a Reader<'a, S, T, K>, kept: &'a mut Kept<S::Place>) -> Error {
        let session = async {
            let marks = reader.sink.marks().await?;
            let (epoch, history) = (reader.epoch, kept.history);
            let opening = Opening { epoch, history, progress: reader.progress };
            let (stream, place) = reader.source.open(kept.place.as_ref(), &opening).await?;
            if kept.place.as_ref() != Some(&place) {
                let next = Kept { place: Some(place.clone()), ..kept.clone() };
                reader.keep.save(&next).await?;
                *kept = next;
            }
            reader.progress.streaming();
            let known = marks.iter().flatten().max().cloned();
            let pump = Pump::new(reader.source.limits(), marks);
            let mut follower = Self {
                reader,
                stream,
                kept,
                pump,
                places: VecDeque::new(),
                number: 0,
                appending: FuturesUnordered::new(),
                saving: None,
                saved: Instant::now(),
                told: Instant::now(),
                known,
                last: None,
                ending: None,
            };
            follower.tell_resync(place);
            follower.run().await
        };
        let ended: Result<std::convert::Infallible> = session.await;
        match ended {
            Err(error) => error,
            Ok(never) => match never {},
        }
    }

    /// After a loss every partition is told, in front of all that follows.
    fn tell_resync(&mut self, place: S::Place) {
        let Some(reason) = self.kept.resync.clone() else { return };
        for collection in self.reader.source.collections() {
            let event = Event::control(Operation::Resync, None, collection).with_reason(reason.clone());
            self.control(&Bytes::from_static(&[0]), &event);
        }
        self.place(place);
    }

    async fn run(&mut self) -> Result<std::convert::Infallible> {
        loop {
            if self.is_growing() && self.pump.buffered_bytes() == 0 {
                self.grow().await?;
            }
            let is_quiet = self.pump.buffered_bytes() == 0 && self.saving.is_none();
            if let Some(error) = self.ending.take_if(|_| is_quiet) {
                return Err(error);
            }
            let (wake, may_read) = (self.wake(), self.may_read());
            tokio::select! {
                Some((partition, stored)) = self.appending.next() => self.stored(partition, stored)?,
                saved = done(&mut self.saving) => {
                    self.saving = None;
                    self.is_saved(saved?).await;
                }
                step = self.stream.next(), if may_read => self.take(step).await?,
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            let is_drained = self.drain().await?;
            while let Some(batch) = self.pump.poll(Instant::now(), is_drained) {
                let sink = self.reader.sink.clone();
                self.appending.push(Box::pin(async move { append(&*sink, batch).await }));
            }
            self.save();
            self.tell_place();
        }
    }

    /// Tells operators that the source may forget up to here, also while nothing comes.
    fn tell_place(&mut self) {
        let is_current = self.places.is_empty() && self.saving.is_none() && self.pump.buffered_bytes() == 0;
        if is_current && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let shown = self.kept.place.as_ref().and_then(|place| serde_json::to_string(place).ok());
            self.reader.progress.confirmed(shown);
        }
    }

    fn may_read(&self) -> bool {
        self.ending.is_none() && !self.pump.is_full() && !self.is_growing()
    }

    /// Whether new partitions wait to be taken in. That needs a mark up to which everything is
    /// known to be stored: the newest one, once this session is past all marks.
    fn is_growing(&self) -> bool {
        self.reader.sink.has_grown() && self.last.is_some() && self.last >= self.known
    }

    async fn grow(&mut self) -> Result<()> {
        let Some(last) = self.last.clone() else { return Ok(()) };
        let partitions = self.reader.sink.grow(last.clone()).await?;
        self.pump.grow(partitions as usize, &last);
        Ok(())
    }

    /// When something is due although nothing comes.
    fn wake(&self) -> Instant {
        let save = self.is_unsaved().then(|| self.saved + self.save_after());
        let due = [self.pump.due(), save];
        due.into_iter().flatten().fold(Instant::now() + IDLE, Instant::min)
    }

    fn stored(&mut self, partition: usize, stored: Result<usize>) -> Result<()> {
        let records = stored?;
        self.pump.stored(partition);
        self.reader.progress.appended(records);
        self.reader.progress.buffered(self.pump.buffered_bytes(), self.pump.is_full());
        Ok(())
    }

    /// Takes what the stream has at hand; false if more of it is certain to follow.
    async fn drain(&mut self) -> Result<bool> {
        for _ in 0..AT_ONCE {
            if !self.may_read() {
                // Only what is stored makes room.
                return Ok(true);
            }
            match self.stream.next().now_or_never() {
                Some(step) => self.take(step).await?,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// A failure ends the session once everything before it is stored.
    async fn take(&mut self, step: Result<Step<S::Place>>) -> Result<()> {
        match step {
            Ok(Step::Change(change)) => return self.change(change).await,
            Ok(Step::Control { position, event }) => self.control(&position, &event),
            Ok(Step::Poison(rejected)) => return self.reject(rejected).await,
            Ok(Step::Place(place)) => self.place(place),
            Err(error) => self.ending = Some(error),
        }
        Ok(())
    }

    async fn change(&mut self, change: SourceChange) -> Result<()> {
        let SourceChange { position, event, headers, origin } = change;
        let key = event.message_key();
        let partition = self.reader.sink.partition_for(key.as_bytes()) as usize;
        let all = self.headers(&position).into_iter().chain(headers);
        let message = message(&event, Some(key), all);
        let limit = self.reader.sink.max_payload();
        let size = message.payload().len();
        if size > limit {
            let error = Error::poison(format!("the event has {size} bytes; the topic takes {limit}"));
            return self.reject(Rejected { position, error, origin }).await;
        }
        self.reader.progress.read(&event);
        self.push(partition, &position, message);
        Ok(())
    }

    fn control(&mut self, position: &Bytes, event: &Event) {
        for partition in 0..self.reader.sink.partitions() as usize {
            let message = message(event, None, self.headers(position));
            self.push(partition, position, message);
        }
        self.reader.progress.read(event);
    }

    fn headers(&self, position: &Bytes) -> [(&'static str, String); 2] {
        let mark = self.kept.mark(position);
        [("firth-source", self.reader.source.name().to_owned()), ("firth-position", hex(&mark))]
    }

    fn push(&mut self, partition: usize, position: &Bytes, message: Message) {
        debug_assert!(position.len() <= MAX_POSITION, "a mark holds it");
        let mark = self.kept.mark(position);
        let size = size_of(&message);
        if !self.pump.is_open() {
            self.pump.begin();
        }
        self.last = Some(mark.clone());
        self.pump.push(Instant::now(), Change { partition, position: mark, message, size });
        self.reader.progress.buffered(self.pump.buffered_bytes(), self.pump.is_full());
    }

    fn place(&mut self, place: S::Place) {
        self.number += 1;
        let has_steps = self.pump.is_open();
        if !has_steps {
            self.pump.begin();
        }
        self.pump.commit(self.number);
        // Of places without steps between them only the newest counts, here as in the pump.
        if !has_steps {
            self.places.pop_back();
        }
        self.places.push_back((self.number, place));
    }

    /// A change that cannot be an event is kept aside, or ends the session.
    async fn reject(&mut self, rejected: Rejected) -> Result<()> {
        let Rejected { position, error, origin } = rejected;
        let mark = self.kept.mark(&position);
        let Some(dead) = self.reader.dead.clone() else {
            let context = format!("{} (position {})", error.context(), hex(&mark));
            self.ending = Some(Error::new(ErrorKind::Poison, context));
            return Ok(());
        };
        let message = Message::new(origin.payload).key(self.reader.source.name().to_owned());
        let headers = self.headers(&position).into_iter();
        let told = headers.chain([("firth-name", origin.name), ("firth-error", error.context().to_owned())]);
        let told = told.filter(|(_, value)| !value.is_empty());
        let message = told.fold(message, |message, (name, value)| message.header(name, value));
        let partition = dead.partition_for(self.reader.source.name().as_bytes());
        let batch = Batch { partition: partition as usize, messages: vec![message], upto: mark };
        append(&*dead, batch).await.1?;
        self.reader.progress.died(&error);
        Ok(())
    }

    /// Whether a place is stored and not saved.
    fn is_unsaved(&self) -> bool {
        let confirmed = self.pump.confirmed();
        self.saving.is_none() && self.places.front().is_some_and(|(number, _)| Some(*number) <= confirmed)
    }

    fn save_after(&self) -> Duration {
        let every = self.reader.source.save_every();
        // Once all is stored there is nothing to wait for.
        if self.pump.buffered_bytes() == 0 { every / 10 } else { every }
    }

    /// Begins to save how far everything is stored.
    fn save(&mut self) {
        let is_last = self.ending.is_some() && self.pump.buffered_bytes() == 0;
        if !self.is_unsaved() || (self.saved.elapsed() < self.save_after() && !is_last) {
            return;
        }
        let confirmed = self.pump.confirmed();
        let mut place = None;
        while let Some((_, newest)) = self.places.pop_front_if(|(number, _)| Some(*number) <= confirmed) {
            place = Some(newest);
        }
        self.saved = Instant::now();
        let next = Kept { history: self.kept.history, resync: None, place };
        let keep = self.reader.keep;
        self.saving = Some(Box::pin(async move {
            loop {
                match keep.save(&next).await {
                    Err(error) if error.kind() == ErrorKind::Unavailable => tokio::time::sleep(RETRY).await,
                    saved => return saved.map(|()| next),
                }
            }
        }));
    }

    /// A place is saved: the source may forget what lies before it.
    async fn is_saved(&mut self, kept: Kept<S::Place>) {
        *self.kept = kept;
        if let Some(place) = &self.kept.place {
            if let Err(error) = self.stream.confirm(place).await {
                self.ending.get_or_insert(error);
                return;
            }
            self.told = Instant::now();
            self.reader.progress.confirmed(serde_json::to_string(place).ok());
        }
    }
}

/// Waits for what is under way; forever if nothing is.
async fn done<T>(under_way: &mut Option<BoxFuture<'_, T>>) -> T {
    match under_way {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
