//! Checks of requests that need no stored state, the same for every engine.

use crate::error::{Error, Result};
use crate::facet::{Acquire, StartPosition};
use crate::hold::{Hold, LeaseName};
use crate::id::RecordId;
use crate::limits::{MAX_ENTRY, MAX_NOTE, MAX_RENEW, MAX_SIGNAL, MAX_TTL, MAX_VERDICTS};
use crate::name::{GroupName, Partition};
use std::time::Duration;

pub(crate) fn request(request: &Acquire) -> Result<()> {
    ttl(request.ttl)?;
    if request.rank.is_some() && matches!(request.name, LeaseName::Pool { .. }) {
        return Err(Error::invalid("only leases of groups have ranks"));
    }
    if request.note.len() > MAX_NOTE {
        return Err(Error::invalid(format!(
            "a lease note of {} bytes; at most {MAX_NOTE}",
            request.note.len()
        )));
    }
    Ok(())
}

pub(crate) fn ttl(ttl: Duration) -> Result<()> {
    if ttl < Duration::from_millis(1) || ttl > MAX_TTL {
        return Err(Error::invalid("a lease runs for 1 ms to 24 hours"));
    }
    Ok(())
}

pub(crate) fn renewal(count: usize) -> Result<()> {
    if count > MAX_RENEW {
        return Err(Error::invalid(format!("{count} leases in one call; at most {MAX_RENEW}")));
    }
    Ok(())
}

pub(crate) fn dead_letters(ids: &[RecordId]) -> Result<()> {
    if ids.len() > MAX_VERDICTS {
        return Err(Error::invalid(format!(
            "{} dead letters in one call; at most {MAX_VERDICTS}",
            ids.len()
        )));
    }
    Ok(())
}

pub(crate) fn entry(value: &[u8]) -> Result<()> {
    if value.len() > MAX_ENTRY {
        return Err(Error::invalid(format!("a catalog value of {} bytes; at most {MAX_ENTRY}", value.len())));
    }
    Ok(())
}

pub(crate) fn signal(payload: &[u8]) -> Result<()> {
    if payload.len() > MAX_SIGNAL {
        return Err(Error::invalid(format!(
            "a bus payload of {} bytes; at most {MAX_SIGNAL}",
            payload.len()
        )));
    }
    Ok(())
}

/// Whether it is a place in a log.
pub(crate) fn place(place: StartPosition) -> Result<()> {
    match place {
        StartPosition::Existing => Err(Error::invalid(
            "an existing group is no place in a log: give the start, the end, an id or an age",
        )),
        _ => Ok(()),
    }
}

/// The group whose lease on this partition a hold is for.
pub(crate) fn group_on<'h>(hold: &'h Hold, at: &Partition) -> Result<&'h GroupName> {
    match &hold.lease {
        LeaseName::Group { at: on, group } if on == at => Ok(group),
        lease => Err(Error::invalid(format!("the hold is for {lease}, not for a group on {at}"))),
    }
}

/// Whether a hold is for exactly this lease.
pub(crate) fn is_for(hold: &Hold, name: &LeaseName) -> Result<()> {
    if hold.lease != *name {
        return Err(Error::invalid(format!("the hold is for {}, not for {name}", hold.lease)));
    }
    Ok(())
}
