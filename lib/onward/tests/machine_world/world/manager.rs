//! The manager, and the log that outlives it.

use super::*;

impl World {
    pub(super) fn tell_manager(&mut self, input: LinkEvent) {
        let now = Now { mono: self.now, wall: Wall::from_ms(1_800_000_000_000 + self.now.as_ms()) };
        let Some(manager) = &mut self.manager else { return };
        let mut effects = Effects::default();
        manager.step(now, input, &mut effects);
        manager.state().check();
        self.stepped_at = self.now;
        if manager.refusals().of(RefusalKind::NoLeader) > 0 {
            self.seen.insert("no leader");
        }
        if !effects.events.is_empty() {
            for stamped in &effects.events {
                self.note(stamped);
            }
            self.log.append(&mut effects.events);
            let pause = Duration::from_millis(self.below(15));
            self.after(pause, Happening::Durable { term: self.term, events: self.log.len() });
        }
        self.waiting.append(&mut effects.list);
        let durable = Seq(self.durable as u64);
        let (ready, still) = std::mem::take(&mut self.waiting).into_iter().partition(|one| one.after <= durable);
        self.waiting = still;
        self.carry_out(ready);
    }

    fn carry_out(&mut self, ready: Vec<PendingEffect>) {
        let mut frames: BTreeMap<usize, ManagerFrame> = BTreeMap::new();
        let mut closed = Vec::new();
        for PendingEffect { effect, .. } in ready {
            match effect {
                Wanted::Send { session, message } => put(frames.entry(session.0 as usize).or_default(), message),
                Wanted::CloseSession { session } => closed.push(session.0 as usize),
                Wanted::Reply { answer: Ok(Answer::Submitted(accepted)), .. } => {
                    self.acknowledged.extend(accepted.iter().map(|one| one.id));
                }
                Wanted::ConfirmSeat { question } => {
                    let pause = self.delay();
                    self.after(pause, Happening::SeatRead { term: self.term, question });
                }
                _ => {}
            }
        }
        for (line, frame) in frames {
            let delay = self.delay();
            let at = self.lines[line].arrives_down(self.now, delay);
            self.at(at, Happening::ToWorker { line, frame });
        }
        for line in closed {
            self.lines[line].manager_knows = true;
            let delay = self.delay();
            let at = self.lines[line].arrives_down(self.now, delay);
            self.at(at, Happening::WorkerSees { line });
        }
    }

    /// Notes an event of the log, read independently of any machine.
    fn note(&mut self, stamped: &StampedEvent) {
        match &stamped.event {
            Event::HandedOut(handed) => {
                let key = (handed.workflow.job, handed.workflow.workflow);
                assert!(!self.decided.contains_key(&key), "an ended workflow was handed out");
                let before = self.fences.insert(key, handed.fence);
                assert!(before.is_none_or(|before| before < handed.fence), "a fence did not rise");
            }
            Event::AttemptEnded { claim, ending, then, .. } => {
                if matches!(then, NextState::Succeeded | NextState::Failed | NextState::TimedOut | NextState::Cancelled)
                {
                    let before = self.decided.insert((claim.job, claim.workflow), *claim);
                    assert_eq!(before, None, "two outcomes for one workflow");
                }
                if let Ending::Succeeded { result } = ending {
                    assert_eq!(result.as_inline().map(|bytes| bytes.to_vec()), Some(result_of(*claim)));
                }
            }
            _ => {}
        }
    }

    /// The manager dies with all that is not durable; another will take the seat.
    pub(super) fn kill_manager(&mut self) {
        if self.manager.take().is_none() {
            return;
        }
        self.seen.insert("takeover");
        self.waiting.clear();
        self.log.truncate(self.durable);
        (self.fences, self.decided) = Default::default();
        for stamped in self.log.clone() {
            self.note(&stamped);
        }
        for line in 0..self.lines.len() {
            self.lines[line].manager_knows = true;
            self.cut(line);
        }
        let downtime = Duration::from_millis(self.below(20_000));
        self.after(downtime, Happening::Takeover);
    }

    pub(super) fn take_over(&mut self) {
        self.term += 1;
        let now = Now { mono: self.now, wall: Wall::from_ms(1_800_000_000_000 + self.now.as_ms()) };
        let mut manager = Manager::new(self.rules.clone(), self.term, now);
        for stamped in &self.log {
            manager.apply(stamped);
        }
        self.manager = Some(manager);
        self.tell_manager(LinkEvent::SeatTaken { term: Term::new(self.term) });
    }
}
