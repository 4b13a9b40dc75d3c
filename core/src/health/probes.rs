//! What an orchestrator is told of a process: by its loops, and by what stands beside them.
//!
//! | what | fails liveness | fails readiness |
//! |---|---|---|
//! | a critical loop that is stalled or dead | yes | yes |
//! | a critical loop in any other state than healthy or finished | no | yes |
//! | a heartbeat that has been silent for too long | yes | yes |
//! | an executor that runs no tasks | yes | yes |
//! | an input (a dependency, an age, a count) beyond what is tolerated | no | yes |
//! | the process was told to stop | no | yes |
//!
//! Liveness fails where a restart helps, and only there. What is not critical is shown, and fails neither.

use super::loops::LoopState;

/// A thing that the probes depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Sign {
    Loop(LoopState),
    /// A heartbeat, `silent` if it has not beaten for longer than it may.
    Heartbeat {
        silent: bool,
    },
    /// The executor, `starved` if a task that could run has waited for longer than it may.
    Executor {
        starved: bool,
    },
    Input {
        good: bool,
    },
    Stopping,
}

impl Sign {
    pub const fn is_live(self) -> bool {
        match self {
            Self::Loop(state) => state.is_live(),
            Self::Heartbeat { silent } => !silent,
            Self::Executor { starved } => !starved,
            Self::Input { .. } | Self::Stopping => true,
        }
    }

    pub const fn is_ready(self) -> bool {
        match self {
            Self::Loop(state) => state.is_ready(),
            Self::Heartbeat { silent } => !silent,
            Self::Executor { starved } => !starved,
            Self::Input { good } => good,
            Self::Stopping => false,
        }
    }
}

/// The answers to an orchestrator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probes {
    /// No: restart me.
    pub live: bool,
    /// No: send me nothing.
    pub ready: bool,
    /// No: a critical loop is inside its grace, so do not judge me yet.
    pub started: bool,
}

/// `signs` are those of critical things only.
pub fn probes(signs: impl IntoIterator<Item = Sign>) -> Probes {
    let mut probes = Probes { live: true, ready: true, started: true };
    for sign in signs {
        probes.live &= sign.is_live();
        probes.ready &= sign.is_ready();
        probes.started &= sign != Sign::Loop(LoopState::Starting);
    }
    probes
}

/// The step to take with the ready file. The file stands for readiness, so it must not outlive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReadyFile {
    /// Write a file beside it, then rename that over it.
    Write,
    Remove,
    Leave,
}

/// `at_start`: one that is there is of a predecessor.
pub const fn ready_file(at_start: bool, ready: bool, present: bool) -> ReadyFile {
    match (at_start, ready, present) {
        (false, true, _) => ReadyFile::Write,
        (_, _, true) => ReadyFile::Remove,
        (_, _, false) => ReadyFile::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_restart_helps_fails_liveness() {
        // sign -> live, ready, started
        let table = [
            (Sign::Loop(LoopState::Starting), true, false, false),
            (Sign::Loop(LoopState::Healthy), true, true, true),
            (Sign::Loop(LoopState::Finished), true, true, true),
            (Sign::Loop(LoopState::Degraded), true, false, true),
            (Sign::Loop(LoopState::Failing), true, false, true),
            (Sign::Loop(LoopState::Restarting), true, false, true),
            (Sign::Loop(LoopState::Stalled), false, false, true),
            (Sign::Loop(LoopState::Stopping), true, false, true),
            (Sign::Loop(LoopState::Dead), false, false, true),
            (Sign::Heartbeat { silent: false }, true, true, true),
            (Sign::Heartbeat { silent: true }, false, false, true),
            (Sign::Executor { starved: false }, true, true, true),
            (Sign::Executor { starved: true }, false, false, true),
            (Sign::Input { good: true }, true, true, true),
            (Sign::Input { good: false }, true, false, true),
            (Sign::Stopping, true, false, true),
        ];
        assert!(LoopState::ALL.iter().all(|state| table.iter().any(|(sign, ..)| *sign == Sign::Loop(*state))));
        let healthy = Sign::Loop(LoopState::Healthy);
        for (sign, live, ready, started) in table {
            for signs in [vec![sign], vec![healthy, sign], vec![sign, healthy]] {
                assert_eq!(probes(signs.clone()), Probes { live, ready, started }, "{signs:?}");
            }
        }
        assert_eq!(probes([]), Probes { live: true, ready: true, started: true });
    }

    #[test]
    fn the_ready_file_stands_for_readiness() {
        use ReadyFile::*;
        // at start, ready, present
        let table = [
            (true, false, true, Remove),
            (true, false, false, Leave),
            (true, true, true, Remove),
            (true, true, false, Leave),
            (false, true, true, Write),
            (false, true, false, Write),
            (false, false, true, Remove),
            (false, false, false, Leave),
        ];
        for (at_start, ready, present, expected) in table {
            assert_eq!(ready_file(at_start, ready, present), expected, "{at_start} {ready} {present}");
        }
    }
}
