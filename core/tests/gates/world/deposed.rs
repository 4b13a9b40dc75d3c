//! A gate whose seat another has taken while it did not run: it keeps its streams, wakes, and does not know. Whatever it
//! decides it cannot store, so nothing of it leaves; what was stored before it says once more, under its old epoch.

use onward_core::gate::Gate;
use onward_core::gate::effect::Effect;
use onward_core::gate::input::Input;
use onward_core::gate::message::{Frame, ToDatacenter};
use onward_core::ids::StreamId;
use onward_core::manager::SeatState;
use onward_core::time::Mono;

use super::{Parcel, World};

/// What came of waking it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Woke {
    Nobody,
    /// It goes on as if it led.
    Leads,
    /// It asked for its seat, and heard that it is another's.
    Unseated,
    /// The log took nothing of what it decided.
    Refused,
}

pub(super) struct DeposedGate {
    gate: Gate,
    /// The stream of each datacenter that has one.
    streams: Vec<Option<StreamId>>,
    /// The number of events that it knows to be stored: it can append no more.
    stored: u64,
    is_awake: bool,
    /// Frames that came while it did not run.
    unread: Vec<(StreamId, Frame)>,
}

impl World {
    /// The gate is frozen, and another takes its seat.
    pub fn depose_gate(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        self.end_deposed();
        let none = vec![None; self.streams.len()];
        let streams = std::mem::replace(&mut self.streams, none);
        let stored = self.gate_log.len() as u64;
        self.deposed = Some(DeposedGate { gate, streams, stored, is_awake: false, unread: Vec::new() });
        self.gate_id += 1;
        self.start_gate();
    }

    /// The gate that was deposed runs again, and reads what came meanwhile.
    pub fn wake_deposed(&mut self) -> Woke {
        let Some(deposed) = &mut self.deposed else { return Woke::Nobody };
        deposed.is_awake = true;
        let mut woke = Woke::Leads;
        for (stream, frame) in std::mem::take(&mut deposed.unread) {
            woke = woke.max(self.step_deposed(Input::Datacenter { stream, frame }));
        }
        woke.max(self.step_deposed(Input::Wake))
    }

    /// It ends, or learns that it does not lead and begins anew as one that follows: its streams close.
    pub(super) fn end_deposed(&mut self) {
        for datacenter in 0..self.datacenters.len() {
            self.close_stream_to_deposed(datacenter);
        }
        self.deposed = None;
    }

    pub(super) fn step_deposed(&mut self, input: Input) -> Woke {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let Some(deposed) = &mut self.deposed else { return Woke::Nobody };
            deposed.gate.step(self.now, input, &mut self.effects);
            let stored = deposed.stored;
            // Past the seat's deadline nothing leaves.
            let may_speak = matches!(deposed.gate.seat_state(), SeatState::Serving | SeatState::Settling);
            let is_refused = !self.effects.events.is_empty();
            self.effects.events.clear();
            let mut is_unseated = false;
            for waiting in std::mem::take(&mut self.effects.list) {
                match waiting.effect {
                    Effect::ConfirmSeat { .. } => is_unseated = true,
                    Effect::Send { stream, message } if may_speak && waiting.after.0 <= stored => {
                        self.send_down_from_deposed(stream, message);
                    }
                    // Closed streams, answers to nobody and what it would note.
                    _ => {}
                }
            }
            if is_refused || is_unseated {
                self.end_deposed();
                return if is_refused { Woke::Refused } else { Woke::Unseated };
            }
        }
        Woke::Leads
    }

    fn send_down_from_deposed(&mut self, stream: StreamId, message: ToDatacenter) {
        let streams = self.deposed.iter().flat_map(|deposed| &deposed.streams);
        let Some(datacenter) = streams.copied().position(|open| open == Some(stream)) else { return };
        self.sent.push((datacenter, message.clone()));
        self.put_on_wire(datacenter, stream, Parcel::Down(message));
    }

    pub(super) fn is_of_deposed(&self, datacenter: usize, stream: StreamId) -> bool {
        self.deposed.as_ref().is_some_and(|deposed| deposed.streams[datacenter] == Some(stream))
    }

    pub(super) fn tell_deposed(&mut self, stream: StreamId, frame: Frame) {
        let Some(deposed) = &mut self.deposed else { return };
        if deposed.is_awake {
            self.step_deposed(Input::Datacenter { stream, frame });
        } else {
            deposed.unread.push((stream, frame));
        }
    }

    pub(super) fn close_stream_to_deposed(&mut self, datacenter: usize) {
        let Some(deposed) = &mut self.deposed else { return };
        let Some(stream) = deposed.streams[datacenter].take() else { return };
        self.wires.retain(|wire| wire.stream != stream || self.weather.delay_ms > 0);
        self.datacenters[datacenter].close_gate(stream, self.now);
        self.carry(datacenter);
    }

    pub(super) fn deposed_wakes_at(&self) -> Option<Mono> {
        let deposed = self.deposed.as_ref().filter(|deposed| deposed.is_awake)?;
        deposed.gate.next_wakeup().map(|(at, _)| at)
    }
}
