//! What crosses the wire: the JSON of every request and answer, used by the server and by the command line alike.
//!
//! Unknown fields of requests are refused, so that a typing error never passes for a default. Bytes that are not text
//! travel as `…_base64`. The same types describe themselves in the OpenAPI document.

mod adopt;
mod claims;
mod dead;
mod event;
mod feeds;
mod group;
mod lenient;
mod live;
mod message;
mod policy;
mod routing;
mod topic;

pub(crate) use adopt::{Adoption, ImportGroup};
pub(crate) use claims::{
    ClaimTaken, ClaimsSettled, Joined, NewOffer, NewService, NotDone, OfferList, OfferShown, OfferState,
    Offered, Poll, Polled, Renew, Renewed, Rest, ServiceStatus, Services, SettleClaims, Take, WorkNews,
    WorkState, WorkerJoin, WorkerList, WorkerShown,
};
pub(crate) use dead::{Count, Edit, Letter, Letters, Pick};
pub(crate) use event::SystemEvent;
pub(crate) use feeds::{FeedPage, FeedRecord, FeedSettled, Hopeless, NotStored, ReadFeed, SettleFeed};
pub(crate) use group::{
    ClientShown, Delivered, Failure, Fetch, Fetched, Group, Groups, Member, Members, NewGroup, NotSettled,
    PendingList, ResetGroup, SERVER_MEMBER, Settle, SettledReport, Start, Waiting,
};
pub(crate) use lenient::Object;
pub(crate) use live::{Live, Published};
pub(crate) use message::{Outgoing, Placed, Receipts, Records, Shown, Values};
pub(crate) use policy::{GroupPolicy, KeyOrder};
pub(crate) use routing::{
    Alive, BooksShown, ExplainWish, Explained, ExplainedOne, GatewayGone, GatewayShown, GatewayWish,
    Gateways, NodeShown, RoutedPartition, RoutingStatus, SubscriptionShown, SubscriptionWish, Subscriptions,
};
pub(crate) use topic::{
    About, Delayed, KeyMapping, Topic, TopicChange, TopicPart, TopicSpec, Topics, TrimWish, TrimmedReport,
    limits,
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
