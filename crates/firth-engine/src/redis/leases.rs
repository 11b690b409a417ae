//! The leases facet. Leases of groups live with their partition, leases of a pool together; each is
//! renewed, listed and taken by scripts that compare deadlines with the server's clock.

use super::RedisEngine;
use super::error_mapping::{odd_answer, of_call};
use super::reply_decoding::{Parts, StepSubject};
use super::restart_guard::is_unknown;
use super::scripts::SCRIPTS;
use super::unit_clock::{SentAt, UnitClock};
use super::{micros, pools};
use crate::checks;
use crate::error::Result;
use crate::facet::{Acquire, Acquired, LeaseQuery, Leases, Reply};
use crate::hold::{Hold, LeaseInfo, LeaseName, Token};
use crate::id::Epoch;
use crate::name::{HolderName, Partition, PoolName};
use firth_redis::resp::{Frame, Value};
use firth_redis::{Pipe, ScriptCall};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Leases that one script renews or looks at.
const STEP: usize = 512;

impl Leases for RedisEngine {
    fn acquire<'a>(&'a self, request: Acquire) -> Reply<'a, Acquired> {
        Box::pin(async move {
            checks::request(&request)?;
            let token = Token::random();
            let (script, call) = match &request.name {
                LeaseName::Group { at, group } => {
                    let (keys, own) = self.group_keys(at, group);
                    let script = &SCRIPTS.acquire_group;
                    let all = [&own.meta, &keys.groups, &keys.lease_version, &keys.meta];
                    (script, script.keys(all).arg(group.as_str()))
                }
                LeaseName::Pool { pool, name } => {
                    let keys = self.keys.pool(pool);
                    let script = &SCRIPTS.acquire_pool;
                    let all = [&keys.leases, &keys.notes, &keys.meta, &keys.gone];
                    (script, script.keys(all).arg(name.as_str()))
                }
            };
            let (epoch, beats) = request
                .stalled
                .map_or_else(Default::default, |(epoch, beats)| (epoch.to_string(), beats.to_string()));
            let call = call
                .arg(request.holder.as_str())
                .arg(print_token(token))
                .arg(micros(request.ttl))
                .arg(&request.note)
                .arg(epoch)
                .arg(beats)
                .arg(request.rank.map_or_else(String::new, |rank| rank.to_string()));
            let clock = self.clock(LeaseHome::of(&request.name));
            let (call, sent) = clock.timed(call);
            // A lease counts only when it is as durable as everything else: two sides of a network
            // partition may both hand it out.
            let mut answer = self.steps.durable(script, call).await?;
            if let LeaseName::Group { at, group } = &request.name {
                answer = StepSubject::group(at, group).accept(answer)?;
            }
            let mut parts = clock.heard(sent, answer.value())?;
            if parts.number()? == 1 {
                let epoch = Epoch(parts.number()?);
                return Ok(Acquired::Granted(Hold {
                    lease: request.name,
                    holder: request.holder,
                    epoch,
                    token,
                }));
            }
            let held = match &request.name {
                LeaseName::Group { .. } => lease_parts(&request.name, &mut parts)?,
                LeaseName::Pool { .. } => pools::held(&request.name, &mut parts)?,
            };
            Ok(Acquired::Held(held))
        })
    }

    fn renew<'a>(&'a self, holds: &'a [Hold], ttl: Duration) -> Reply<'a, Vec<bool>> {
        Box::pin(async move {
            checks::renewal(holds.len())?;
            checks::ttl(ttl)?;
            let mut calls = Calls::default();
            for (home, places) in by_home(holds.iter().map(|hold| &hold.lease)) {
                for places in places.chunks(STEP) {
                    let call = match home {
                        LeaseHome::Partition(at) => self.renew_groups(at, holds, places, ttl),
                        LeaseHome::Pool(pool) => self.renew_pool(pool, holds, places, ttl),
                    };
                    let clock = self.clock(home);
                    let (call, sent) = clock.timed(call);
                    calls.add(LeaseCall { call, clock, sent, places: places.to_vec() });
                }
            }
            let mut renewed = vec![false; holds.len()];
            for (answer, LeaseCall { clock, sent, places, .. }) in self.run_all(calls).await? {
                let mut parts = clock.heard(sent, answer.value())?;
                for place in places {
                    renewed[place] = parts.number()? == 1;
                }
            }
            Ok(renewed)
        })
    }

    fn release<'a>(&'a self, hold: &'a Hold) -> Reply<'a, bool> {
        Box::pin(async move {
            let call = match &hold.lease {
                LeaseName::Group { at, group } => {
                    let (keys, own) = self.group_keys(at, group);
                    let all = [&own.meta, &keys.lease_version, &keys.meta, &keys.groups];
                    SCRIPTS.release_group.keys(all).arg(group.as_str())
                }
                LeaseName::Pool { pool, name } => {
                    let keys = self.keys.pool(pool);
                    let all = [&keys.leases, &keys.notes, &keys.meta, &keys.gone];
                    SCRIPTS.release_pool.keys(all).arg(name.as_str())
                }
            };
            // Losing this step only means that the lease runs out by itself.
            let answer = self.steps.quick(call.arg(hold.epoch.0).arg(print_token(hold.token))).await?;
            answer.value().as_i64().map(|released| released == 1).ok_or_else(odd_answer)
        })
    }

    fn revoke<'a>(&'a self, name: &'a LeaseName) -> Reply<'a, bool> {
        Box::pin(async move {
            let (script, call) = match name {
                LeaseName::Group { at, group } => {
                    let (keys, own) = self.group_keys(at, group);
                    let script = &SCRIPTS.revoke_group;
                    let all = [&own.meta, &keys.lease_version, &keys.meta, &keys.groups];
                    (script, script.keys(all).arg(group.as_str()))
                }
                LeaseName::Pool { pool, name } => {
                    let keys = self.keys.pool(pool);
                    let script = &SCRIPTS.release_pool;
                    let all = [&keys.leases, &keys.notes, &keys.meta, &keys.gone];
                    (script, script.keys(all).arg(name.as_str()))
                }
            };
            let answer = self.steps.durable(script, call).await?;
            answer.value().as_i64().map(|was_there| was_there == 1).ok_or_else(odd_answer)
        })
    }

    fn leases<'a>(&'a self, query: &'a LeaseQuery) -> Reply<'a, Vec<LeaseInfo>> {
        Box::pin(async move {
            match query {
                LeaseQuery::Pool(pool) => self.list_pool(pool).await,
                LeaseQuery::Names(names) => self.look_at(names).await,
            }
        })
    }
}

impl RedisEngine {
    fn renew_groups(&self, at: &Partition, holds: &[Hold], places: &[usize], ttl: Duration) -> ScriptCall {
        let keys = self.keys.partition(at);
        let groups = places.iter().filter_map(|place| match &holds[*place].lease {
            LeaseName::Group { group, .. } => Some(keys.group(group).meta),
            LeaseName::Pool { .. } => None,
        });
        let all = groups.chain([keys.meta.clone()]);
        let mut call = SCRIPTS.renew_groups.keys(all).arg(micros(ttl));
        for place in places {
            call = call.arg(holds[*place].epoch.0).arg(print_token(holds[*place].token));
        }
        call
    }

    fn renew_pool(&self, pool: &PoolName, holds: &[Hold], places: &[usize], ttl: Duration) -> ScriptCall {
        let keys = self.keys.pool(pool);
        let mut call = SCRIPTS.renew_pool.keys([keys.leases, keys.meta]).arg(micros(ttl));
        for place in places {
            let hold = &holds[*place];
            call = call.arg(member(&hold.lease)).arg(format!("{} {} ", hold.epoch, print_token(hold.token)));
        }
        call
    }

    /// The named leases that exist, in the order of asking.
    async fn look_at(&self, names: &[LeaseName]) -> Result<Vec<LeaseInfo>> {
        let mut calls = Calls::default();
        for (home, places) in by_home(names.iter()) {
            for places in places.chunks(STEP) {
                let call = match home {
                    LeaseHome::Partition(at) => {
                        let keys = self.keys.partition(at);
                        let groups = places.iter().filter_map(|place| match &names[*place] {
                            LeaseName::Group { group, .. } => Some(keys.group(group).meta),
                            LeaseName::Pool { .. } => None,
                        });
                        SCRIPTS.look_groups.keys(groups.chain([keys.meta.clone()]))
                    }
                    LeaseHome::Pool(pool) => {
                        let keys = self.keys.pool(pool);
                        let call = SCRIPTS.look_pool.keys([&keys.leases, &keys.notes, &keys.meta]);
                        call.args(places.iter().map(|place| member(&names[*place])))
                    }
                };
                let clock = self.clock(home);
                let sent = SentAt::now();
                calls.add(LeaseCall { call, clock, sent, places: places.to_vec() });
            }
        }
        let mut found: Vec<Option<LeaseInfo>> = vec![None; names.len()];
        for (answer, LeaseCall { clock, sent, places, .. }) in self.run_all(calls).await? {
            let (now, mut parts) = clock.looked(sent, answer.value())?;
            for place in places {
                let name = &names[place];
                found[place] = match name {
                    LeaseName::Pool { .. } => pools::looked(name, now, &mut parts)?,
                    LeaseName::Group { .. } => lease_info(name, parts.value()?)?,
                };
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Runs calls to any number of slots in one round trip. A script that a node does not know is
    /// loaded there and run again.
    async fn run_all(&self, calls: Calls) -> Result<Vec<(Frame, LeaseCall)>> {
        let answers = self.steps.client.pipeline::<Vec<Frame>>(calls.pipe).await.map_err(of_call)?;
        let mut done = Vec::with_capacity(answers.len());
        for (answer, call) in answers.into_iter().zip(calls.parts) {
            let answer = match answer {
                unknown if is_unknown(&unknown) => self.steps.quick(call.call.clone()).await?,
                answer => answer.map_err(of_call)?,
            };
            done.push((answer, call));
        }
        Ok(done)
    }

    fn clock(&self, home: LeaseHome<'_>) -> Arc<UnitClock> {
        match home {
            LeaseHome::Partition(at) => self.keys.partition(at).clock.clone(),
            LeaseHome::Pool(pool) => self.keys.pool_clock(pool),
        }
    }
}

/// Script calls that travel together.
#[derive(Default)]
struct Calls {
    pipe: Pipe,
    parts: Vec<LeaseCall>,
}

/// A call about leases of one home, and the places in the request that it answers for.
struct LeaseCall {
    call: ScriptCall,
    clock: Arc<UnitClock>,
    sent: SentAt,
    places: Vec<usize>,
}

impl Calls {
    fn add(&mut self, call: LeaseCall) {
        self.pipe.push(call.call.command());
        self.parts.push(call);
    }
}

/// What keeps leases together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LeaseHome<'a> {
    Partition(&'a Partition),
    Pool(&'a PoolName),
}

impl<'a> LeaseHome<'a> {
    fn of(name: &'a LeaseName) -> Self {
        match name {
            LeaseName::Group { at, .. } => Self::Partition(at),
            LeaseName::Pool { pool, .. } => Self::Pool(pool),
        }
    }
}

fn by_home<'a>(names: impl Iterator<Item = &'a LeaseName>) -> BTreeMap<LeaseHome<'a>, Vec<usize>> {
    let mut homes: BTreeMap<LeaseHome<'a>, Vec<usize>> = BTreeMap::new();
    for (place, name) in names.enumerate() {
        homes.entry(LeaseHome::of(name)).or_default().push(place);
    }
    homes
}

fn member(name: &LeaseName) -> &str {
    match name {
        LeaseName::Pool { name, .. } => name.as_str(),
        LeaseName::Group { group, .. } => group.as_str(),
    }
}

pub(super) fn print_token(token: Token) -> String {
    format!("{:032x}", token.0)
}

/// A group's lease as the scripts list it; `None` if there never was one.
pub(super) fn lease_info(name: &LeaseName, value: Value<'_>) -> Result<Option<LeaseInfo>> {
    if value.is_empty() {
        return Ok(None);
    }
    lease_parts(name, &mut Parts::of(value)).map(Some)
}

fn lease_parts(name: &LeaseName, parts: &mut Parts<'_>) -> Result<LeaseInfo> {
    Ok(LeaseInfo {
        name: name.clone(),
        epoch: Epoch(parts.number()?),
        holder: holder(parts.text()?)?,
        remaining: parts.duration()?.unwrap_or_default(),
        beats: parts.number()?,
        note: parts.bytes()?,
    })
}

pub(super) fn holder(text: &str) -> Result<Option<HolderName>> {
    Ok(if text.is_empty() { None } else { Some(HolderName::new(text)?) })
}
