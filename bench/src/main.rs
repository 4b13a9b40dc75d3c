//! `cargo run --release -p onward-bench [-- --quick] [--json]`: figures of the decision core, on one core, in
//! memory, and of opening a node's files again.
//!
//! Every line says what was measured, what is wanted, and whether it was reached. Nothing here is a test: a slow
//! machine misses a figure and breaks nothing. What compares two figures compares them within one run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks on its streams")]

mod allocation;
mod contest;
mod cpu;
mod limits;
mod machine;
mod reopen;
mod runs;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// One line of the table.
#[derive(Debug)]
pub struct Figure {
    pub what: &'static str,
    pub value: f64,
    pub unit: &'static str,
    /// What it should reach; none where the line only explains another.
    pub wanted: Option<f64>,
    /// Whether more is better.
    pub more: bool,
    /// Between what nine tenths of the runs lie, of which the value is the median.
    pub spread: Option<(f64, f64)>,
}

impl Figure {
    fn reached(&self) -> Option<bool> {
        self.wanted.map(|wanted| if self.more { self.value >= wanted } else { self.value <= wanted })
    }
}

fn main() {
    let mut quick = false;
    let mut json = false;
    let mut only = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => only = arguments.next(),
            "--echo" => return limits::echo().expect("a connection"),
            "--quick" => quick = true,
            "--json" => json = true,
            "--install" => {
                if let Err(error) = contest::peers::install::install() {
                    eprintln!("onward-bench: {error}");
                    std::process::exit(1);
                }
                return;
            }
            "--help" | "-h" => {
                println!(
                    "Usage: onward-bench [--quick] [--json] [--only STAGE]\n       onward-bench --install\n\n  --quick       fewer and shorter runs\n  --json        figures as JSON, one object a line\n  --only STAGE  cycles, backlog, workers, reopen or peers (peers:NAME for one)\n  --install     installs the systems that it is compared with (Debian; needs root)"
                );
                return;
            }
            other => {
                eprintln!("onward-bench: unknown argument `{other}`; try --help");
                std::process::exit(2);
            }
        }
    }
    if only.as_deref() == Some("ours") {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let plan = if quick { contest::rows::Plan::QUICK } else { contest::rows::Plan::FULL };
        let limits = limits::Limits::measure(plan.time).expect("limits");
        println!("{limits:.0?} {:.0}", limits.one_in_flight());
        for http in [false, true] {
            let measured = runtime.block_on(async {
                if http {
                    contest::rows::measure(&contest::ours::http::Http, plan, |told| eprintln!("{told}")).await
                } else {
                    contest::rows::measure(&contest::ours::grpc::Grpc, plan, |told| eprintln!("{told}")).await
                }
            });
            let measured = measured.expect("it runs");
            for what in contest::rows::What::ALL {
                println!("{what:?} {:.3?}", measured.of(what));
            }
        }
        return;
    }
    if only.as_deref() == Some("mixed") {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            use contest::ours::mixed::*;
            let small = tempfile::tempdir().expect("f");
            let large = tempfile::tempdir().expect("f");
            let mut a = Backlog::of(10_000, small.path()).await.expect("a");
            let begun = std::time::Instant::now();
            let mut b = Backlog::of(if quick { 200_000 } else { 1_000_000 }, large.path()).await.expect("a");
            println!("filled in {:?}, {} MB", begun.elapsed(), memory(b.pid()).expect("m") >> 20);
            for _ in 0..5 {
                let t = std::time::Duration::from_millis(500);
                println!("{:.0} {:.0}", a.drain(t).await.expect("d"), b.drain(t).await.expect("d"));
            }
            b.kill();
            println!("reopen {:?}", reopen(large.path()).expect("r"));
        });
        return;
    }
    keep_memory();
    if let Some(name) = only.as_deref().and_then(|only| only.strip_prefix("peers")) {
        let name = name.strip_prefix(':');
        match tokio::runtime::Runtime::new() {
            Ok(runtime) => runtime.block_on(contest::peers::trial::all(name)),
            Err(error) => eprintln!("onward-bench: cannot start: {error}"),
        }
        return;
    }
    let figures = runs::all(quick, only.as_deref(), |stage| eprintln!("running: {stage}"));
    for figure in &figures {
        print_figure(figure, json);
    }
}

/// Starts over with an allocator that gives no memory back to the system: what was touched once stays fast, whatever
/// ran before. It reads this setting only when the process starts.
fn keep_memory() {
    const SETTING: &str = "MIMALLOC_PURGE_DELAY";
    if std::env::var_os(SETTING).is_some() {
        return;
    }
    let again = std::env::current_exe().and_then(|program| {
        std::process::Command::new(program).args(std::env::args_os().skip(1)).env(SETTING, "-1").status()
    });
    match again {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => eprintln!("onward-bench: {SETTING} is not set ({error}): figures will vary more"),
    }
}

fn print_figure(figure: &Figure, json: bool) {
    let Figure { what, value, unit, wanted, more, spread } = figure;
    let (low, high) = spread.unwrap_or((*value, *value));
    if json {
        let wanted = wanted.map_or("null".into(), |wanted| wanted.to_string());
        let reached = figure.reached().map_or("null".into(), |reached| reached.to_string());
        println!(
            r#"{{"what":"{what}","value":{value:.3},"unit":"{unit}","wanted":{wanted},"low":{low:.3},"high":{high:.3},"reached":{reached}}}"#
        );
        return;
    }
    let bound = if *more { "≥" } else { "≤" };
    let goal = match (wanted, figure.reached()) {
        (Some(wanted), Some(true)) => format!("{bound} {wanted:<6} reached"),
        (Some(wanted), _) => format!("{bound} {wanted:<6} MISSED "),
        (None, _) => String::new(),
    };
    println!("{what:<56} {value:>10.2} {unit:<9} {goal:<18} ({low:.2} to {high:.2})");
}
