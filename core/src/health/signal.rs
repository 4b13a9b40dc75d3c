//! The three signals of a node. Each is measured by itself, so that "cannot take work" is never mistaken for "dead".

/// The work that a node got done lately, compared with the work that it had to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ProgressSignal {
    /// Nothing to do. Never "something to do, and nothing done".
    Idle,
    Normal,
    Slow,
    Degraded,
    Stuck,
}

impl ProgressSignal {
    pub const ALL: [Self; 5] = [Self::Idle, Self::Normal, Self::Slow, Self::Degraded, Self::Stuck];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Normal => "normal",
            Self::Slow => "slow",
            Self::Degraded => "degraded",
            Self::Stuck => "stuck",
        }
    }
}

/// The signals that a verdict is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Signals {
    /// The node answers us.
    pub live: bool,
    /// The node can take new work.
    pub ready: bool,
    /// The node gets done what it took.
    pub progress: ProgressSignal,
}
