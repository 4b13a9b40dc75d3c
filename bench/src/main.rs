//! `cargo run --release -p onward-bench [-- --quick] [--json]`: figures of the decision core, on one core, in memory.
//!
//! Every line says what was measured, what is wanted, and whether it was reached. Nothing here is a test: a slow
//! machine misses a figure and breaks nothing. What compares two figures compares them within one run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks on its streams")]

mod allocation;
mod machine;
mod runs;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// One line of the table.
#[derive(Debug)]
pub struct Figure {
    pub what: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub wanted: f64,
    /// Whether more is better.
    pub more: bool,
    /// Lowest and highest of the runs that the value is the median of.
    pub spread: Option<(f64, f64)>,
}

impl Figure {
    fn reached(&self) -> bool {
        if self.more { self.value >= self.wanted } else { self.value <= self.wanted }
    }
}

fn main() {
    let mut quick = false;
    let mut json = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => quick = true,
            "--json" => json = true,
            "--help" | "-h" => {
                println!(
                    "Usage: onward-bench [--quick] [--json]\n\n  --quick  fewer and shorter runs\n  --json   figures as JSON, one object a line"
                );
                return;
            }
            other => {
                eprintln!("onward-bench: unknown argument `{other}`; try --help");
                std::process::exit(2);
            }
        }
    }
    let figures = runs::all(quick, |stage| eprintln!("running: {stage}"));
    for figure in &figures {
        print_figure(figure, json);
    }
}

fn print_figure(figure: &Figure, json: bool) {
    let Figure { what, value, unit, wanted, more, spread } = figure;
    let (low, high) = spread.unwrap_or((*value, *value));
    if json {
        println!(
            "{{\"what\":\"{what}\",\"value\":{value:.3},\"unit\":\"{unit}\",\"wanted\":{wanted:.3},\"low\":{low:.3},\"high\":{high:.3},\"reached\":{}}}",
            figure.reached()
        );
        return;
    }
    let bound = if *more { "≥" } else { "≤" };
    let verdict = if figure.reached() { "reached" } else { "MISSED" };
    println!("{what:<58} {value:>12.3} {unit:<8} {bound} {wanted:<10} {verdict}   ({low:.3} to {high:.3})");
}
