//! Offers: named units of work on a claim shard, each granted to at most one member at a time.

use super::Reply;
use crate::error::{Error, Result};
use crate::hold::Token;
use crate::id::Epoch;
use crate::limits::{
    MAX_BATCH_BYTES, MAX_CAPACITY, MAX_CHECKPOINT, MAX_CLAIM_SHARD_BATCH, MAX_OFFER, MAX_REST,
};
use crate::name::{MemberName, OfferName, ServiceName};
use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// Offers and who has them. Everything of one [`ClaimShard`] lives together, so that every
/// transition is one step.
///
/// - An offer is free, or it belongs to one member. It leaves the claim shard by
///   [`done`](Offers::done) or [`withdraw`](Offers::withdraw) and in no other way.
/// - A member has **one** lease on the claim shard, and all its claims with it:
///   [`beat`](Offers::beat) costs the same for one claim as for ten thousand. A late beat still
///   counts if no caller has declared the member gone.
/// - If a member's lease has run out, the next beat or grant of any member declares it gone (the
///   engine's clock decides). From then on every request of that member is `Fenced`, and the engine
///   can grant its claims to other members.
/// - Each change of owner gives the offer a larger epoch. A claim is good with its member's number
///   and token *and* its epoch.
/// - Joining under a name that is taken ends the former life of that name at once: a restarted
///   process never shares anything with its zombie. The zombie that wakes up joins only
///   [`after`](Join::after) the life that it had, and so never ends its successor.
/// - No step works on more than [`MAX_CLAIM_SHARD_BATCH`] offers, so that a server is never blocked
///   for long.
pub trait Offers {
    /// Puts up offers; per offer, whether it is new. If an offer exists, it stays as it is and
    /// keeps its owner.
    fn offer<'a>(&'a self, claim_shard: &'a ClaimShard, offers: Vec<NewOffer>) -> Reply<'a, Vec<bool>>;

    /// Takes offers off the claim shard, owned or free; per offer, whether it was there.
    fn withdraw<'a>(&'a self, claim_shard: &'a ClaimShard, names: &'a [OfferName]) -> Reply<'a, Vec<bool>>;

    /// Joins a claim shard. If the name has a life that is newer than [`Join::after`], the answer
    /// is `Fenced` and nothing changes. The same request again is the same life.
    fn join<'a>(&'a self, claim_shard: &'a ClaimShard, request: Join) -> Reply<'a, Membership>;

    /// Leaves the claim shard: all claims of the member are free at once, in one step for any
    /// number of claims. False if the membership was over.
    fn leave<'a>(&'a self, membership: &'a Membership) -> Reply<'a, bool>;

    /// Renews the membership and thereby all its claims, declares members gone whose time ran out,
    /// and tells how the claim shard stands.
    fn beat<'a>(&'a self, membership: &'a Membership, beat: Beat) -> Reply<'a, ClaimShardStatus>;

    /// Grants up to `max` offers: first those of members that are gone, then free ones, longest
    /// free first.
    fn grant<'a>(&'a self, membership: &'a Membership, max: usize) -> Reply<'a, Vec<Granted>>;

    /// Grants one offer by name if no live member has it; with `seize`, even if one does.
    fn take<'a>(&'a self, membership: &'a Membership, name: &'a OfferName, seize: bool) -> Reply<'a, Taken>;

    /// Removes finished claims from the claim shard.
    fn done<'a>(&'a self, membership: &'a Membership, claims: &'a [ClaimKey]) -> Reply<'a, Vec<Outcome>>;

    /// Gives claims back; they can be granted again after `rest`.
    fn give_back<'a>(
        &'a self,
        membership: &'a Membership,
        claims: &'a [ClaimKey],
        rest: Duration,
    ) -> Reply<'a, Vec<Outcome>>;

    /// Stores what the next owner needs to go on.
    fn checkpoint<'a>(
        &'a self,
        membership: &'a Membership,
        claim: &'a ClaimKey,
        state: Bytes,
    ) -> Reply<'a, Outcome>;

    /// Takes offers away from their owners, for admin; per offer, whether it had an owner. The
    /// offers are free at once.
    fn force_release<'a>(
        &'a self,
        claim_shard: &'a ClaimShard,
        names: &'a [OfferName],
    ) -> Reply<'a, Vec<bool>>;

    /// The claims of a membership in the order of their names, after `skip` of them. A member that
    /// is not sure which claims it has reads them here.
    fn owned<'a>(&'a self, membership: &'a Membership, skip: usize, max: usize) -> Reply<'a, Vec<ClaimKey>>;

    /// All offers of a claim shard in the order of their names, after `after`.
    fn offers<'a>(
        &'a self,
        claim_shard: &'a ClaimShard,
        after: Option<&'a OfferName>,
        max: usize,
    ) -> Reply<'a, Vec<OfferInfo>>;

    /// Offers of members that vanished and that no other member has yet, at most `max`.
    fn orphans<'a>(&'a self, claim_shard: &'a ClaimShard, max: usize) -> Reply<'a, Vec<OfferInfo>>;

    /// The members of a claim shard, also those that are gone while something of theirs is left.
    fn members<'a>(&'a self, claim_shard: &'a ClaimShard) -> Reply<'a, Vec<MembershipInfo>>;

    /// Declares a member gone whose `beats` stood still for longer than its time on the caller's
    /// own clock (the engine's clock may have gone back). False if it has moved since.
    fn expel<'a>(&'a self, claim_shard: &'a ClaimShard, number: Epoch, beats: u64) -> Reply<'a, bool>;
}

/// One part of a service: the unit of atomicity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimShard {
    /// The service.
    pub service: ServiceName,
    /// Which part of it, from 0.
    pub shard: u32,
}

impl ClaimShard {
    /// Part `shard` of `service`.
    pub fn new(service: ServiceName, shard: u32) -> Self {
        Self { service, shard }
    }
}

impl fmt::Display for ClaimShard {
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

/// A request to join a claim shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The member's lasting name.
    pub member: MemberName,
    /// How long the membership lasts without a beat.
    pub ttl: Duration,
    /// How many claims it wants at most. The engine does not enforce it: it tells the others.
    pub capacity: u64,
    /// The last life that the caller had under this name, if it had one. If a newer life exists, it
    /// belongs to another process, and stays.
    pub after: Option<Epoch>,
    /// The token of the membership to be. If a life has this token, this very request made it and
    /// its answer was lost: the engine renews that life and answers again.
    pub token: Token,
}

impl Join {
    /// A plain request: if the name has a life, the join ends it.
    pub fn new(member: MemberName, ttl: Duration, capacity: u64) -> Self {
        Self { member, ttl, capacity, after: None, token: Token::random() }
    }

    /// The refusal when life `newer` is there.
    pub(crate) fn superseded(&self, claim_shard: &ClaimShard, newer: Epoch) -> Error {
        let context = format!(
            "member {} has joined claim shard {claim_shard} again (life {newer}): the former life is over for good; give each process a name of its own",
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
pub struct Membership {
    /// Where.
    pub claim_shard: ClaimShard,
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
    /// How long the membership lasts from now on.
    pub ttl: Duration,
    /// How many claims the member wants at most.
    pub capacity: u64,
    /// The [`ClaimShardStatus::roster`] that the member knows; 0 if none.
    pub roster: u64,
}

impl Beat {
    pub(crate) fn check(&self) -> Result<()> {
        crate::checks::ttl(self.ttl)?;
        check_capacity(self.capacity)
    }
}

/// How a claim shard stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimShardStatus {
    /// How many claims the membership has.
    pub held: u64,
    /// How many it has lost to others (seized, withdrawn, released by force) since it joined.
    pub losses: u64,
    /// All offers, owned or free.
    pub offers: u64,
    /// Offers without an owner, including resting ones and those of members that left.
    pub free: u64,
    /// Offers of members that vanished.
    pub orphaned: u64,
    /// When a free offer can be granted; zero if now.
    pub next_free: Option<Duration>,
    /// When the first of the other members runs out.
    pub next_expiry: Option<Duration>,
    /// Changes whenever members come, go, or change their capacity.
    pub roster: u64,
    /// All members that are there by number, each with its capacity, if the roster is another than
    /// the beat named.
    pub memberships: Option<Vec<(Epoch, u64)>>,
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
    pub former: PreviousOwner,
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Granted({} epoch {} {} bytes)", self.name, self.epoch, self.payload.len())
    }
}

/// Who had an offer before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreviousOwner {
    /// No member: the offer is new.
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
        /// How long that member's membership still lasts without a beat.
        remaining: Duration,
    },
    /// There is no such offer.
    Missing,
}

/// Outcome of a step for one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It happened.
    Done,
    /// Another member owns the claim by now, or it is of another grant: nothing happened.
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
    /// How long it has been on the claim shard.
    pub age: Duration,
}

/// Who has an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferState {
    /// No member has it.
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
pub struct MembershipInfo {
    /// Its lasting name.
    pub member: MemberName,
    /// The number of its life.
    pub number: Epoch,
    /// How long the membership still lasts without a beat; `None` once it was declared gone.
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
    if count > MAX_CLAIM_SHARD_BATCH {
        return Err(Error::invalid(format!("{count} offers in one call; at most {MAX_CLAIM_SHARD_BATCH}")));
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
        let context = format!("a checkpoint of {} bytes; at most {MAX_CHECKPOINT}", state.len());
        return Err(Error::beyond("checkpoint", MAX_CHECKPOINT, context));
    }
    Ok(())
}

pub(crate) fn check_rest(rest: Duration) -> Result<()> {
    if rest > MAX_REST {
        let most = usize::try_from(MAX_REST.as_millis()).unwrap_or(usize::MAX);
        return Err(Error::beyond("rest_ms", most, "an offer rests for at most 24 hours"));
    }
    Ok(())
}

impl Membership {
    /// The refusal of a membership that is over.
    pub(crate) fn over(&self) -> Error {
        Error::new(
            crate::ErrorKind::Fenced,
            format!(
                "life {} of member {} on claim shard {} is over: its time ran out, it left, or the name joined again",
                self.number, self.member, self.claim_shard
            ),
        )
    }
}
