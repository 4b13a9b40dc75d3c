//! Settings of a loop: what the ones that were not set come to, and which contradict each other.
//!
//! A loop whose backoff is longer than its freshness window turns red by its own waits, one whose turns may take longer
//! than that by its own work. Such settings are refused before anything starts, with the table of what they came to:
//!
//! | setting | unless set |
//! |---|---|
//! | wait between turns | 1 s |
//! | freshness | 60 s |
//! | longest turn, without a step or a beat | freshness − wait |
//! | startup grace | 30 s, or the longest turn if that is longer |
//! | backoff after failures | from 1 s to half of freshness, 30 s at most |
//! | backoff before restarts | as the one after failures |
//! | budget | 3 failures in a row |
//! | recovery | 2 successes in a row |

use std::fmt;
use std::time::Duration;

use onward_core::backoff::Backoff;
use onward_core::health::{FailureBudget, LoopRule, RestartRule};

/// Settings of a loop, as they were given.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LoopPolicy {
    pub(crate) critical: bool,
    pub(crate) every: Option<Duration>,
    pub(crate) freshness: Option<Duration>,
    pub(crate) budget: Option<FailureBudget>,
    pub(crate) recovery: Option<u32>,
    pub(crate) startup_grace: Option<Duration>,
    pub(crate) longest_turn: Option<Duration>,
    pub(crate) backoff: Option<Backoff>,
    pub(crate) restart: Option<RestartRule>,
}

/// Settings of a loop after the check: they no longer contradict each other.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CheckedSettings {
    pub(crate) rule: LoopRule,
    pub(crate) every: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) restart: RestartRule,
}

impl LoopPolicy {
    /// The complete settings, whether or not they can be kept.
    fn derive(&self) -> CheckedSettings {
        let every = self.every.unwrap_or(Duration::from_secs(1));
        let freshness = self.freshness.unwrap_or(Duration::from_secs(60));
        let max_iteration = self.longest_turn.unwrap_or(freshness.saturating_sub(every));
        let startup_grace = self.startup_grace.unwrap_or(max_iteration.max(Duration::from_secs(30)));
        let longest_wait = (freshness / 2).min(Duration::from_secs(30));
        let usual = Backoff { base: Duration::from_secs(1).min(longest_wait), max: longest_wait };
        let backoff = self.backoff.unwrap_or(usual);
        let restart = self.restart.unwrap_or(RestartRule { backoff, ..RestartRule::default() });
        let rule = LoopRule {
            critical: self.critical,
            budget: self.budget.unwrap_or(FailureBudget::Consecutive(3)),
            freshness,
            recovery: self.recovery.unwrap_or(2),
            startup_grace,
            max_iteration,
        };
        CheckedSettings { rule, every, backoff, restart }
    }

    /// Errors are sentences: which settings, why not, what to do.
    pub(crate) fn check(&self) -> Result<CheckedSettings, (Vec<String>, SettingsTable)> {
        let checked = self.derive();
        let problems = checked.problems();
        if problems.is_empty() { Ok(checked) } else { Err((problems, self.table(&checked))) }
    }

    fn table(&self, checked: &CheckedSettings) -> SettingsTable {
        let CheckedSettings { rule, every, backoff, restart } = checked;
        let waits = |backoff: &Backoff| format!("{:?} to {:?}", backoff.base, backoff.max);
        SettingsTable(vec![
            ("wait between turns", format!("{every:?}"), self.every.is_some()),
            ("freshness", format!("{:?}", rule.freshness), self.freshness.is_some()),
            ("longest turn", format!("{:?}", rule.max_iteration), self.longest_turn.is_some()),
            ("startup grace", format!("{:?}", rule.startup_grace), self.startup_grace.is_some()),
            ("backoff after failures", waits(backoff), self.backoff.is_some()),
            ("backoff before restarts", waits(&restart.backoff), self.restart.is_some()),
            ("restarts", format!("{} in {:?}", restart.most, restart.within), self.restart.is_some()),
            ("budget", budget_text(&rule.budget), self.budget.is_some()),
            ("recovery", format!("{} in a row", rule.recovery), self.recovery.is_some()),
        ])
    }
}

impl CheckedSettings {
    fn problems(&self) -> Vec<String> {
        let Self { rule, every, backoff, restart } = self;
        let fresh = rule.freshness;
        let mut problems = Vec::new();
        let mut refuse = |is_wrong: bool, problem: &dyn Fn() -> String| {
            if is_wrong {
                problems.push(problem());
            }
        };
        refuse(fresh.is_zero(), &|| "freshness is zero, so no success would ever be fresh; set a longer one".into());
        refuse(every.is_zero(), &|| {
            "the wait between turns is zero, so a loop with nothing to do would never rest; wait for a moment, and let a turn that leaves something behind say so (`Turn::next_in`)".into()
        });
        refuse(rule.recovery == 0, &|| "recovery by 0 successes would be no recovery; set at least 1".into());
        refuse(*every >= fresh, &|| {
            format!(
                "the wait between turns ({every:?}) is not shorter than freshness ({fresh:?}), so a loop that always succeeds would turn red between two turns; wait less, or allow more"
            )
        });
        refuse(*every < fresh && every.saturating_add(rule.max_iteration) > fresh, &|| {
            let longest = rule.max_iteration;
            format!(
                "the wait between turns ({every:?}) and the longest turn ({longest:?}) together are longer than freshness ({fresh:?}), so a turn that takes as long as it may would turn the loop red; shorten one of them, or allow more (a turn that steps stays fresh, however long it is)"
            )
        });
        refuse(rule.max_iteration.is_zero(), &|| "the longest turn is zero, so every turn would hang".into());
        refuse(backoff.max >= fresh, &|| too_long("backoff after failures", backoff.max, fresh));
        refuse(restart.backoff.max >= fresh, &|| too_long("backoff before restarts", restart.backoff.max, fresh));
        refuse(rule.startup_grace < rule.max_iteration, &|| {
            let (grace, longest) = (rule.startup_grace, rule.max_iteration);
            format!(
                "the startup grace ({grace:?}) is shorter than the longest turn ({longest:?}), so the first turn would be judged before it may end; give it more grace"
            )
        });
        problems.extend(self.budget_problem());
        problems
    }

    /// A budget that can never be spent is none.
    fn budget_problem(&self) -> Option<String> {
        let never = |needed: u32, within: Duration| {
            let takes = self.every.saturating_mul(needed.saturating_sub(1));
            (takes >= within).then(|| format!("{needed} turns take at least {takes:?} at one every {:?}, so a budget over {within:?} could never be spent; lengthen its window", self.every))
        };
        match self.rule.budget {
            FailureBudget::Consecutive(0) | FailureBudget::Window { n: 0, .. } => {
                Some("a budget of 0 failures is spent before the first turn; allow at least 1".into())
            }
            FailureBudget::Consecutive(_) => None,
            FailureBudget::Window { n, within } => never(n, within),
            FailureBudget::Ratio { ratio, .. } if !(ratio > 0.0 && ratio <= 1.0) => {
                Some(format!("a budget of the ratio {ratio} makes no sense; it lies above 0 and up to 1"))
            }
            FailureBudget::Ratio { min_sample, within, .. } => never(min_sample, within),
        }
    }
}

fn too_long(what: &str, longest: Duration, freshness: Duration) -> String {
    format!(
        "the {what} (up to {longest:?}) is not shorter than freshness ({freshness:?}), so one failure would turn the loop red by its own wait; wait less, or allow more"
    )
}

fn budget_text(budget: &FailureBudget) -> String {
    match budget {
        FailureBudget::Consecutive(n) => format!("{n} failures in a row"),
        FailureBudget::Window { n, within } => format!("{n} failures in {within:?}"),
        FailureBudget::Ratio { ratio, min_sample, within } => {
            format!("{:.0} % of at least {min_sample} turns in {within:?}", ratio * 100.0)
        }
    }
}

/// Complete settings: name, value, and whether somebody set it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SettingsTable(pub(crate) Vec<(&'static str, String, bool)>);

impl fmt::Display for SettingsTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value, is_set) in &self.0 {
            writeln!(f, "    {name:<24} {value:<24} {}", if *is_set { "set" } else { "derived" })?;
        }
        Ok(())
    }
}

/// Settings that contradict each other. Nothing was started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SettingsError {
    findings: Vec<Finding>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Finding {
    about: String,
    problems: Vec<String>,
    table: Option<SettingsTable>,
}

impl SettingsError {
    /// Every problem, one sentence each.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.findings.iter().flat_map(|finding| finding.problems.iter().map(String::as_str))
    }

    pub(crate) fn of_loop(&mut self, name: &str, problems: Vec<String>, table: SettingsTable) {
        self.findings.push(Finding { about: format!("loop `{name}`"), problems, table: Some(table) });
    }

    pub(crate) fn of_service(&mut self, name: &str, problems: Vec<String>, table: Option<SettingsTable>) {
        self.findings.push(Finding { about: format!("service `{name}`"), problems, table });
    }

    pub(crate) fn or<T>(self, good: T) -> Result<T, Self> {
        if self.findings.is_empty() { Ok(good) } else { Err(self) }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "settings contradict each other; nothing was started")?;
        for Finding { about, problems, table } in &self.findings {
            for problem in problems {
                writeln!(f, "  {about}: {problem}")?;
            }
            if let Some(table) = table {
                write!(f, "{table}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_not_set_is_derived_and_contradicts_nothing() {
        for (every, freshness) in [(None, None), (Some(s(5)), Some(s(60))), (Some(s(3600)), Some(s(7300)))] {
            let policy = LoopPolicy { every, freshness, ..LoopPolicy::default() };
            policy.check().unwrap_or_else(|(problems, table)| panic!("{problems:?}\n{table}"));
        }
        let checked = LoopPolicy { every: Some(s(5)), ..LoopPolicy::default() }.check().unwrap();
        assert_eq!((checked.rule.max_iteration, checked.rule.startup_grace), (s(55), s(55)));
        assert_eq!(checked.backoff, Backoff { base: s(1), max: s(30) });
    }

    #[test]
    fn contradictions_are_refused() {
        let base = LoopPolicy { every: Some(s(5)), ..LoopPolicy::default() };
        let backoff = |max| Some(Backoff { base: s(1), max });
        let window = |n, within| Some(FailureBudget::Window { n, within });
        let ratio = |ratio, min_sample| Some(FailureBudget::Ratio { ratio, min_sample, within: s(60) });
        // settings -> the beginning of what is said, if they are refused
        let table = [
            (LoopPolicy { every: Some(s(0)), ..base }, Some("the wait between turns is zero")),
            (LoopPolicy { freshness: Some(s(5)), ..base }, Some("the wait between turns (5s) is not shorter")),
            (LoopPolicy { freshness: Some(s(6)), ..base }, None),
            (LoopPolicy { longest_turn: Some(s(55)), ..base }, None),
            (
                LoopPolicy { longest_turn: Some(s(56)), ..base },
                Some("the wait between turns (5s) and the longest turn (56s)"),
            ),
            (LoopPolicy { longest_turn: Some(s(0)), ..base }, Some("the longest turn is zero")),
            (LoopPolicy { backoff: backoff(s(59)), ..base }, None),
            (
                LoopPolicy { backoff: backoff(s(60)), ..base },
                Some("the backoff after failures (up to 60s) is not shorter"),
            ),
            (
                LoopPolicy {
                    restart: Some(RestartRule { backoff: backoff(s(90)).unwrap(), ..Default::default() }),
                    ..base
                },
                Some("the backoff before restarts (up to 90s)"),
            ),
            (LoopPolicy { startup_grace: Some(s(54)), ..base }, Some("the startup grace (54s) is shorter")),
            (LoopPolicy { startup_grace: Some(s(55)), ..base }, None),
            (LoopPolicy { recovery: Some(0), ..base }, Some("recovery by 0")),
            (LoopPolicy { freshness: Some(s(0)), every: Some(s(0)), ..base }, Some("freshness is zero")),
            (LoopPolicy { budget: Some(FailureBudget::Consecutive(0)), ..base }, Some("a budget of 0 failures")),
            (LoopPolicy { budget: window(3, s(11)), ..base }, None),
            (LoopPolicy { budget: window(3, s(10)), ..base }, Some("3 turns take at least 10s")),
            (LoopPolicy { budget: ratio(0.5, 12), ..base }, None),
            (LoopPolicy { budget: ratio(0.5, 13), ..base }, Some("13 turns take at least 60s")),
            (LoopPolicy { budget: ratio(1.5, 4), ..base }, Some("a budget of the ratio 1.5")),
            (LoopPolicy { budget: ratio(f64::NAN, 4), ..base }, Some("a budget of the ratio NaN")),
        ];
        for (policy, expected) in table {
            let problems = policy.check().map_or_else(|(problems, _)| problems, |_| Vec::new());
            match expected {
                None => assert_eq!(problems, [""; 0], "{policy:?}"),
                Some(start) => assert!(problems.iter().any(|p| p.starts_with(start)), "{policy:?}: {problems:?}"),
            }
        }
    }

    #[test]
    fn the_error_prints_the_table() {
        let policy = LoopPolicy { backoff: Some(Backoff { base: s(1), max: s(120) }), ..LoopPolicy::default() };
        let (problems, table) = policy.check().expect_err("120 s are longer than 60 s");
        let mut error = SettingsError::default();
        error.of_loop("invoices", problems, table);
        let text = error.to_string();
        for part in [
            "nothing was started",
            "loop `invoices`: the backoff after failures (up to 120s)",
            "freshness                60s                      derived",
            "backoff after failures   1s to 120s               set",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
