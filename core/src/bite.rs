//! The amount of work that one step does, where the work grows with the number of jobs.
//!
//! A million jobs may be due at one instant, and whoever beats at that instant must not wait for all of them. So a step
//! does a *bite* of each kind of such work and leaves the rest to the next one, which the machine asks for at once. The
//! core has no clock inside a step: a bite is counted, in units of about what one event about one job takes.

/// The rest of a bite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bite {
    left: u32,
}

impl Bite {
    /// The bite of a step that has nothing else to do: a millisecond or two.
    pub const WHOLE: Self = Self { left: 512 };
    /// The bite of a step that was asked for something: those who ask stand in line, so there are many such steps one
    /// after another. It is not nothing, or a steady stream of inputs would keep timers from firing for ever.
    pub const BESIDE_INPUT: Self = Self { left: 8 };

    pub const fn of(units: u32) -> Self {
        Self { left: units }
    }

    pub const fn left(self) -> u32 {
        self.left
    }

    pub const fn is_over(self) -> bool {
        self.left == 0
    }

    /// Takes units off the rest. Work that is done counts even if it was more than the rest.
    pub const fn spend(&mut self, units: u32) {
        self.left = self.left.saturating_sub(units);
    }
}
