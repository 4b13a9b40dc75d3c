//! Parts of the work that are known by their order.

use super::Heartbeat;

/// The state of each part that has ever begun, the first one first.
#[derive(Debug, Default)]
pub(super) struct BeatParts(Vec<PartState>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PartState {
    /// The part was given up, and may go on.
    Open,
    UnderWay,
    Done,
}

/// A part of the work that is under way, until this is dropped.
#[derive(Debug)]
#[must_use = "a part is under way only as long as this lives"]
pub struct Part {
    heartbeat: Heartbeat,
    number: usize,
    state: PartState,
}

impl Heartbeat {
    /// Begins the first part of the work that is neither done nor under way. A handler that makes its parts in the same
    /// order in every attempt knows each of them again by its [number](Part::number).
    pub fn begin_part(&self) -> Part {
        let mut rest = self.node.rest();
        let parts = &mut rest.parts.0;
        let number = parts.iter().position(|state| *state == PartState::Open).unwrap_or(parts.len());
        if number == parts.len() {
            parts.push(PartState::UnderWay);
        } else {
            parts[number] = PartState::UnderWay;
        }
        drop(rest);
        Part { heartbeat: self.clone(), number, state: PartState::Open }
    }

    pub(super) fn forget_parts(&self) {
        self.node.rest().parts.0.clear();
    }
}

impl Part {
    /// The place of the part among all parts of the work; 0 for the first.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Ends the part: the next part to begin is another one. Without this, the next one goes on with it.
    pub fn finish(mut self) {
        self.state = PartState::Done;
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Where the work has begun again, it is not known any more.
        if let Some(state) = self.heartbeat.node.rest().parts.0.get_mut(self.number) {
            *state = self.state;
        }
    }
}
