//! `firth claims`: offer work, see who has it, take it back; and work, with a command per claim.

use super::output::{json, line, plain, table};
use super::unit_data::{self, UnitDataArgs};
use super::work::{self, WorkArgs};
use super::{calendar, units};
use crate::client::{Client, escape};
use crate::wire::{
    ClaimChange, NewOffer, NewService, OfferList, OfferShown, OfferState, Offered, ServiceStatus, Services,
    TakeoverList, WorkerList, WorkerShown, invalid,
};
use axum::http::Method;
use clap::{Args, Subcommand};
use firth::Result;
use std::io::BufRead;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth claims offer calls call-4711 --payload sip:alice@example.org
  firth claims work calls --exec 'handle-call \"$FIRTH_CLAIM\"'
  firth claims list calls";

/// Offers of one request.
const PAGE: usize = 1000;

#[derive(Subcommand)]
pub(crate) enum ClaimsCommand {
    /// Offer units of work by name; a name that is offered already stays as it is
    #[command(
        after_help = "Examples:\n  firth claims offer calls call-4711 --payload sip:alice@example.org\n  ls streams | firth claims offer feeds"
    )]
    Offer(OfferArgs),
    /// Take an offer back, owned or not; its owner loses the claim
    #[command(after_help = "Example:\n  firth claims withdraw calls call-4711")]
    Withdraw {
        /// The service
        service: String,
        /// The offer
        name: String,
    },
    /// List offers with their owners and ages
    #[command(after_help = "Example:\n  firth claims list calls --max 20")]
    List {
        /// The service
        service: String,
        /// Go on after this name
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
        max: u64,
    },
    /// Show a service in figures, or all services by name
    #[command(after_help = "Examples:\n  firth claims status calls\n  firth claims status")]
    Status {
        /// The service
        service: Option<String>,
    },
    /// Show the workers of a service
    #[command(after_help = "Example:\n  firth claims workers calls")]
    Workers {
        /// The service
        service: String,
    },
    /// Show who had which unit when, the newest first, as far as the server has looked
    #[command(after_help = "Example:\n  firth claims takeovers calls --max 20")]
    Takeovers {
        /// The service
        service: String,
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
        max: u64,
    },
    /// Make a service with several shards, each on its own node of a cluster
    #[command(after_help = "Example:\n  firth claims create calls --shards 16")]
    Create {
        /// The service
        service: String,
        /// How many; fixed from then on
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
        shards: u32,
    },
    /// Take a claim away from its owner, alive or vanished; the unit is free at once
    #[command(after_help = "Example:\n  firth claims release calls call-4711")]
    Release {
        /// The service
        service: String,
        /// The offer
        name: String,
    },
    /// Take a unit by name and read its own data under the claim
    #[command(after_help = unit_data::EXAMPLES)]
    Follow(UnitDataArgs),
    /// Be a worker: run a command for each claim, and hold the claim while it runs
    #[command(after_help = work::EXAMPLES)]
    Work(WorkArgs),
}

#[derive(Args)]
pub(crate) struct OfferArgs {
    /// The service
    service: String,
    /// The names; lines of the input unless given
    names: Vec<String>,
    /// What their owners need to know
    #[arg(long, value_name = "TEXT")]
    payload: Option<String>,
}

pub(crate) async fn run(client: &Client, command: ClaimsCommand, as_json: bool) -> Result<()> {
    match command {
        ClaimsCommand::Offer(args) => offer(client, args, as_json).await,
        ClaimsCommand::Withdraw { service, name } => {
            client.delete(&offer_path(&service, &name)).await?;
            if as_json { Ok(()) } else { line(&format!("withdrew {name} from {service}")) }
        }
        ClaimsCommand::Release { service, name } => {
            let path = format!("{}/release", offer_path(&service, &name));
            client.send_only(Method::POST, &path, &serde_json::json!({})).await?;
            if as_json { Ok(()) } else { line(&format!("released {name} of {service}")) }
        }
        ClaimsCommand::List { service, after, max } => {
            let after = after.map_or(String::new(), |after| format!("&after={}", escape(&after)));
            let page: OfferList = client.get(&format!("{}/offers?max={max}{after}", path(&service))).await?;
            list(page, as_json)
        }
        ClaimsCommand::Status { service: None } => {
            let all: Services = client.get("/v1/claims").await?;
            if as_json { json(&all) } else { all.services.iter().try_for_each(|service| line(service)) }
        }
        ClaimsCommand::Status { service: Some(service) } => {
            status(&client.get(&path(&service)).await?, as_json)
        }
        ClaimsCommand::Create { service, shards } => {
            let request = NewService { shards: Some(shards) };
            status(&client.send(Method::PUT, &path(&service), &request).await?, as_json)
        }
        ClaimsCommand::Workers { service } => {
            let all: WorkerList = client.get(&format!("{}/workers", path(&service))).await?;
            if as_json {
                return json(&all);
            }
            let row = |worker: WorkerShown| {
                let state = if worker.alive {
                    format!("{} left", units::age(worker.remaining_ms))
                } else {
                    "gone".to_owned()
                };
                let most = if worker.max_claims == 0 {
                    "by name".to_owned()
                } else {
                    units::count(worker.max_claims)
                };
                [worker.name, state, units::count(worker.claims), most, units::age(worker.age_ms)]
            };
            table(["WORKER", "STATE", "CLAIMS", "MOST", "AGE"], all.workers.into_iter().map(row).collect())
        }
        ClaimsCommand::Takeovers { service, max } => {
            takeovers(client.get(&format!("{}/takeovers?max={max}", path(&service))).await?, as_json)
        }
        ClaimsCommand::Follow(args) => unit_data::run(client, args, as_json).await,
        ClaimsCommand::Work(args) => work::run(client, args, as_json).await,
    }
}

fn takeovers(all: TakeoverList, as_json: bool) -> Result<()> {
    if as_json {
        return json(&all);
    }
    let row = |change: ClaimChange| {
        let or_dash = |name: Option<String>| name.map_or("-".to_owned(), |name| plain(&name));
        let time = calendar::show(change.time_ms);
        let kind = change.kind.as_str().to_owned();
        let missed = units::count(change.missed);
        [time, plain(&change.unit), kind, or_dash(change.from), or_dash(change.to), missed]
    };
    let head = ["TIME", "UNIT", "WHAT", "FROM", "TO", "MISSED"];
    table(head, all.changes.into_iter().map(row).collect())
}

async fn offer(client: &Client, args: OfferArgs, as_json: bool) -> Result<()> {
    let names = if args.names.is_empty() { read_names()? } else { args.names };
    let mut sum = Offered { offered: 0, new: 0 };
    for page in names.chunks(PAGE) {
        let unit = |name: &String| NewOffer {
            name: name.clone(),
            payload: args.payload.clone(),
            payload_base64: None,
        };
        let offers: Vec<NewOffer> = page.iter().map(unit).collect();
        let offered: Offered =
            client.send(Method::POST, &format!("{}/offers", path(&args.service)), &offers).await?;
        sum = Offered { offered: sum.offered + offered.offered, new: sum.new + offered.new };
    }
    if as_json {
        json(&sum)
    } else {
        line(&format!("offered {} to {}, {} of them new", sum.offered, args.service, sum.new))
    }
}

fn read_names() -> Result<Vec<String>> {
    let lines: std::io::Result<Vec<String>> = std::io::stdin().lock().lines().collect();
    let lines = lines.map_err(|error| invalid("the input cannot be read").with_source(error))?;
    let names: Vec<String> =
        lines.iter().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
    if names.is_empty() {
        Err(invalid("name what to offer, or write the names on the input, one per line"))
    } else {
        Ok(names)
    }
}

fn list(page: OfferList, as_json: bool) -> Result<()> {
    if as_json {
        return json(&page);
    }
    let row = |offer: OfferShown| {
        let owner = match offer.state {
            OfferState::Owned => offer.owner.unwrap_or_default(),
            OfferState::Free => "-".to_owned(),
            OfferState::Orphaned => format!("orphaned by {}", offer.last_owner.unwrap_or_default()),
        };
        [offer.name, owner, units::age(offer.since_ms), units::age(offer.age_ms)]
    };
    let next = page.next;
    table(["OFFER", "OWNER", "SINCE", "AGE"], page.offers.into_iter().map(row).collect())?;
    next.map_or(Ok(()), |next| line(&format!("there may be more: --after {next}")))
}

fn status(status: &ServiceStatus, as_json: bool) -> Result<()> {
    if as_json {
        return json(status);
    }
    let [offers, owned, free, orphaned] =
        [status.offers, status.owned, status.free, status.orphaned].map(units::count);
    let longest = status.longest_unowned_ms.map_or("-".to_owned(), units::age);
    let row = [status.service.clone(), offers, owned, free, orphaned, longest, status.workers.to_string()];
    table(["SERVICE", "OFFERS", "OWNED", "FREE", "ORPHANED", "LONGEST", "WORKERS"], vec![row])
}

/// The path of a service.
pub(super) fn path(service: &str) -> String {
    format!("/v1/claims/{}", escape(service))
}

fn offer_path(service: &str, name: &str) -> String {
    format!("{}/offers/{}", path(service), escape(name))
}
