//! `firth top`: a live view of throughput, lag, owners and dead letters; `--once` prints it as
//! tables.
//!
//! The server samples, so a board costs it one call however many topics there are, and begins with
//! the last 15 minutes. `board` is pure, `view` draws a board; this file only looks, draws and
//! listens to keys.

mod board;
mod view;

use super::output::{json, table};
use super::units;
use crate::client::{Client, escape};
use crate::wire::StatsShown;
use board::Board;
use clap::Args;
use firth::{Error, ErrorKind, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How many topics and groups are shown at most, the busiest first.
const MOST: usize = 1000;
/// How long `--once` waits for a sample beyond its interval.
const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth top
  firth top --every 5s --topic orders
  firth top --once --json

Keys: q ends it, p pauses it, up and down scroll the groups.";

#[derive(Args)]
pub(crate) struct TopArgs {
    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = units::duration)]
    every: Duration,
    /// Only these topics, of the 256 busiest; may be given several times
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// Wait for a sample, print the figures, and end
    #[arg(long)]
    once: bool,
}

pub(crate) async fn run(client: &Client, args: TopArgs, as_json: bool) -> Result<()> {
    let args = TopArgs { every: args.every.max(Duration::from_millis(100)), ..args };
    if args.once || as_json || !std::io::stdout().is_terminal() {
        return once(client, &args, as_json).await;
    }
    let mut terminal = ratatui::try_init().map_err(broken)?;
    let outcome = live(client, &args, &mut terminal).await;
    ratatui::restore();
    outcome
}

async fn once(client: &Client, args: &TopArgs, as_json: bool) -> Result<()> {
    let mut board = Board::default();
    board.add(look(client, &args.topics, 0).await?);
    let before = board.after_ms();
    let deadline = Instant::now() + args.every + PATIENCE;
    // Rates need two samples, and figures shall not be older than the command.
    loop {
        tokio::time::sleep(args.every).await;
        board.add(look(client, &args.topics, board.after_ms()).await?);
        if board.after_ms() > before || Instant::now() > deadline {
            break;
        }
    }
    if as_json {
        return json(&board.rows());
    }
    let rows = board.rows();
    table(board::TOPIC_HEAD, rows.topics.iter().map(board::TopicRow::cells).collect())?;
    super::output::line("")?;
    table(board::GROUP_HEAD, rows.groups.iter().map(board::GroupRow::cells).collect())
}

async fn live(client: &Client, args: &TopArgs, terminal: &mut ratatui::DefaultTerminal) -> Result<()> {
    let mut board = Board::default();
    let mut screen = view::Screen::default();
    loop {
        if !screen.is_paused {
            match look(client, &args.topics, board.after_ms()).await {
                Ok(look) => {
                    screen.trouble = None;
                    board.add(look);
                }
                // A server that is away may come back: the view says so and goes on.
                Err(error) if error.is_retryable() => screen.trouble = Some(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        let until = Instant::now() + args.every;
        loop {
            let rows = board.rows();
            terminal.draw(|frame| view::draw(frame, &rows, &screen)).map_err(broken)?;
            let left = until.saturating_duration_since(Instant::now());
            match key(left).await? {
                Some(Key::End) => return Ok(()),
                Some(Key::Pause) => screen.is_paused = !screen.is_paused,
                Some(Key::Up) => screen.scroll = screen.scroll.saturating_sub(1),
                Some(Key::Down) => {
                    screen.scroll = (screen.scroll + 1).min(rows.groups.len().saturating_sub(1));
                }
                None => {}
            }
            if Instant::now() >= until {
                break;
            }
        }
    }
}

enum Key {
    End,
    Pause,
    Up,
    Down,
}

/// The next key that means something, within this time.
async fn key(within: Duration) -> Result<Option<Key>> {
    let listening = tokio::task::spawn_blocking(move || {
        if !event::poll(within)? {
            return Ok(None);
        }
        let Event::Key(pressed) = event::read()? else { return Ok(None) };
        if pressed.kind != KeyEventKind::Press {
            return Ok(None);
        }
        let with_control = pressed.modifiers.contains(KeyModifiers::CONTROL);
        Ok(match pressed.code {
            KeyCode::Char('c') if with_control => Some(Key::End),
            KeyCode::Char('q') | KeyCode::Esc => Some(Key::End),
            KeyCode::Char('p' | ' ') => Some(Key::Pause),
            KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
            KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
            _ => None,
        })
    });
    listening.await.map_err(|error| broken(std::io::Error::other(error)))?.map_err(broken)
}

fn broken(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unsupported, "this terminal cannot show it: use --once").with_source(error)
}

/// What the server sampled after this time, of all topics or of each of these.
async fn look(client: &Client, only: &[String], after_ms: u64) -> Result<Vec<StatsShown>> {
    let path = format!("/v1/stats?max={MOST}&after_ms={after_ms}");
    if only.is_empty() {
        return Ok(vec![client.get(&path).await?]);
    }
    let mut all = Vec::new();
    for topic in only {
        all.push(client.get(&format!("{path}&topic={}", escape(topic))).await?);
    }
    Ok(all)
}
