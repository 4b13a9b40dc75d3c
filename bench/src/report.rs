//! What was measured, and how it is shown: as tables, and as one JSON document.

use serde_json::{Value, json};

use crate::contest::rows::{Measurement, What};
use crate::growth::{Curve, Point};
use crate::limits::MachineLimits;

/// A figure, and its goal.
#[derive(Debug)]
pub struct Figure {
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
    /// The goal; none where the line only explains another.
    pub wanted: Option<f64>,
    /// Whether more is better.
    pub more: bool,
    /// The least and the most of the runs, of which the value is the median; or what nine tenths of them lie between.
    pub spread: Option<(f64, f64)>,
}

impl Figure {
    pub fn reached(&self) -> Option<bool> {
        self.wanted.map(|wanted| if self.more { self.value >= wanted } else { self.value <= wanted })
    }
}

/// All figures that were measured.
#[derive(Debug, Default)]
pub struct BenchReport {
    pub limits: Option<MachineLimits>,
    pub contenders: Vec<Measurement>,
    /// Contenders that could not take part, and why.
    pub absent: Vec<(&'static str, String)>,
    pub figures: Vec<Figure>,
    pub growth: Vec<Curve>,
}

impl What {
    fn title(self) -> &'static str {
        match self {
            Self::EnqueueOne => "enqueue 1",
            Self::EnqueueBatched => "by 256",
            Self::DrainOne => "drain 1",
            Self::Drain64 => "64",
            Self::Drain1024 => "1,024",
            Self::LatencyP50 => "p50 ms",
            Self::LatencyP99 => "p99",
            Self::LatencyP999 => "p99.9",
            Self::Touch => "touch",
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Self::EnqueueOne => "enqueue_one",
            Self::EnqueueBatched => "enqueue_batched",
            Self::DrainOne => "drain_one",
            Self::Drain64 => "drain_64",
            Self::Drain1024 => "drain_1024",
            Self::LatencyP50 => "latency_p50_ms",
            Self::LatencyP99 => "latency_p99_ms",
            Self::LatencyP999 => "latency_p999_ms",
            Self::Touch => "touch",
        }
    }

    fn is_latency(self) -> bool {
        matches!(self, Self::LatencyP50 | Self::LatencyP99 | Self::LatencyP999)
    }
}

impl BenchReport {
    /// Figures that miss their goals, and parts that could not be measured.
    pub fn missed(&self) -> Vec<String> {
        let figures = self.figures.iter().filter(|figure| figure.reached() == Some(false));
        let absent = self.absent.iter().map(|(name, why)| format!("{name}: {why}"));
        figures.map(|figure| figure.what.clone()).chain(absent).collect()
    }

    pub fn print(&self) {
        if let Some(limits) = &self.limits {
            println!(
                "This machine: {} syncs/s alone, {} records/s with 64 a sync, {} loopback round trips/s",
                short(limits.sync),
                short(limits.records),
                short(limits.round_trip)
            );
        }
        if !self.contenders.is_empty() {
            self.print_contenders();
        }
        for (name, why) in &self.absent {
            println!("{name}: did not take part: {why}");
        }
        for Curve { what, unit, points } in &self.growth {
            println!("\n{what}, µs each, and µs of the node's processor time:");
            for Point { size, taken, node } in points {
                println!("{size:>10} {unit:<8} {taken:>8.1} {node:>8.1}");
            }
        }
        if !self.figures.is_empty() {
            println!();
        }
        for figure in &self.figures {
            print_figure(figure);
        }
    }

    /// Jobs a second, and the wait from submission to handler at 200 jobs a second; medians, and below them the least
    /// and the most.
    fn print_contenders(&self) {
        println!(
            "\nJobs a second by how many are in flight; wait at 200 jobs a second. Median of runs (least to most).\n"
        );
        print!("{:<22}", "");
        for what in What::ALL {
            print!("{:>14}", what.title());
        }
        println!();
        for contender in &self.contenders {
            print!("{:<22}", contender.about.name);
            for what in What::ALL {
                print!("{:>14}", contender.of(what).map_or("–".into(), |(median, ..)| shown(what, median)));
            }
            print!("\n{:<22}", "");
            for what in What::ALL {
                let spread = contender.of(what);
                let spread = spread.map(|(_, low, high)| format!("{}–{}", shown(what, low), shown(what, high)));
                print!("{:>14}", spread.unwrap_or_default());
            }
            println!("\n  {}", contender.about.durable);
        }
    }

    pub fn json(&self) -> Value {
        let contenders = self.contenders.iter().map(|contender| {
            let measures = What::ALL.into_iter().filter_map(|what| {
                let (median, low, high) = contender.of(what)?;
                Some((what.key().to_owned(), json!({ "median": median, "low": low, "high": high })))
            });
            json!({
                "name": contender.about.name,
                "durable": contender.about.durable,
                "durable_before_answer": contender.about.before_answer,
                "measures": Value::Object(measures.collect()),
            })
        });
        let figures = self.figures.iter().map(|figure| {
            let Figure { what, value, unit, wanted, more, spread } = figure;
            let (low, high) = spread.unzip();
            json!({
                "what": what, "value": value, "unit": unit, "wanted": wanted, "more_is_better": more,
                "reached": figure.reached(), "low": low, "high": high,
            })
        });
        let absent = self.absent.iter().map(|(name, why)| json!({ "name": name, "why": why }));
        json!({
            "limits": self.limits.map(|limits| json!({
                "syncs": limits.sync, "records_64_a_sync": limits.records, "round_trips": limits.round_trip,
            })),
            "contenders": contenders.collect::<Vec<_>>(),
            "absent": absent.collect::<Vec<_>>(),
            "figures": figures.collect::<Vec<_>>(),
            "growth": self.growth.iter().map(Curve::json).collect::<Vec<_>>(),
        })
    }
}

fn shown(what: What, value: f64) -> String {
    if what.is_latency() { format!("{value:.2}") } else { short(value) }
}

/// Three digits that say something.
pub fn short(value: f64) -> String {
    match value {
        value if value >= 100_000.0 => format!("{:.0}k", value / 1e3),
        value if value >= 1_000.0 => format!("{:.1}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

fn print_figure(figure: &Figure) {
    let Figure { what, value, unit, wanted, more, spread } = figure;
    let bound = if *more { "≥" } else { "≤" };
    let goal = match (wanted, figure.reached()) {
        (Some(wanted), Some(true)) => format!("{bound} {wanted:<6} reached"),
        (Some(wanted), _) => format!("{bound} {wanted:<6} MISSED "),
        (None, _) => String::new(),
    };
    let spread = spread.map(|(low, high)| format!("({low:.2} to {high:.2})")).unwrap_or_default();
    println!("{what:<60} {value:>10.2} {unit:<9} {goal:<18} {spread}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [(0.4, "0"), (999.0, "999"), (1_500.0, "1.5k"), (99_949.0, "99.9k"), (152_600.0, "153k")] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn a_figure_is_reached_on_its_better_side() {
        let figure = |value, more| Figure { what: "x".into(), value, unit: "", wanted: Some(2.0), more, spread: None };
        for (value, more, reached) in [(2.0, true, true), (1.9, true, false), (2.0, false, true), (2.1, false, false)] {
            assert_eq!(figure(value, more).reached(), Some(reached), "{value} {more}");
        }
    }

    #[test]
    fn what_misses_its_goal_and_what_is_absent_is_missed() {
        let figure = |what: &str, value, wanted| Figure {
            what: what.into(),
            value,
            unit: "",
            wanted,
            more: false,
            spread: None,
        };
        let figures = vec![figure("a", 1.0, Some(2.0)), figure("b", 3.0, Some(2.0)), figure("c", 3.0, None)];
        let report = BenchReport { figures, absent: vec![("d", "no program".into())], ..BenchReport::default() };
        assert_eq!(report.missed(), ["b", "d: no program"]);
    }
}
