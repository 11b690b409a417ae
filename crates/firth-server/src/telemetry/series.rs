//! Everything counted, in parts that can be forgotten: one for each topic and each group, and one
//! for the rest.
//!
//! The exporter keeps a series for as long as it lives, so a deleted topic would be shown, and
//! would alert, until the next start. Here a topic's or a group's series end with it. A handle that
//! outlives its series counts without effect. A new topic or group of the same name registers new
//! series.

use firth::{Error, ErrorKind, Result};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
const RECORDS: [f64; 7] = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0];
/// How often histograms are summed up.
const UPKEEP: Duration = Duration::from_secs(5);

/// All series; clones share them.
#[derive(Clone)]
pub(crate) struct Series(Arc<Shared>);

struct Shared {
    builder: fn() -> Result<PrometheusRecorder>,
    rest: PrometheusRecorder,
    parts: Mutex<HashMap<Scope, SeriesPart>>,
}

/// A topic, or a group of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scope {
    topic: String,
    /// Empty for what is the topic's own.
    group: String,
}

struct SeriesPart {
    recorder: PrometheusRecorder,
    /// When a handle was last asked for.
    asked: Instant,
}

fn recorder() -> Result<PrometheusRecorder> {
    let wrong = |error| Error::new(ErrorKind::Internal, "cannot count").with_source(format!("{error}"));
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_records".to_owned()), &RECORDS))
        .map_err(wrong)?;
    Ok(builder.build_recorder())
}

impl Series {
    /// Counts everything in this process from now on; call it inside a runtime.
    pub(crate) fn start() -> Result<Self> {
        let series = Self::new()?;
        metrics::set_global_recorder(series.clone()).map_err(|error| {
            Error::new(ErrorKind::Internal, "cannot count").with_source(error.to_string())
        })?;
        let upkeep = series.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP);
            loop {
                ticks.tick().await;
                upkeep.run_upkeep();
            }
        });
        Ok(series)
    }

    fn new() -> Result<Self> {
        Ok(Self(Arc::new(Shared { builder: recorder, rest: recorder()?, parts: Mutex::default() })))
    }

    /// Sums up histograms.
    pub(crate) fn run_upkeep(&self) {
        self.each(|recorder| recorder.handle().run_upkeep());
    }

    /// The text for Prometheus.
    pub(crate) fn render(&self) -> String {
        let mut texts = Vec::new();
        self.each(|recorder| texts.push(recorder.handle().render()));
        merge(&texts)
    }

    /// Forgets a topic with its groups, or one of its groups.
    pub(crate) fn forget(&self, topic: &str, group: Option<&str>) {
        self.parts()
            .retain(|scope, _| scope.topic != topic || group.is_some_and(|group| scope.group != group));
    }

    /// Forgets what is not there. What was asked for since `since` stays: it may be new.
    pub(crate) fn prune(&self, since: Instant, is_there: impl Fn(&str, Option<&str>) -> bool) {
        let group = |scope: &Scope| (!scope.group.is_empty()).then(|| scope.group.clone());
        self.parts()
            .retain(|scope, part| part.asked >= since || is_there(&scope.topic, group(scope).as_deref()));
    }

    fn parts(&self) -> MutexGuard<'_, HashMap<Scope, SeriesPart>> {
        self.0.parts.lock().expect("nothing panics under this lock")
    }

    fn each(&self, mut act: impl FnMut(&PrometheusRecorder)) {
        act(&self.0.rest);
        self.parts().values().for_each(|part| act(&part.recorder));
    }

    /// Does something with the recorder that a series belongs to.
    fn with<T>(&self, key: &Key, act: impl FnOnce(&PrometheusRecorder) -> T) -> T {
        let label = |name: &str| key.labels().find(|label| label.key() == name).map(metrics::Label::value);
        let Some(topic) = label("topic") else { return act(&self.0.rest) };
        let scope = Scope { topic: topic.to_owned(), group: label("group").unwrap_or_default().to_owned() };
        let mut parts = self.parts();
        if let Some(part) = parts.get_mut(&scope) {
            part.asked = Instant::now();
            return act(&part.recorder);
        }
        // One recorder could be made, so another can; if not, the series stays for good.
        let Ok(recorder) = (self.0.builder)() else { return act(&self.0.rest) };
        act(&parts.entry(scope).or_insert(SeriesPart { recorder, asked: Instant::now() }).recorder)
    }
}

impl Recorder for Series {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.0.rest.describe_counter(key, unit, text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.0.rest.describe_gauge(key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.0.rest.describe_histogram(key, unit, text);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.with(key, |recorder| recorder.register_counter(key, metadata))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.with(key, |recorder| recorder.register_gauge(key, metadata))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.with(key, |recorder| recorder.register_histogram(key, metadata))
    }
}

/// One text of several, with all samples of a metric together under its head, as the format wants
/// it.
fn merge(texts: &[String]) -> String {
    let mut families: BTreeMap<&str, (String, String)> = BTreeMap::new();
    for text in texts {
        let mut name = "";
        for line in text.lines().filter(|line| !line.is_empty()) {
            let head = line.strip_prefix("# ").and_then(|head| head.split_once(' '));
            match head {
                Some((_, about)) => {
                    name = about.split(' ').next().unwrap_or_default();
                    let heads = &mut families.entry(name).or_default().0;
                    if !heads.lines().any(|known| known == line) {
                        heads.push_str(line);
                        heads.push('\n');
                    }
                }
                None => {
                    let samples = &mut families.entry(name).or_default().1;
                    samples.push_str(line);
                    samples.push('\n');
                }
            }
        }
    }
    families.values().map(|(heads, samples)| format!("{heads}{samples}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(series: &Series, topic: &'static str, group: &'static str) {
        let labels = [("topic", topic), ("group", group)].into_iter().filter(|(_, value)| !value.is_empty());
        let labels: Vec<_> = labels.map(|(name, value)| metrics::Label::new(name, value)).collect();
        metrics::with_local_recorder(series, || metrics::counter!("firth_seen_total", labels).increment(1));
    }

    #[test]
    fn q06_series_end_with_their_topic_and_their_group() {
        let series = Series::new().unwrap();
        for (topic, group) in [("", ""), ("a", ""), ("a", "g"), ("a", "h"), ("b", "g")] {
            count(&series, topic, group);
        }
        let lines = || series.render().lines().filter(|line| line.starts_with("firth_")).count();
        assert_eq!((lines(), series.render().matches("# TYPE").count()), (5, 1), "{}", series.render());
        series.forget("a", Some("g"));
        assert!(lines() == 4 && !series.render().contains("topic=\"a\",group=\"g\""), "{}", series.render());
        series.forget("a", None);
        assert_eq!(lines(), 2, "{}", series.render());
        let before = Instant::now();
        series.prune(before, |_, _| true);
        assert_eq!(lines(), 2);
        count(&series, "c", "");
        series.prune(before, |_, _| false);
        assert_eq!(lines(), 2, "what is new stays: {}", series.render());
    }

    #[test]
    fn texts_become_one_with_each_metric_in_one_place() {
        let one = "# TYPE a counter\na{x=\"1\"} 1\n\n# TYPE b gauge\nb 2\n\n".to_owned();
        let other = "# TYPE b gauge\nb{y=\"1\"} 3\n\n# TYPE a counter\na 4\n\n".to_owned();
        let wanted = "# TYPE a counter\na{x=\"1\"} 1\na 4\n\n# TYPE b gauge\nb 2\nb{y=\"1\"} 3\n\n";
        assert_eq!(merge(&[one, other]), wanted);
    }
}
