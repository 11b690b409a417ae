//! Draws a board on any backend of ratatui.

use super::board::{GROUP_HEAD, Rows, TOPIC_HEAD};
use crate::cli::output::plain;
use crate::cli::units;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

/// What the reader did to the view.
#[derive(Default)]
pub(super) struct Screen {
    pub(super) is_paused: bool,
    /// How many groups are scrolled past.
    pub(super) scroll: usize,
    /// Why the figures are old.
    pub(super) trouble: Option<String>,
}

pub(super) fn draw(frame: &mut Frame<'_>, rows: &Rows, screen: &Screen) {
    let topics = u16::try_from(rows.topics.len()).unwrap_or(u16::MAX).saturating_add(3);
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Max(topics.min(frame.area().height / 3)),
        Constraint::Min(4),
        Constraint::Length(1),
    ]);
    let [head, history, topics, groups, foot] = areas.areas(frame.area());
    frame.render_widget(summary(rows), head);
    draw_history(frame, history, rows);
    let bodies = rows.topics.iter().map(|topic| Row::new(topic.cells().map(clean)));
    frame.render_widget(sheet(" topics ", TOPIC_HEAD, bodies, [24, 11, 14, 10, 10, 14]), topics);
    draw_groups(frame, groups, rows, screen);
    frame.render_widget(footer(screen), foot);
}

fn summary(rows: &Rows) -> Paragraph<'static> {
    let alarm = if rows.dead > 0 { Style::new().fg(Color::Red) } else { Style::new() };
    let part = |name: &str, number: u64| format!("{name} {}   ", units::count(number));
    Paragraph::new(Line::from(vec![
        Span::styled("firth top   ", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(part("in/s", rows.in_per_s)),
        Span::raw(part("out/s", rows.out_per_s)),
        Span::raw(part("lag", rows.lag)),
        Span::styled(part("dead", rows.dead), alarm),
    ]))
}

fn draw_history(frame: &mut Frame<'_>, area: Rect, rows: &Rows) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
    // The newest ones, as many as there is room for.
    let newest = |width: u16, pick: fn(&(u64, u64)) -> u64| -> Vec<u64> {
        let skipped = rows.history.len().saturating_sub(usize::from(width.saturating_sub(2)));
        rows.history.iter().skip(skipped).map(pick).collect()
    };
    for (area, title, color, data) in [
        (left, " in/s ", Color::Cyan, newest(left.width, |rates| rates.0)),
        (right, " out/s ", Color::Green, newest(right.width, |rates| rates.1)),
    ] {
        let line = Sparkline::default().data(data).style(Style::new().fg(color));
        frame.render_widget(line.block(Block::bordered().title(title)), area);
    }
}

fn draw_groups(frame: &mut Frame<'_>, area: Rect, rows: &Rows, screen: &Screen) {
    let bodies = rows.groups.iter().skip(screen.scroll).map(|group| {
        let cells = group.cells().map(clean);
        let style = match (group.dead, group.lag > 0 && group.members == 0) {
            (_, true) => Style::new().fg(Color::Yellow),
            (1.., _) => Style::new().fg(Color::Red),
            _ => Style::new(),
        };
        Row::new(cells.map(Cell::from)).style(style)
    });
    let title = match screen.scroll {
        0 => " groups ".to_owned(),
        past => format!(" groups, from the {}. ", past + 1),
    };
    frame.render_widget(sheet(&title, GROUP_HEAD, bodies, [20, 16, 11, 10, 8, 8, 10, 9, 8, 20]), area);
}

fn sheet<'a, const N: usize>(
    title: &str,
    head: [&'static str; N],
    rows: impl Iterator<Item = Row<'a>>,
    widths: [u16; N],
) -> Table<'a> {
    let widths = widths.into_iter().enumerate().map(|(at, width)| match at + 1 == N {
        true => Constraint::Min(width),
        false => Constraint::Length(width),
    });
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows, widths).header(head).block(Block::bordered().title(title.to_owned()))
}

fn footer(screen: &Screen) -> Paragraph<'static> {
    let (text, style) = match (&screen.trouble, screen.is_paused) {
        (Some(trouble), _) => (plain(trouble), Style::new().fg(Color::Red)),
        (None, true) => ("paused: p goes on, q ends".to_owned(), Style::new().fg(Color::Yellow)),
        (None, false) => {
            ("q ends, p pauses, up and down scroll".to_owned(), Style::new().fg(Color::DarkGray))
        }
    };
    Paragraph::new(text).style(style)
}

/// Names come from others: they shall not steer the terminal.
fn clean(text: String) -> String {
    plain(&text)
}

#[cfg(test)]
mod tests {
    use super::super::board::{
        Board,
        tests::{sampled, series},
    };
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(width: u16, height: u16, screen: &Screen) -> String {
        let mut board = Board::default();
        board.add(vec![sampled(2000, &series(&[Some(1000.0), Some(1500.0)]))]);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &board.rows(), screen)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn throughput_lag_owners_and_dead_letters_are_on_the_screen() {
        let text = drawn(140, 24, &Screen::default());
        for part in [
            "in/s 1 500",
            "out/s 1 100",
            "lag 500",
            "dead 3",
            "orders",
            "bar",
            "1 m 1 s",
            "till-1 till-2 till-3",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn trouble_and_pause_are_told_and_any_size_can_be_drawn() {
        let away = Screen { trouble: Some("no server\u{1b}[2J".to_owned()), ..Screen::default() };
        assert!(drawn(100, 20, &away).contains("no server\\u{1b}[2J"));
        let paused = Screen { is_paused: true, scroll: 7, ..Screen::default() };
        assert!(drawn(100, 20, &paused).contains("paused"));
        for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
            drawn(width, height, &Screen::default());
        }
    }
}
