//! The values of claim shards: the claim shard's counters, its members, its offers. Nothing here
//! decides anything.

use super::values::Value;
use crate::codec::{Reader, put_number, put_run};
use crate::hold::Token;
use crate::name::MemberName;

/// A claim shard in figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClaimShardMeta {
    /// The newest epoch of any grant or life.
    pub(super) epoch: u64,
    pub(super) offers: u64,
    pub(super) free: u64,
    /// Changes of the membership.
    pub(super) roster: u64,
}

impl Value for ClaimShardMeta {
    const WHAT: &'static str = "claim shard";

    fn pack(&self, out: &mut Vec<u8>) {
        for number in [self.epoch, self.offers, self.free, self.roster] {
            put_number(out, number);
        }
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        Some(Self {
            epoch: reader.number()?,
            offers: reader.number()?,
            free: reader.number()?,
            roster: reader.number()?,
        })
    }
}

/// Whether a member is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Alive,
    /// Its time ran out, or its name joined again; at this engine time in ms.
    Vanished(u64),
    /// It left.
    Left(u64),
}

/// One life of a member.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MemberEntry {
    pub(super) member: MemberName,
    pub(super) token: Token,
    pub(super) presence: Presence,
    /// Engine time in milliseconds.
    pub(super) deadline: u64,
    pub(super) joined: u64,
    pub(super) ttl_ms: u64,
    pub(super) beats: u64,
    pub(super) losses: u64,
    pub(super) held: u64,
    pub(super) capacity: u64,
}

impl Value for MemberEntry {
    const WHAT: &'static str = "member of a claim shard";

    fn pack(&self, out: &mut Vec<u8>) {
        put_run(out, self.member.as_str().as_bytes());
        out.extend_from_slice(&self.token.0.to_be_bytes());
        let (presence, since) = match self.presence {
            Presence::Alive => (0, 0),
            Presence::Vanished(since) => (1, since),
            Presence::Left(since) => (2, since),
        };
        out.push(presence);
        let numbers = [self.deadline, self.joined, self.ttl_ms, self.beats, self.losses, self.held];
        for number in [since].into_iter().chain(numbers).chain([self.capacity]) {
            put_number(out, number);
        }
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        let member = MemberName::new(reader.text()?).ok()?;
        let mut token = [0; 16];
        for byte in &mut token {
            *byte = reader.byte()?;
        }
        let presence = reader.byte()?;
        let since = reader.number()?;
        Some(Self {
            member,
            token: Token(u128::from_be_bytes(token)),
            presence: match presence {
                0 => Presence::Alive,
                1 => Presence::Vanished(since),
                2 => Presence::Left(since),
                _ => return None,
            },
            deadline: reader.number()?,
            joined: reader.number()?,
            ttl_ms: reader.number()?,
            beats: reader.number()?,
            losses: reader.number()?,
            held: reader.number()?,
            capacity: reader.number()?,
        })
    }
}

/// An offer without its payload and checkpoint, which have keys of their own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OfferEntry {
    pub(super) epoch: u64,
    /// The number of the member that owns it; 0 if it is free.
    pub(super) owner: u64,
    /// Since when, engine time in milliseconds.
    pub(super) since: u64,
    /// From when on it can be granted, if it is free.
    pub(super) ready: u64,
    pub(super) offered: u64,
    /// Who has it, or had it last.
    pub(super) last: Option<MemberName>,
}

impl Value for OfferEntry {
    const WHAT: &'static str = "offer";

    fn pack(&self, out: &mut Vec<u8>) {
        for number in [self.epoch, self.owner, self.since, self.ready, self.offered] {
            put_number(out, number);
        }
        put_run(out, self.last.as_ref().map_or("", |last| last.as_str()).as_bytes());
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        let epoch = reader.number()?;
        let owner = reader.number()?;
        let since = reader.number()?;
        let ready = reader.number()?;
        let offered = reader.number()?;
        let last = reader.text()?;
        let last = if last.is_empty() { None } else { Some(MemberName::new(last).ok()?) };
        Some(Self { epoch, owner, since, ready, offered, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_survive_packing(a: u64, b: u64, flag: bool) {
            let member = MemberName::new("m").unwrap();
            let meta = ClaimShardMeta { epoch: a, offers: b, free: a, roster: b };
            prop_assert_eq!(ClaimShardMeta::read(meta.packed()).unwrap(), meta);
            let presence = if flag { Presence::Left(a) } else { Presence::Alive };
            let entry = MemberEntry { member: member.clone(), token: Token(u128::from(a) << 64), presence, deadline: a,
                joined: b, ttl_ms: a, beats: b, losses: a, held: b, capacity: a };
            prop_assert_eq!(MemberEntry::read(entry.packed()).unwrap(), entry);
            let offer = OfferEntry { epoch: a, owner: b, since: a, ready: b, offered: a, last: flag.then_some(member) };
            prop_assert_eq!(OfferEntry::read(offer.packed()).unwrap(), offer);
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            let _ = (ClaimShardMeta::read(bytes.clone()), MemberEntry::read(bytes.clone()), OfferEntry::read(bytes));
        }
    }
}
