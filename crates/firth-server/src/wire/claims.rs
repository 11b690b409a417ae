//! Services, offers, workers and their claims on the wire.

use super::lenient::{maybe_whole, objects, whole};
use super::{BASE64, invalid_at, millis, text_or_base64};
use base64::Engine as _;
use firth::Result;
use firth::claims::{Claim, ClaimsStatus, OfferInfo, OfferOwner, WorkerInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Services {
    pub(crate) services: Vec<String>,
}

/// A service to make before it is used; one that is used first has one shard.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewService {
    /// Over how many nodes of a cluster it is spread; 1 unless set, and fixed from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 256)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) shards: Option<u32>,
}

/// A service in figures.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ServiceStatus {
    pub(crate) service: String,
    /// All offers.
    pub(crate) offers: u64,
    /// Offers that a living worker has.
    pub(crate) owned: u64,
    /// Offers without an owner.
    pub(crate) free: u64,
    /// Offers whose workers vanished.
    pub(crate) orphaned: u64,
    /// The longest time that a free or orphaned offer has been without an owner.
    pub(crate) longest_unowned_ms: Option<u64>,
    /// Workers that are there.
    pub(crate) workers: u64,
}

impl ServiceStatus {
    pub(crate) fn new(service: String, status: &ClaimsStatus) -> Self {
        let ClaimsStatus { offers, owned, free, orphaned, longest_unowned, workers, .. } = *status;
        let longest_unowned_ms = longest_unowned.map(millis);
        Self { service, offers, owned, free, orphaned, longest_unowned_ms, workers }
    }
}

/// A unit of work to offer: its name, and what its owner needs to know as `payload` or
/// `payload_base64`, at most 64 KiB.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewOffer {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
}

impl NewOffer {
    pub(crate) fn into_parts(self) -> Result<(String, Vec<u8>)> {
        let payload = bytes(["payload", "payload_base64"], self.payload, self.payload_base64)?;
        Ok((self.name, payload.unwrap_or_default()))
    }
}

/// Text or base64, if either was given.
fn bytes(
    [field, field_base64]: [&'static str; 2],
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Vec<u8>>> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(text)) => {
            let decoded = BASE64.decode(text);
            decoded.map(Some).map_err(|error| {
                invalid_at(field_base64, format!("{field_base64}: not base64")).with_source(error)
            })
        }
        _ => Err(invalid_at(field, format!("{field}: give {field} or {field_base64}, not both"))),
    }
}

/// How many were offered, and how many of them are new.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Offered {
    pub(crate) offered: u64,
    pub(crate) new: u64,
}

/// Who has an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OfferState {
    /// No worker.
    Free,
    /// A living worker.
    Owned,
    /// A worker that vanished; the next grant takes it.
    Orphaned,
}

/// An offer as it stands.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OfferShown {
    pub(crate) name: String,
    pub(crate) state: OfferState,
    /// Who has it.
    pub(crate) owner: Option<String>,
    /// The worker that had it last, if it is free or orphaned.
    pub(crate) last_owner: Option<String>,
    /// The newest grant; 0 before the first.
    pub(crate) epoch: u64,
    /// How long its owner has been the same.
    pub(crate) since_ms: u64,
    /// How long it has been offered.
    pub(crate) age_ms: u64,
}

impl From<OfferInfo> for OfferShown {
    fn from(info: OfferInfo) -> Self {
        let OfferInfo { name, owner, epoch, since, age } = info;
        let (state, owner, last_owner) = match owner {
            OfferOwner::Free { last } => (OfferState::Free, None, last),
            OfferOwner::Worker(owner) => (OfferState::Owned, Some(owner), None),
            OfferOwner::Orphaned { last } => (OfferState::Orphaned, None, Some(last)),
        };
        Self { name, state, owner, last_owner, epoch: epoch.0, since_ms: millis(since), age_ms: millis(age) }
    }
}

/// Offers by name; `next` goes on as `after`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OfferList {
    pub(crate) offers: Vec<OfferShown>,
    pub(crate) next: Option<String>,
}

/// A worker as it stands.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WorkerShown {
    pub(crate) name: String,
    /// The number of its newest session.
    pub(crate) life: u64,
    pub(crate) alive: bool,
    /// How long until it runs out without another beat.
    pub(crate) remaining_ms: u64,
    pub(crate) claims: u64,
    /// How many it takes at most; 0 if it takes only what it asks for by name.
    pub(crate) max_claims: u64,
    /// How long ago it joined.
    pub(crate) age_ms: u64,
}

impl From<WorkerInfo> for WorkerShown {
    fn from(info: WorkerInfo) -> Self {
        let WorkerInfo { id, session, is_alive, remaining, claims, max_claims, age, .. } = info;
        let remaining_ms = millis(remaining);
        let age_ms = millis(age);
        Self { name: id, life: session.0, alive: is_alive, remaining_ms, claims, max_claims, age_ms }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WorkerList {
    pub(crate) workers: Vec<WorkerShown>,
}

/// How a worker joins; everything has a default.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkerJoin {
    /// How long its claims stay with it after its last call; 15 s unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 100, maximum = 86_400_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) ttl_ms: Option<u64>,
    /// How many claims it takes at most; 100 unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) max_claims: Option<u64>,
    /// Take only what is asked for by name; orphans are told.
    pub(crate) by_name_only: bool,
    /// How long it may keep a claim that was recalled; 5 s unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 86_400_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) handover_ms: Option<u64>,
}

/// A session: send it with every call of this worker.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Joined {
    pub(crate) session: String,
    pub(crate) ttl_ms: u64,
    /// For how long the session holds, from when the request was sent.
    pub(crate) valid_ms: u64,
}

/// What to be told.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Poll {
    pub(crate) session: String,
    /// The last `place` that was seen and acted on; 0, the default, tells everything that stands.
    #[serde(default)]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "whole")]
    pub(crate) after: u64,
    /// At most this many; 100 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 500)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) max: Option<u64>,
    /// How long to wait for the first, at most a third of the session's TTL; 0 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 30_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) wait_ms: Option<u64>,
}

/// What happened to a claim last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkState {
    /// It is yours: work on it.
    Granted,
    /// It is yours, but another worker should have it: finish, leave a checkpoint, release it.
    Recalled,
    /// It is not yours any more: stop at once.
    Lost,
    /// You gave it back.
    Released,
    /// The worker that had this unit vanished. If no worker takes it by itself, claim it by name.
    Orphaned,
    /// The session is over; the last of a stream.
    End,
}

impl WorkState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Recalled => "recalled",
            Self::Lost => "lost",
            Self::Released => "released",
            Self::Orphaned => "orphaned",
            Self::End => "end",
        }
    }
}

/// One claim, or one unit of others, and what happened to it last.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WorkNews {
    /// Where it stands in what this session is told: go on after it.
    pub(crate) place: u64,
    pub(crate) event: WorkState,
    #[serde(default)]
    pub(crate) name: String,
    /// The claim's handle, for `settle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) claim: Option<String>,
    /// Grows with each change of owner: pass it on to every system that must refuse a former owner.
    #[serde(default)]
    pub(crate) epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
    /// What the former owner left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint_base64: Option<String>,
    /// Who had it before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_owner: Option<String>,
    /// Whether the former owner vanished and did not hand it over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) takeover: bool,
    /// Why a stream ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

impl WorkNews {
    pub(crate) fn new(place: u64, event: WorkState) -> Self {
        Self {
            place,
            event,
            name: String::new(),
            claim: None,
            epoch: 0,
            payload: None,
            payload_base64: None,
            checkpoint: None,
            checkpoint_base64: None,
            last_owner: None,
            takeover: false,
            why: None,
        }
    }

    /// With all that its owner needs.
    pub(crate) fn describe(&mut self, claim: &Claim) {
        (self.payload, self.payload_base64) = text_or_base64(claim.payload());
        if let Some(left) = claim.last_checkpoint() {
            (self.checkpoint, self.checkpoint_base64) = text_or_base64(left);
        }
        self.last_owner = claim.last_owner().map(str::to_owned);
        self.takeover = claim.is_takeover();
    }

    /// What was offered, as it was offered.
    pub(crate) fn payload(&self) -> Vec<u8> {
        match &self.payload_base64 {
            Some(text) => BASE64.decode(text).unwrap_or_default(),
            None => self.payload.clone().unwrap_or_default().into_bytes(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Polled {
    pub(crate) news: Vec<WorkNews>,
    /// For how long the claims hold, from when the request was sent.
    pub(crate) valid_ms: u64,
}

/// A sign of life.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Renew {
    pub(crate) session: String,
    /// The last `place` of a stream that was acted on: what is over up to there is forgotten.
    #[serde(default)]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "whole")]
    pub(crate) after: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Renewed {
    /// For how long the claims hold, from when the request was sent.
    pub(crate) valid_ms: u64,
    /// How many claims it has.
    pub(crate) claims: u64,
    /// Whether the server reaches the engine.
    pub(crate) healthy: bool,
    /// All offers of the service, as last heard.
    pub(crate) offers: u64,
    /// Offers without an owner.
    pub(crate) free: u64,
    /// Offers whose workers vanished.
    pub(crate) orphaned: u64,
}

/// A unit to take by name.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Take {
    pub(crate) session: String,
    pub(crate) name: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ClaimTaken {
    pub(crate) claim: WorkNews,
    /// For how long it holds, from when the request was sent.
    pub(crate) valid_ms: u64,
}

/// Verdicts on claims: checkpoints are stored first, then claims are released, then units are done.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleClaims {
    pub(crate) session: String,
    /// Finished: these units leave the service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    pub(crate) done: Vec<String>,
    /// Given back: others get these.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "objects")]
    #[schema(max_items = 500)]
    pub(crate) release: Vec<RestClaim>,
    /// What the next owners need to go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "objects")]
    #[schema(max_items = 500)]
    pub(crate) checkpoint: Vec<Checkpoint>,
}

/// A claim to give back.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestClaim {
    pub(crate) claim: String,
    /// No worker gets it before this time has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 86_400_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) rest_ms: Option<u64>,
}

/// What the next owner needs, as `state` or `state_base64`, at most 64 KiB.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Checkpoint {
    pub(crate) claim: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) state_base64: Option<String>,
}

impl Checkpoint {
    pub(crate) fn into_parts(self) -> Result<(String, Vec<u8>)> {
        let state = bytes(["state", "state_base64"], self.state, self.state_base64)?;
        let state = state.ok_or_else(|| invalid_at("state", "state: give state or state_base64"))?;
        Ok((self.claim, state))
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ClaimsSettled {
    pub(crate) settled: u64,
    pub(crate) failed: Vec<NotDone>,
    /// For how long the other claims hold, from when the request was sent.
    pub(crate) valid_ms: u64,
}

/// A verdict that was not stored, and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct NotDone {
    pub(crate) claim: String,
    pub(crate) kind: String,
    pub(crate) detail: String,
}
