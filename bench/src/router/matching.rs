//! The index alone: subscribing, matching, unsubscribing.

use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, percentiles, precise};
use anyhow::Result;
use firth_router::event::{Document, Event, Operation};
use firth_router::filter::Filter;
use firth_router::matching::{Index, Interest};
use firth_router::{SubscriptionId, Tenant};
use serde_json::json;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

/// How many subscriptions want each event.
const WANTED: usize = 300;
/// Different events that are asked in turn.
const EVENTS: usize = 1000;

pub(super) fn measure(cell: &Cell, count: usize) -> Result<Row> {
    let customers = (count / WANTED).max(1);
    let empty = resident()?;
    let mut index = Index::new(1000);
    let begun = Instant::now();
    for n in 0..count {
        let filter = format!("doc.customer == {} && doc.total > {}", n % customers, n / customers % 100);
        let interest = Interest {
            tenant: Tenant::new("acme")?,
            collection: "orders".into(),
            document: None,
            filter: Some(Filter::parse(&filter)?),
        };
        index.insert(SubscriptionId::new(format!("s{n}"))?, interest, ())?;
    }
    let subscribe_us = begun.elapsed().as_secs_f64() * 1e6 / precise(count as u64);
    let bytes = precise(resident()?.saturating_sub(empty) as u64) / precise(count as u64);
    let events = (0..EVENTS).map(|n| event(n * 7919 % customers)).collect::<Result<Vec<_>>>()?;
    let mut hits = Vec::new();
    let mut asked = 0_u64;
    let mut found = 0_u64;
    let mut samples = Samples::with_capacity(1 << 16);
    let until = Instant::now() + cell.rounds.warm;
    for event in events.iter().cycle() {
        index.matches_into(event, &mut hits)?;
        if Instant::now() > until {
            break;
        }
    }
    let clock = Clock::start()?;
    let begun = Instant::now();
    for (turn, event) in events.iter().cycle().enumerate() {
        if turn % 16 == 0 {
            if begun.elapsed() > cell.rounds.timed {
                break;
            }
            let one = Instant::now();
            index.matches_into(event, &mut hits)?;
            samples.push(one.elapsed());
        } else {
            index.matches_into(event, &mut hits)?;
        }
        (asked, found) = (asked + 1, found + black_box(&hits).len() as u64);
    }
    let spent = clock.stop()?;
    let (p50_us, p99_us) = percentiles(&[samples])?;
    let begun = Instant::now();
    let gone = count.min(100_000);
    for n in 0..gone {
        index.remove(&Tenant::new("acme")?, &SubscriptionId::new(format!("s{n}"))?);
    }
    let unsubscribe_us = begun.elapsed().as_secs_f64() * 1e6 / precise(gone as u64);
    let extra = [
        ("matches_per_event", precise(found) / precise(asked)),
        ("subscribe_us", subscribe_us),
        ("unsubscribe_us", unsubscribe_us),
        ("bytes_per_item", bytes),
    ];
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: precise(asked) / spent.wall.as_secs_f64(),
        cpu_us_per_op: spent.cpu.as_secs_f64() * 1e6 / precise(asked),
        p50_us,
        p99_us,
        extra: BTreeMap::from(extra.map(|(name, value)| (name.to_owned(), value))),
    })
}

fn event(customer: usize) -> Result<Event> {
    let document = json!({ "id": 17, "customer": customer, "total": 250, "state": "paid", "lines": [1, 2, 3], "note": "leave at the door" });
    let event = Event::new(Operation::Insert, Tenant::new("acme")?, "orders", "17");
    Ok(event.with_after(Document::from_value(&document)?))
}

/// Bytes of this process in memory.
fn resident() -> Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    Ok(statm.split(' ').nth(1).unwrap_or_default().parse::<usize>()? * 4096)
}
