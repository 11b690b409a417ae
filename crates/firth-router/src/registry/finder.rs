//! Where events go: who wants them, and which gateway each of those is at.

use super::Wanted;
use super::state::State;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::matching::Hit;
use crate::name::GatewayId;
use crate::routing::Target;
use foldhash::fast::RandomState;
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::sync::{Arc, RwLockReadGuard};

/// Gateways that want an event, each once, with their subscriptions.
pub(crate) type ByGateway = SmallVec<[(GatewayId, SmallVec<[Wanted; 1]>); 1]>;

/// Where an event goes.
#[derive(Default)]
pub(crate) struct Destinations {
    pub(crate) by_gateway: ByGateway,
    /// Why some who want it do not get it.
    pub(crate) refused: Option<Box<Error>>,
}

/// The registry as it is now. Nothing in it changes while this lives.
pub(crate) struct Finder<'a> {
    state: RwLockReadGuard<'a, State>,
    hits: Vec<Hit>,
    /// The registry is in step with what was answered to those who registered.
    may_match: bool,
}

impl<'a> Finder<'a> {
    pub(super) fn new(state: RwLockReadGuard<'a, State>, may_match: bool) -> Self {
        Self { state, hits: Vec::new(), may_match }
    }

    /// The gateways that want an event, each with its subscriptions. If some of them have no
    /// gateway yet, it is an error: the event waits. That a broadcast would go to too many refuses
    /// only those who asked for it. While the registry may lack subscriptions, every event waits.
    pub(crate) fn destinations(&mut self, event: &Event, max_fanout: usize) -> Result<Destinations> {
        let Self { state, hits, may_match } = self;
        if !*may_match {
            let context = "this node may lack subscriptions: it reads the registry again first";
            return Err(Error::new(ErrorKind::Unavailable, context));
        }
        state.matches(event, hits)?;
        let table = state.tables().of(&event.tenant);
        let mut found = Destinations::default();
        let mut places = HashMap::with_hasher(RandomState::default());
        for hit in hits {
            let (_, subscription) = state.index().get(hit.number).expect("the index was not changed since");
            let wanted = Wanted { subscription: Arc::clone(subscription), leaves: hit.leaves };
            if let Target::Direct(gateway) = &subscription.target {
                add(&mut found.by_gateway, &mut places, gateway, wanted);
                continue;
            }
            match subscription.target.gateways(&subscription.id, &table, max_fanout) {
                Ok(gateways) => gateways.into_iter().for_each(|gateway| {
                    add(&mut found.by_gateway, &mut places, gateway, wanted.clone());
                }),
                Err(error) if error.kind() == ErrorKind::Quota => found.refused = Some(Box::new(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Adds a subscription to its gateway. Few gateways are looked through, many are found by `places`.
fn add(
    found: &mut ByGateway,
    places: &mut HashMap<GatewayId, usize, RandomState>,
    gateway: &GatewayId,
    wanted: Wanted,
) {
    const FEW: usize = 8;
    let place = match found.len() {
        0..=FEW => found.iter().position(|(other, _)| other == gateway),
        _ => places.get(gateway).copied(),
    };
    if let Some(place) = place {
        return found[place].1.push(wanted);
    }
    found.push((gateway.clone(), smallvec![wanted]));
    match found.len() {
        // From here on they are many.
        len if len == FEW + 1 => {
            places.extend(found.iter().map(|(gateway, _)| gateway.clone()).zip(0..));
        }
        len if len > FEW => drop(places.insert(gateway.clone(), len - 1)),
        _ => {}
    }
}
