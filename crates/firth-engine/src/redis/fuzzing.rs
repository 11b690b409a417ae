//! Laws of what servers answer, for fuzzers; see `crate::fuzzing`.

use super::reply_decoding::Parts;
use super::{blob, leases, offers, read};
use crate::hold::LeaseName;
use crate::name::{GroupName, Partition, TopicName};
use crate::record::Content;
use bytes::{Bytes, BytesMut};
use firth_redis::resp::{Decoder, ReplyLimits};

/// Any bytes, taken for the answer of a script: every reader ends in a value or an error.
pub(crate) fn replies(data: &[u8]) {
    let mut buffer = BytesMut::from(data);
    let mut decoder = Decoder::new(ReplyLimits::default());
    while let Ok(Some(frame)) = decoder.decode(&mut buffer) {
        let value = frame.value();
        let _ = Parts::of(value).ahead();
        let _ = Parts::of(value).duration();
        let _ = offers::granted(value);
        let _ = offers::offer_info(u64::MAX, &mut Parts::of(value));
        let _ = offers::membership_info(0, &mut Parts::of(value));
        let topic = TopicName::new("t").expect("a valid name");
        let group = GroupName::new("g").expect("a valid name");
        let lease = LeaseName::Group { at: Partition::new(topic, 0), group };
        let _ = leases::lease_info(&lease, value);
        let _ = read::entries_of(Some(value));
    }
}

/// Any bytes, taken for the records of one entry of a stream.
pub(crate) fn records(data: &[u8]) {
    let Some(records) = blob::unpack(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(records.len(), blob::count(data));
    for record in records {
        if let Ok(content) = Content::unpack(record) {
            let _ = content.headers.iter().count();
        }
    }
}
