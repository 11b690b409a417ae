//! What crosses the wire: the JSON of every request and answer, used by the server and by the
//! command line alike.
//!
//! Unknown fields of requests are refused, so that a typing error never passes for a default. Bytes
//! that are not text travel as `…_base64`. The same types describe themselves in the OpenAPI
//! document.

mod about;
mod adopt;
mod check;
mod claims;
mod clients;
mod dead;
mod delayed;
mod engine;
mod event;
mod group;
mod lenient;
mod live;
mod message;
mod policy;
mod routing;
mod sources;
mod stats;
mod takeovers;
mod topic;
mod unit_data;

pub(crate) use about::About;
pub(crate) use adopt::{Adoption, ImportGroup};
pub(crate) use check::CheckedPartition;
pub(crate) use claims::{
    ClaimTaken, ClaimsSettled, Joined, NewOffer, NewService, NotDone, OfferList, OfferShown, OfferState,
    Offered, Poll, Polled, Renew, Renewed, RestClaim, ServiceStatus, Services, SettleClaims, Take, WorkNews,
    WorkState, WorkerJoin, WorkerList, WorkerShown,
};
pub(crate) use clients::{EdgeClients, GatewayClient, GatewayClients, GatewayTold, MAX_CLIENTS};
pub(crate) use dead::{
    Count, DeadGroup, DeadReason, DeadTopic, DeadTopics, Edit, Letter, Letters, PastAttempt, Pick,
};
pub(crate) use delayed::{
    DelayedChanged, DelayedChanges, DelayedList, DelayedPick, DelayedShown, DelayedWhere,
};
pub(crate) use engine::{EngineNodeShown, EngineNodeState, EngineRole, EngineShown};
pub(crate) use event::SystemEvent;
pub(crate) use group::{
    ClientShown, Delivered, Failure, Fetch, Fetched, Group, Groups, InFlightList, InFlightShown, Member,
    Members, NewGroup, NotSettled, PendingList, ResetGroup, ResetPart, ResetPreview, SERVER_MEMBER, Settle,
    SettledReport, Start, Waiting,
};
pub(crate) use lenient::Object;
pub(crate) use live::{Live, Published};
pub(crate) use message::{Outgoing, Placed, Receipts, Records, Shown, Values};
pub(crate) use policy::{GroupPolicy, KeyOrder};
pub(crate) use routing::{
    Alive, BooksShown, ExplainRequest, Explained, ExplainedOne, GatewayGone, GatewayShown, Gateways,
    LaneShown, NewGateway, NewSubscription, NodeShown, RoutedPartition, RoutingStatus, SubscriptionShown,
    Subscriptions,
};
pub(crate) use sources::{Examined, HookTaken, NewSnapshot, SnapshotShown, SourceShown, Sources};
pub(crate) use stats::{GroupStats, ServerSeries, StatsShown, TopicStats};
pub(crate) use takeovers::{ClaimChange, ClaimChangeKind, TakeoverList};
pub(crate) use topic::{
    Delayed, KeyMapping, Topic, TopicChange, TopicPart, TopicSpec, Topics, TrimRequest, TrimmedReport, limits,
};
pub(crate) use unit_data::{
    NotStored, ReadUnitData, RejectRecord, SettleUnitData, UnitDataPage, UnitDataSettled, UnitRecord,
};

use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use firth::{Error, ErrorKind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Standard base64; left-over bits of the last character do not matter.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The longest time that a request can name, in milliseconds: 100 years.
pub(crate) const MAX_MS: u64 = 3_155_760_000_000;

/// The largest count that a request can name: what every reader of JSON keeps.
pub(crate) const MAX_COUNT: u64 = 9_007_199_254_740_991;

const DAY_MS: u64 = 24 * 3600 * 1000;

/// The latest time to which a message can be delayed, by the day.
pub(crate) fn latest_ms(now: SystemTime) -> u64 {
    (unix_ms(now) / DAY_MS + 366) * DAY_MS
}

pub(crate) fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, context.into())
}

/// A request whose `field` is wrong.
pub(crate) fn invalid_at(field: &'static str, context: impl Into<String>) -> Error {
    invalid(context).with_field(field)
}

pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    use base64::Engine as _;
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64.encode(bytes))),
    }
}
