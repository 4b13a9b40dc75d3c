//! A report as metrics, in Prometheus' text format.

use std::fmt::Write;

use onward_core::health::LoopState;

use super::report::ProcessReport;

impl ProcessReport {
    /// All of it, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let mut text = Text { out: String::new(), service: escaped(&self.service) };
        text.family("onward_health_live", "gauge", "1 unless a restart would help.");
        text.sample("onward_health_live", "", f64::from(u8::from(self.live)));
        text.family("onward_health_ready", "gauge", "1 while work may be sent here.");
        text.sample("onward_health_ready", "", f64::from(u8::from(self.ready)));
        self.loop_metrics(&mut text);
        self.other_metrics(&mut text);
        text.out
    }

    fn loop_metrics(&self, text: &mut Text) {
        text.family("onward_loop_state", "gauge", "1 for the state that a loop is in, 0 for the others.");
        for one in &self.loops {
            for state in LoopState::ALL {
                let (name, critical) = (escaped(&one.name), one.critical);
                let labels = format!("loop=\"{name}\",critical=\"{critical}\",state=\"{}\"", state.code());
                text.sample("onward_loop_state", &labels, f64::from(u8::from(state == one.state)));
            }
        }
        text.family("onward_loop_success_age_seconds", "gauge", "Time since a loop's last success or forward step.");
        for one in &self.loops {
            if let Some(ms) = one.last_success_ms {
                text.sample("onward_loop_success_age_seconds", &label("loop", &one.name), ms as f64 / 1000.0);
            }
        }
        text.family("onward_loop_turns_total", "counter", "Turns that ended, by what they came to.");
        for one in &self.loops {
            let totals = one.totals;
            let counts = [("succeeded", totals.successes), ("skipped", totals.skips), ("failed", totals.failures)];
            for (outcome, count) in counts {
                let labels = format!("{},outcome=\"{outcome}\"", label("loop", &one.name));
                text.sample("onward_loop_turns_total", &labels, count as f64);
            }
        }
        type Counter = (&'static str, &'static str, fn(&super::entry::Totals) -> u64);
        let counters: [Counter; 3] = [
            ("onward_loop_units_total", "Things that a loop's turns got done.", |totals| totals.units),
            ("onward_loop_restarts_total", "Restarts after crashes.", |totals| totals.restarts),
            ("onward_loop_transitions_total", "Changes of a loop's state or reason.", |totals| totals.transitions),
        ];
        for (name, help, count) in counters {
            text.family(name, "counter", help);
            for one in &self.loops {
                text.sample(name, &label("loop", &one.name), count(&one.totals) as f64);
            }
        }
    }

    fn other_metrics(&self, text: &mut Text) {
        text.family("onward_input_good", "gauge", "1 while an input is tolerated.");
        for one in &self.inputs {
            let good = f64::from(u8::from(one.problem.is_none()));
            text.sample("onward_input_good", &label("input", &one.name), good);
        }
        text.family("onward_input_value", "gauge", "What an input shows: seconds of an age, a count, 1 for up.");
        for one in &self.inputs {
            if let Some(value) = one.value {
                text.sample("onward_input_value", &label("input", &one.name), value);
            }
        }
        text.family(
            "onward_heartbeat_silent_seconds",
            "gauge",
            "For how long the most silent heartbeat has not beaten.",
        );
        for one in &self.heartbeats {
            let labels = label("heartbeats", &one.name);
            text.sample("onward_heartbeat_silent_seconds", &labels, one.silent_ms as f64 / 1000.0);
        }
        if let Some(executor) = &self.executor {
            text.family(
                "onward_executor_lag_seconds",
                "gauge",
                "How long a task that could run waits for the executor.",
            );
            text.sample("onward_executor_lag_seconds", "", executor.lag_ms as f64 / 1000.0);
        }
    }
}

struct Text {
    out: String,
    /// Escaped already.
    service: String,
}

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = writeln!(self.out, "{name}{{service=\"{}\"{comma}{labels}}} {value}", self.service);
    }
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", escaped(value))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::Board;
    use crate::turn::Outcome;
    use onward_core::health::LoopRule;

    #[test]
    fn every_sample_belongs_to_a_family_and_names_are_escaped() {
        let board = Board::new("bil\"ling");
        let entry = board.add_loop("in\\voices", LoopRule::default());
        board.runs();
        entry.begin();
        entry.end(Some(1), Outcome::Progress(7).iteration().map(Into::into));
        let text = board.report().metrics();
        for line in [
            "onward_health_ready{service=\"bil\\\"ling\"} 1",
            "onward_loop_state{service=\"bil\\\"ling\",loop=\"in\\\\voices\",critical=\"true\",state=\"healthy\"} 1",
            "onward_loop_state{service=\"bil\\\"ling\",loop=\"in\\\\voices\",critical=\"true\",state=\"stalled\"} 0",
            "onward_loop_units_total{service=\"bil\\\"ling\",loop=\"in\\\\voices\"} 7",
            "onward_loop_turns_total{service=\"bil\\\"ling\",loop=\"in\\\\voices\",outcome=\"succeeded\"} 1",
        ] {
            assert!(text.lines().any(|seen| seen == line), "{line} is not in\n{text}");
        }
        for sample in text.lines().filter(|line| !line.starts_with('#')) {
            let name = sample.split('{').next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
        }
    }
}
