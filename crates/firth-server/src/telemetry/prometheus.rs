//! The Prometheus text as families of samples: what is counted is turned into OTLP from there, so
//! that both tell the same. Pure.

use std::collections::BTreeMap;

/// A metric with its samples.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: String,
    /// Counters and gauges.
    pub(super) points: Vec<(Labels, f64)>,
    pub(super) histograms: BTreeMap<Labels, Histogram>,
}

pub(super) type Labels = Vec<(String, String)>;

/// Cumulative buckets as they are written, `+Inf` left to `count`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Histogram {
    pub(super) buckets: Vec<(f64, u64)>,
    pub(super) sum: f64,
    pub(super) count: u64,
}

/// Reads the text; lines that are not understood are passed over.
pub(super) fn read(text: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            if let Some((name, kind)) = declared.split_once(' ') {
                let name = name.to_owned();
                let kind = kind.trim().to_owned();
                families.push(Family { name, kind, ..Family::default() });
            }
        } else if !line.starts_with('#')
            && let Some(family) = families.last_mut()
            && let Some((name, labels, value)) = sample(line)
        {
            family.add(&name, labels, value);
        }
    }
    families
}

impl Family {
    fn add(&mut self, name: &str, mut labels: Labels, value: f64) {
        if self.kind != "histogram" {
            if name == self.name {
                self.points.push((labels, value));
            }
            return;
        }
        let part = name.strip_prefix(&self.name).unwrap_or_default().to_owned();
        let bound = labels.iter().position(|(label, _)| label == "le").map(|at| labels.remove(at).1);
        let histogram = self.histograms.entry(labels).or_default();
        match (part.as_str(), bound) {
            ("_sum", _) => histogram.sum = value,
            ("_count", _) => histogram.count = value as u64,
            ("_bucket", Some(bound)) if bound != "+Inf" => {
                histogram.buckets.extend(bound.parse().ok().map(|bound| (bound, value as u64)));
            }
            _ => {}
        }
    }
}

fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (Vec::new(), rest),
    };
    Some((name.to_owned(), labels, rest.split_whitespace().next()?.parse().ok()?))
}

/// `a="b",c="d"} 1`: the labels, and what follows the brace.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut escaped = false;
        let mut end = None;
        for (at, c) in quoted.char_indices() {
            match (escaped, c) {
                (true, 'n') => value.push('\n'),
                (true, c) => value.push(c),
                (false, '\\') => {}
                (false, '"') => {
                    end = Some(at);
                    break;
                }
                (false, c) => value.push(c),
            }
            escaped = !escaped && c == '\\';
        }
        labels.push((name.to_owned(), value));
        rest = &quoted[end? + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_gauges_and_histograms_are_read_with_their_labels() {
        let text = "# HELP x y\n# TYPE sent counter\nsent{topic=\"a\\\"b\\\\\",kind=\"c,}\"} 3\n\n# TYPE busy gauge\nbusy 1.5\n\
                    # TYPE took_seconds histogram\ntook_seconds_bucket{r=\"x\",le=\"0.1\"} 1\n\
                    took_seconds_bucket{r=\"x\",le=\"+Inf\"} 2\ntook_seconds_sum{r=\"x\"} 0.7\ntook_seconds_count{r=\"x\"} 2\n";
        let families = read(text);
        let labels = vec![("topic".into(), "a\"b\\".into()), ("kind".into(), "c,}".into())];
        assert_eq!(families[0].points, [(labels, 3.0)]);
        assert_eq!((families[1].kind.as_str(), families[1].points[0].1), ("gauge", 1.5));
        let of = vec![("r".to_owned(), "x".to_owned())];
        assert_eq!(families[2].histograms[&of], Histogram { buckets: vec![(0.1, 1)], sum: 0.7, count: 2 });
    }
}
