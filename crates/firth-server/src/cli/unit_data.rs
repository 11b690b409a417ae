//! `firth claims follow`: takes a unit by name and reads its own data under the claim; prints and
//! acks, or lets a command decide.
//!
//! `follow` reads the data in order and settles it record by record. If a command fails, `follow`
//! stops, and the next owner of the unit gets the record again. While a command runs, `follow`
//! renews the claim; if that fails, it kills the command.

use super::claims::path;
use super::consume::ReadArgs;
use super::exec::{self, Verdict};
use super::guard;
use super::output::{json, line, note, plain};
use super::signals::Signals;
use super::units;
use crate::client::{Client, escape};
use crate::wire::{
    ClaimTaken, Joined, NewGroup, ReadUnitData, RejectRecord, Renew, Renewed, RestClaim, SettleClaims,
    SettleUnitData, Shown, Take, UnitDataPage, UnitDataSettled, UnitRecord, WorkerJoin,
};
use axum::http::Method;
use clap::Args;
use firth::{Error, ErrorKind, Result};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth claims follow devices device-3 telemetry --partition 3
  firth claims follow devices device-3 telemetry --partition 3 --follow --exec ./store-reading

The command of --exec gets what it gets from consume. It ends with 0: done. With 65: a dead letter. With anything
else the record stays unsettled, the unit is released, and whoever takes it next begins with this record.";

/// The most records of one read.
const MOST: u64 = 100;
/// How long one read waits; a signal waits at most as long.
const WAIT: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct UnitDataArgs {
    /// The service
    service: String,
    /// The unit
    unit: String,
    /// The topic that holds the unit's data
    topic: String,
    /// Which partition is the unit's
    #[arg(long, value_name = "P", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4095))]
    partition: u32,
    /// The group whose progress it is; one of the service's own unless given
    #[arg(long)]
    group: Option<String>,
    /// Take the unit also from a living owner, which loses it at once
    #[arg(long)]
    seize: bool,
    #[command(flatten)]
    how: ReadArgs,
    /// How long after this worker dies or hangs others may take the unit
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = units::duration)]
    ttl: Duration,
    /// A name of its own for this worker; made up unless given
    #[arg(long, alias = "name", value_name = "NAME")]
    worker: Option<String>,
}

pub(crate) async fn run(client: &Client, args: UnitDataArgs, as_json: bool) -> Result<()> {
    let name = args.worker.clone().unwrap_or_else(|| format!("cli-{:08x}", fastrand::u32(..)));
    let start = args.how.from.as_deref().map_or(Ok(NewGroup::default()), super::group::start)?;
    let place = format!("{}/workers/{}", path(&args.service), escape(&name));
    let request = WorkerJoin {
        ttl_ms: Some(units::millis(args.ttl)),
        max_claims: Some(1),
        by_name_only: true,
        handover_ms: None,
    };
    let joined: Joined = client.send(Method::PUT, &place, &request).await?;
    let mut reader =
        Reader { client, args: &args, place, session: joined.session, claim: String::new(), start };
    let mut signals = Signals::listen()?;
    guard::start();
    let done = reader.work(as_json, &mut signals).await;
    let left = reader.leave().await;
    done.and(left)
}

struct Reader<'a> {
    client: &'a Client,
    args: &'a UnitDataArgs,
    place: String,
    session: String,
    claim: String,
    start: NewGroup,
}

impl Reader<'_> {
    async fn work(&mut self, as_json: bool, signals: &mut Signals) -> Result<()> {
        let take = Take { session: self.session.clone(), name: self.args.unit.clone() };
        let how = if self.args.seize { "seize" } else { "claim" };
        let taken: ClaimTaken =
            self.client.send(Method::POST, &format!("{}/{how}", self.place), &take).await?;
        self.claim = taken.claim.claim.unwrap_or_default();
        let mut left = self.args.how.max.unwrap_or(u64::MAX);
        let mut heard = Instant::now();
        while left > 0 {
            let read = self.read(left.min(MOST));
            let (page, is_last) = signals.finish(read).await;
            let page = page?;
            left -= page.records.len() as u64;
            if !page.records.is_empty() {
                heard = Instant::now();
            }
            match &self.args.how.exec {
                None => self.print(page.records, as_json).await?,
                Some(command) => {
                    for UnitRecord { record, .. } in page.records {
                        self.handle(command, record, as_json).await?;
                    }
                }
            }
            if page.recalled {
                note("the unit is wanted back");
            }
            let is_quiet = !self.args.how.follow && heard.elapsed() >= self.args.how.wait;
            if is_last || is_quiet || page.recalled {
                break;
            }
        }
        Ok(())
    }

    async fn read(&self, max: u64) -> Result<UnitDataPage> {
        let wait = self.args.how.wait.min(WAIT).min(self.args.ttl / 3);
        let request = ReadUnitData {
            session: self.session.clone(),
            claim: self.claim.clone(),
            partition: self.args.partition.into(),
            group: self.args.group.clone(),
            start: self.start.start,
            age_ms: self.start.age_ms,
            after: 0,
            max: Some(max),
            wait_ms: Some(units::millis(wait)),
        };
        self.client.send(Method::POST, &self.data("read"), &request).await
    }

    /// Prints records and acks those that it printed. `follow` settles a page before it reads the
    /// next one, so a read begins with the first unsettled record.
    async fn print(&self, records: Vec<UnitRecord>, as_json: bool) -> Result<()> {
        let mut verdicts = self.verdicts();
        let mut printed = Ok(());
        for UnitRecord { record, .. } in records {
            printed = if as_json { json(&record) } else { line(&plain(record.text())) };
            if printed.is_err() {
                break;
            }
            verdicts.ack.push(record.id);
        }
        if !verdicts.ack.is_empty() {
            self.settle(&verdicts).await?;
        }
        printed
    }

    async fn handle(&self, command: &str, record: Shown, as_json: bool) -> Result<()> {
        let mut verdicts = self.verdicts();
        let told = |verdict: &str, why: Option<&str>| match (as_json, why) {
            (true, why) => json(&serde_json::json!({
                "partition": record.partition, "id": record.id, "verdict": verdict, "reason": why,
            })),
            (false, Some(why)) => {
                note(&format!("{verdict} {}/{}: {why}", record.partition, record.id));
                Ok(())
            }
            (false, None) => Ok(()),
        };
        match self.execute(command, &record).await? {
            Verdict::Ack => {
                verdicts.ack.push(record.id.clone());
                self.settle(&verdicts).await?;
                told("ack", None)
            }
            Verdict::Reject(why) => {
                verdicts.reject.push(RejectRecord { id: record.id.clone(), reason: Some(why.clone()) });
                self.settle(&verdicts).await?;
                told("reject", Some(&why))
            }
            Verdict::Nack(why) | Verdict::Broken(why) => {
                let context = format!("record {}/{} is not done: {why}", record.partition, record.id);
                Err(Error::new(ErrorKind::Internal, context))
            }
        }
    }

    async fn settle(&self, verdicts: &SettleUnitData) -> Result<()> {
        let settled: UnitDataSettled = self.client.send(Method::POST, &self.data("settle"), verdicts).await?;
        match settled.failed.first() {
            None => Ok(()),
            Some(failed) => Err(Error::new(ErrorKind::Fenced, format!("not settled: {}", failed.detail))),
        }
    }

    /// Runs the command and renews the claim beside it.
    async fn execute(&self, command: &str, record: &Shown) -> Result<Verdict> {
        let group = self.args.group.clone().unwrap_or_else(|| format!("claims.{}", self.args.service));
        let running = exec::run_for_long(command, &group, record);
        let mut running = std::pin::pin!(running);
        loop {
            tokio::select! {
                verdict = &mut running => return Ok(verdict),
                () = tokio::time::sleep(self.args.ttl / 3) => {
                    let renew = Renew { session: self.session.clone(), after: 0 };
                    let place = format!("{}/renew", self.place);
                    let renewed = self.client.send::<Renewed>(Method::POST, &place, &renew);
                    let renewed = tokio::time::timeout(self.args.ttl / 3, renewed).await;
                    renewed.map_err(|_| Error::new(ErrorKind::Timeout, "the claim could not be renewed in time"))??;
                }
            }
        }
    }

    fn verdicts(&self) -> SettleUnitData {
        SettleUnitData {
            session: self.session.clone(),
            claim: self.claim.clone(),
            partition: self.args.partition.into(),
            group: self.args.group.clone(),
            ..SettleUnitData::default()
        }
    }

    fn data(&self, what: &str) -> String {
        format!("{}/data/{}/{what}", self.place, escape(&self.args.topic))
    }

    /// Gives the unit back and leaves.
    async fn leave(&self) -> Result<()> {
        if !self.claim.is_empty() {
            let release = vec![RestClaim { claim: self.claim.clone(), rest_ms: None }];
            let verdicts = SettleClaims { session: self.session.clone(), release, ..SettleClaims::default() };
            // Leaving frees it as well.
            let _ = self
                .client
                .send::<serde_json::Value>(Method::POST, &format!("{}/settle", self.place), &verdicts)
                .await;
        }
        match self.client.delete(&format!("{}?session={}", self.place, escape(&self.session))).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            left => left,
        }
    }
}
