//! The table as a picture: per workload one block of bars, CPU per op on the left, rate on the
//! right.
//!
//! Written by hand as SVG, pure text in and out. Bars are scaled within their block, because the
//! workloads lie two orders of magnitude apart; the figure stands beside its bar.

use crate::measure::Row;
use std::fmt::Write as _;

const WIDTH: f64 = 920.0;
const LEFT: f64 = 130.0;
const PANEL: f64 = 370.0;
const GAP: f64 = 30.0;
/// Longest bar; the rest of the panel is for its figure.
const BAR: f64 = 300.0;
const LINE: f64 = 15.0;
const BLOCK_GAP: f64 = 14.0;
const TOP: f64 = 74.0;

/// Draws `groups` (workload, rows) of one bench.
pub(crate) fn svg(bench: &str, groups: &[(&str, &[Row])]) -> String {
    let lines: usize = groups.iter().map(|(_, rows)| rows.len()).sum();
    let mut canvas = Canvas::new(TOP + small(lines) * LINE + small(groups.len()) * BLOCK_GAP + 14.0);
    canvas.label((14.0, 24.0), Style::Title, &format!("bench {bench}"));
    legend(&mut canvas, groups);
    let cpu = Panel { x: LEFT, figure: |row| row.cpu_us_per_op, label: |value| format!("{value:.2}") };
    let rate = Panel { x: LEFT + PANEL + GAP, figure: |row| row.ops_per_s, label: grouped };
    canvas.label((cpu.x, 62.0), Style::Heading, "client CPU, µs per op (shorter is better)");
    canvas.label((rate.x, 62.0), Style::Heading, "ops per second (longer is better)");
    let mut y = TOP;
    for (workload, rows) in groups {
        canvas.label((14.0, y + LINE * 0.66), Style::Plain, workload);
        cpu.draw(&mut canvas, y, rows);
        rate.draw(&mut canvas, y, rows);
        y += small(rows.len()) * LINE + BLOCK_GAP;
    }
    canvas.finish()
}

/// One coloured word per subject that occurs.
fn legend(canvas: &mut Canvas, groups: &[(&str, &[Row])]) {
    let mut seen: Vec<&str> = vec![];
    for row in groups.iter().flat_map(|(_, rows)| *rows) {
        if !seen.contains(&row.subject.as_str()) {
            seen.push(&row.subject);
        }
    }
    for (at, subject) in seen.iter().enumerate() {
        let x = LEFT + small(at) * 110.0;
        canvas.bar((x, 33.0), (11.0, 11.0), subject);
        canvas.label((x + 16.0, 43.0), Style::Plain, subject);
    }
}

/// One column of bars.
struct Panel {
    x: f64,
    figure: fn(&Row) -> f64,
    label: fn(f64) -> String,
}

impl Panel {
    fn draw(&self, canvas: &mut Canvas, y: f64, rows: &[Row]) {
        let longest = rows.iter().map(self.figure).fold(f64::MIN_POSITIVE, f64::max);
        for (at, row) in rows.iter().enumerate() {
            let value = (self.figure)(row);
            let y = y + small(at) * LINE;
            let width = (value / longest * BAR).max(1.0);
            canvas.bar((self.x, y), (width, LINE - 3.0), &row.subject);
            canvas.label((self.x + width + 5.0, y + LINE * 0.66), Style::Figure, &(self.label)(value));
        }
    }
}

enum Style {
    Title,
    Heading,
    Plain,
    Figure,
}

impl Style {
    fn attributes(&self) -> &'static str {
        match self {
            Self::Title => r##"font-size="16" font-weight="bold" fill="#222""##,
            Self::Heading => r##"font-weight="bold" fill="#222""##,
            Self::Plain => r##"fill="#222""##,
            Self::Figure => r##"fill="#555""##,
        }
    }
}

/// The picture's text as it grows.
struct Canvas(String);

impl Canvas {
    fn new(height: f64) -> Self {
        let mut canvas = Self(String::new());
        canvas.put(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">"#
        ));
        canvas.put(format_args!(r##"<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##));
        canvas
    }

    fn label(&mut self, (x, y): (f64, f64), style: Style, text: &str) {
        let attributes = style.attributes();
        let text = escape(text);
        self.put(format_args!(r#"<text x="{x:.1}" y="{y:.1}" {attributes}>{text}</text>"#));
    }

    /// A rectangle in the subject's colour; its name shows when it is pointed at.
    fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), subject: &str) {
        let fill = colour(subject);
        let name = escape(subject);
        self.put(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"><title>{name}</title></rect>"#
        ));
    }

    fn finish(mut self) -> String {
        self.put(format_args!("</svg>"));
        self.0
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a String takes every write");
    }
}

fn colour(subject: &str) -> &'static str {
    match subject {
        "firth" => "#0b6e4f",
        "redis" => "#c8553d",
        "redis-rc" => "#e59f71",
        "fred" => "#5b7db1",
        "rustis" => "#8d6a9f",
        _ => "#999999",
    }
}

/// 1234567 as "1 234 567".
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Numbers of lines and blocks: a few dozen.
fn small(count: usize) -> f64 {
    u32::try_from(count).map_or(0.0, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::sample_row;

    #[test]
    fn each_row_has_a_bar_in_both_panels_and_tags_are_closed() {
        let rows =
            [sample_row("get/1/st", "firth", 1_234_567.0, 0.25), sample_row("get/1/st", "a<b", 10.0, 0.5)];
        let picture = svg("client", &[("get/1/st", &rows)]);
        // Two panels and the legend.
        assert_eq!(picture.matches("<title>").count(), 3 * rows.len());
        assert!(picture.contains("1 234 567") && picture.contains(">0.25<") && picture.contains("a&lt;b"));
        assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
        assert!(picture.ends_with("</svg>\n"));
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(["5", "999", "1 000", "12 345"], [5.0, 999.0, 1000.0, 12345.4].map(grouped));
    }
}
