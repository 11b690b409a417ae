//! The limit as a subject: XADD in pipelines of 128, XREAD of 100 with a plain position stored per
//! 100, from two blocking threads.

use super::meter::Meter;
use super::place::Place;
use super::subject::{Pace, Subject};
use super::workload::PAYLOAD;
use crate::raw::{Cursor, PIPELINE, Raw, put_append};
use anyhow::{Context, Result};
use std::sync::Arc;
use std::time::Instant;

pub(crate) struct Limit {
    port: u16,
    streams: Vec<String>,
}

impl Limit {
    pub(crate) fn open(place: &Place, partitions: u32) -> Self {
        Self { port: place.port(), streams: (0..partitions).map(|index| format!("{{{index}}}")).collect() }
    }
}

impl Subject for Limit {
    async fn produce(&self, meter: &Arc<Meter>, pace: Pace, counts: bool) -> Result<()> {
        let port = self.port;
        let streams = self.streams.clone();
        let meter = meter.clone();
        let run = move || match pace {
            Pace::Full => at_full_speed(port, &streams, &meter, counts),
            Pace::Every(every) => {
                let mut raw = Raw::connect(port)?;
                let begun = Instant::now();
                for number in 0..u32::try_from(meter.goal())? {
                    std::thread::sleep((begun + every * number).saturating_duration_since(Instant::now()));
                    let mut command = Vec::new();
                    put_append(&mut command, &streams[0], &meter.stamped());
                    raw.run(&command, 1)?;
                }
                Ok(())
            }
        };
        tokio::task::spawn_blocking(run).await.context("the producer's thread")?
    }

    async fn consume(&self, meter: &Arc<Meter>, stamped: bool) -> Result<()> {
        let port = self.port;
        let streams = self.streams.clone();
        let meter = meter.clone();
        let run = move || {
            let mut raw = Raw::connect(port)?;
            let mut streams: Vec<Cursor> = streams.iter().map(|name| Cursor::start(name)).collect();
            while meter.seen() < meter.goal() {
                let records = raw.read(&mut streams, Some(1000), |_, payload| {
                    if stamped {
                        meter.sample(payload);
                    }
                })?;
                meter.add(records as u64);
            }
            raw.commit(&mut streams)
        };
        tokio::task::spawn_blocking(run).await.context("the consumer's thread")?
    }
}

fn at_full_speed(port: u16, streams: &[String], meter: &Meter, counts: bool) -> Result<()> {
    let mut raw = Raw::connect(port)?;
    let payload = vec![b'x'; PAYLOAD];
    let batches: Vec<Vec<u8>> = streams
        .iter()
        .map(|stream| {
            let mut batch = Vec::new();
            (0..PIPELINE).for_each(|_| put_append(&mut batch, stream, &payload));
            batch
        })
        .collect();
    let one = batches[0].len() / PIPELINE;
    let mut sent = 0;
    for batch in batches.iter().cycle() {
        let count = PIPELINE.min(usize::try_from(meter.goal() - sent)?);
        if count == 0 {
            break;
        }
        raw.run(&batch[..if count == PIPELINE { batch.len() } else { one * count }], count)?;
        sent += count as u64;
        if counts {
            meter.add(count as u64);
        }
    }
    Ok(())
}
