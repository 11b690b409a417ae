//! Offers: named units of work on a board, each granted to at most one member at a time.

use super::Reply;
use crate::error::{Error, Result};
use crate::hold::Token;
use crate::id::Epoch;
use crate::limits::{MAX_BATCH_BYTES, MAX_BOARD_BATCH, MAX_CAPACITY, MAX_CHECKPOINT, MAX_OFFER, MAX_REST};
use crate::name::{MemberName, OfferName, ServiceName};
use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// Offers and who has them. Everything of one [`Board`] lives together, so that every transition is one step.
///
/// - An offer is free, or it belongs to one member. It leaves the board by [`done`](Offers::done) or
///   [`withdraw`](Offers::withdraw) and in no other way.
/// - A member has **one** lease on the board, and all its claims with it: [`beat`](Offers::beat) costs the same for one claim as for
///   ten thousand. A beat that comes late still counts as long as nobody declared the member gone.
/// - A member whose lease ran out is declared gone by the next beat or grant of anyone (the engine's clock decides). From that
///   moment on everything it asks for is `Fenced`, and its claims can be granted to others.
/// - Each change of owner gives the offer a larger epoch. A claim is good with its member's number and token *and* its epoch.
/// - Joining under a name that is taken ends the former life of that name at once: a restarted process never shares anything with its
///   zombie. The zombie that wakes up joins only [`after`](Join::after) the life that it had, and so never ends its successor.
/// - No step works on more than [`MAX_BOARD_BATCH`] offers, so that a server is never blocked for long.
pub trait Offers {
    /// Puts up offers; per offer, whether it is new. An offer that is there stays as it is, whoever has it.
    fn offer<'a>(&'a self, board: &'a Board, offers: Vec<NewOffer>) -> Reply<'a, Vec<bool>>;

    /// Takes offers off the board, whoever has them; per offer, whether it was there.
    fn withdraw<'a>(&'a self, board: &'a Board, names: &'a [OfferName]) -> Reply<'a, Vec<bool>>;

    /// Joins a board. `Fenced`, and nothing happens, if the name has a life that is newer than [`Join::after`]. The same wish again is
    /// the same life.
    fn join<'a>(&'a self, board: &'a Board, wish: Join) -> Reply<'a, Seat>;

    /// Leaves the board: everything the member had is free at once, in one step whatever its number. False if the seat was over.
    fn leave<'a>(&'a self, seat: &'a Seat) -> Reply<'a, bool>;

    /// Renews the seat and thereby all its claims, declares members gone whose time ran out, and tells how the board stands.
    fn beat<'a>(&'a self, seat: &'a Seat, beat: Beat) -> Reply<'a, Pulse>;

    /// Grants up to `max` offers: first those of members that are gone, then free ones, longest free first.
    fn grant<'a>(&'a self, seat: &'a Seat, max: usize) -> Reply<'a, Vec<Granted>>;

    /// Grants one offer by name if nobody alive has it; with `seize`, even then.
    fn take<'a>(&'a self, seat: &'a Seat, name: &'a OfferName, seize: bool) -> Reply<'a, Taken>;

    /// Removes finished claims from the board.
    fn done<'a>(&'a self, seat: &'a Seat, claims: &'a [ClaimKey]) -> Reply<'a, Vec<Outcome>>;

    /// Gives claims back; they can be granted again after `rest`.
    fn give_back<'a>(
        &'a self,
        seat: &'a Seat,
        claims: &'a [ClaimKey],
        rest: Duration,
    ) -> Reply<'a, Vec<Outcome>>;

    /// Stores what the next owner needs to go on.
    fn checkpoint<'a>(&'a self, seat: &'a Seat, claim: &'a ClaimKey, state: Bytes) -> Reply<'a, Outcome>;

    /// Takes offers away from whoever has them, for admin; per offer, whether somebody had it. They are free at once.
    fn force_release<'a>(&'a self, board: &'a Board, names: &'a [OfferName]) -> Reply<'a, Vec<bool>>;

    /// The claims of a seat in the order of their names, after `skip` of them; for those who are not sure any more.
    fn owned<'a>(&'a self, seat: &'a Seat, skip: usize, max: usize) -> Reply<'a, Vec<ClaimKey>>;

    /// All offers of a board in the order of their names, after `after`.
    fn offers<'a>(
        &'a self,
        board: &'a Board,
        after: Option<&'a OfferName>,
        max: usize,
    ) -> Reply<'a, Vec<OfferInfo>>;

    /// Offers whose members vanished and that nobody has yet, at most `max`.
    fn orphans<'a>(&'a self, board: &'a Board, max: usize) -> Reply<'a, Vec<OfferInfo>>;

    /// The members of a board, also those that are gone while something of theirs is left.
    fn members<'a>(&'a self, board: &'a Board) -> Reply<'a, Vec<SeatInfo>>;

    /// Declares a member gone whose `beats` stood still for longer than its time on the caller's own clock (the engine's clock
    /// may have gone back). False if it has moved since.
    fn expel<'a>(&'a self, board: &'a Board, number: Epoch, beats: u64) -> Reply<'a, bool>;
}

/// One part of a service: the unit of atomicity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Board {
    /// The service.
    pub service: ServiceName,
    /// Which part of it, from 0.
    pub shard: u32,
}

impl Board {
    /// Part `shard` of `service`.
    pub fn new(service: ServiceName, shard: u32) -> Self {
        Self { service, shard }
    }
}

impl fmt::Display for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service, self.shard)
    }
}

/// An offer to put up.
#[derive(Clone, PartialEq, Eq)]
pub struct NewOffer {
    /// Its name: the same name is the same offer.
    pub name: OfferName,
    /// What its owner needs to know, at most [`MAX_OFFER`] bytes.
    pub payload: Bytes,
}

impl fmt::Debug for NewOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewOffer({} {} bytes)", self.name, self.payload.len())
    }
}

/// A wish to join a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The member's lasting name.
    pub member: MemberName,
    /// How long the seat lasts without a beat.
    pub ttl: Duration,
    /// How many claims it wants at most. The engine does not enforce it: it tells the others.
    pub capacity: u64,
    /// The last life that the wisher had under this name, if it had one: a newer one that is there is somebody else's, and stays.
    pub after: Option<Epoch>,
    /// The seat's token to be. A life that has it came of this very wish, whose answer was lost: it is renewed, and answered again.
    pub token: Token,
}

impl Join {
    /// A plain wish: it ends whatever life the name has.
    pub fn new(member: MemberName, ttl: Duration, capacity: u64) -> Self {
        Self { member, ttl, capacity, after: None, token: Token::random() }
    }

    /// The refusal when life `newer` is there.
    pub(crate) fn superseded(&self, board: &Board, newer: Epoch) -> Error {
        let context = format!(
            "member {} has joined board {board} again (life {newer}): the former life is over for good; give each process a name of its own",
            self.member
        );
        Error::new(crate::ErrorKind::Fenced, context)
    }

    pub(crate) fn check(&self) -> Result<()> {
        crate::checks::ttl(self.ttl)?;
        check_capacity(self.capacity)
    }
}

fn check_capacity(capacity: u64) -> Result<()> {
    if capacity > MAX_CAPACITY {
        return Err(Error::invalid(format!("a capacity of {capacity}; at most {MAX_CAPACITY}")));
    }
    Ok(())
}

/// Proof of membership, for one life of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// Where.
    pub board: Board,
    /// The member's lasting name.
    pub member: MemberName,
    /// The number of this life: grows with each one.
    pub number: Epoch,
    /// Known to this life only.
    pub token: Token,
}

/// A claim, as its owner names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimKey {
    /// Which offer.
    pub name: OfferName,
    /// Under which grant.
    pub epoch: Epoch,
}

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// How long the seat lasts from now on.
    pub ttl: Duration,
    /// How many claims the member wants at most.
    pub capacity: u64,
    /// The [`Pulse::roster`] that the member knows; 0 if none.
    pub roster: u64,
}

impl Beat {
    pub(crate) fn check(&self) -> Result<()> {
        crate::checks::ttl(self.ttl)?;
        check_capacity(self.capacity)
    }
}

/// How a board stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// How many claims the seat has.
    pub held: u64,
    /// How many it has lost to others (seized, withdrawn, released by force) since it joined.
    pub losses: u64,
    /// All offers, whoever has them.
    pub offers: u64,
    /// Offers that nobody has, resting ones and those of members that left included.
    pub free: u64,
    /// Offers of members that vanished.
    pub orphaned: u64,
    /// When a free offer can be granted; zero if now.
    pub next_free: Option<Duration>,
    /// When the first of the other members runs out.
    pub next_expiry: Option<Duration>,
    /// Changes whenever members come, go, or change their capacity.
    pub roster: u64,
    /// All members that are there by number, each with its capacity, if the roster is another than the beat named.
    pub seats: Option<Vec<(Epoch, u64)>>,
}

/// A claim that was granted.
#[derive(Clone, PartialEq, Eq)]
pub struct Granted {
    /// Which offer.
    pub name: OfferName,
    /// Under which grant.
    pub epoch: Epoch,
    /// What was offered.
    pub payload: Bytes,
    /// What the former owner left.
    pub checkpoint: Option<Bytes>,
    /// Who had it before.
    pub former: Former,
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Granted({} epoch {} {} bytes)", self.name, self.epoch, self.payload.len())
    }
}

/// Who had an offer before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Former {
    /// Nobody: it is new.
    Nobody,
    /// A member that gave it back, left, or had it taken away.
    Released(MemberName),
    /// A member that vanished.
    Vanished(MemberName),
}

/// The answer to [`Offers::take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is yours.
    Granted(Granted),
    /// A member that is alive has it.
    Held {
        /// Who.
        by: MemberName,
        /// How long that member's seat still lasts without a beat.
        remaining: Duration,
    },
    /// There is no such offer.
    Missing,
}

/// What became of a claim in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It happened.
    Done,
    /// The claim is somebody else's by now, or of another grant: nothing happened.
    Fenced,
    /// There is no such offer (any more).
    Missing,
}

/// An offer as everyone may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferInfo {
    /// Its name.
    pub name: OfferName,
    /// The newest grant; zero before the first.
    pub epoch: Epoch,
    /// Who has it.
    pub state: OfferState,
    /// How long it has been so.
    pub since: Duration,
    /// How long it has been on the board.
    pub age: Duration,
}

/// Who has an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferState {
    /// Nobody.
    Free {
        /// Who had it last.
        last: Option<MemberName>,
    },
    /// A member.
    Owned {
        /// Its name.
        by: MemberName,
        /// The number of its life.
        number: Epoch,
    },
    /// A member that vanished: its time ran out, or its name joined again.
    Orphaned {
        /// Its name.
        last: MemberName,
    },
}

/// A member as everyone may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatInfo {
    /// Its lasting name.
    pub member: MemberName,
    /// The number of its life.
    pub number: Epoch,
    /// How long the seat still lasts without a beat; `None` once it was declared gone.
    pub remaining: Option<Duration>,
    /// Grows with each beat.
    pub beats: u64,
    /// How long each beat makes it last.
    pub ttl: Duration,
    /// How many claims it has.
    pub held: u64,
    /// How many it wants at most.
    pub capacity: u64,
    /// How long ago it joined.
    pub age: Duration,
}

/// Checks a number of offers for one step.
pub(crate) fn check_count(count: usize) -> Result<()> {
    if count > MAX_BOARD_BATCH {
        return Err(Error::invalid(format!("{count} offers in one call; at most {MAX_BOARD_BATCH}")));
    }
    Ok(())
}

pub(crate) fn check_offers(offers: &[NewOffer]) -> Result<()> {
    check_count(offers.len())?;
    let bytes: usize = offers.iter().map(|offer| offer.payload.len()).sum();
    if bytes > MAX_BATCH_BYTES {
        return Err(Error::invalid(format!(
            "offers of {bytes} bytes in one call; at most {MAX_BATCH_BYTES}: split them"
        )));
    }
    match offers.iter().find(|offer| offer.payload.len() > MAX_OFFER) {
        Some(offer) => Err(Error::invalid(format!(
            "offer {} has {} bytes; at most {MAX_OFFER}",
            offer.name,
            offer.payload.len()
        ))),
        None => Ok(()),
    }
}

pub(crate) fn check_checkpoint(state: &[u8]) -> Result<()> {
    if state.len() > MAX_CHECKPOINT {
        return Err(Error::invalid(format!(
            "a checkpoint of {} bytes; at most {MAX_CHECKPOINT}",
            state.len()
        )));
    }
    Ok(())
}

pub(crate) fn check_rest(rest: Duration) -> Result<()> {
    if rest > MAX_REST {
        return Err(Error::invalid("an offer rests for at most 24 hours"));
    }
    Ok(())
}

impl Seat {
    /// The refusal of a seat that is over.
    pub(crate) fn over(&self) -> Error {
        Error::new(
            crate::ErrorKind::Fenced,
            format!(
                "life {} of member {} on board {} is over: its time ran out, it left, or the name joined again",
                self.number, self.member, self.board
            ),
        )
    }
}
