//! Time, and what happens to the manager in it: a log that does not answer, freezes, crashes.

use super::*;

impl World {
    pub(super) fn log_trouble(&mut self) {
        self.log_answers = !self.log_answers;
        if self.log_answers {
            self.sync();
        }
    }

    /// Time passes, and the machine is woken when it asks for it.
    pub(super) fn pass_time(&mut self) {
        let span = match self.below(10) {
            0..=4 => self.below(2_000),
            5..=7 => self.below(40_000),
            8 => self.below(200_000),
            _ => self.below(90_000_000),
        };
        self.wake_until(self.now.mono + Duration::from_millis(span), span < 300_000);
    }

    pub(super) fn wake_until(&mut self, end: Mono, answering: bool) {
        let mut wakes = 0;
        while let Some((at, _)) = self.manager.next_wakeup() {
            if at > end || wakes > 3_000 {
                break;
            }
            wakes += 1;
            self.jump(at.since(self.now.mono));
            self.feed(Input::Wake);
            self.confirm_now();
            self.sync();
            if answering && self.chance(70) {
                self.answer_probes();
            }
        }
        if wakes <= 3_000 {
            self.jump(end.since(self.now.mono));
        }
    }

    /// What the shell does without delay: confirmations do not queue behind workers.
    pub(super) fn confirm_now(&mut self) {
        let (urgent, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pool)
            .into_iter()
            .partition(|input| matches!(input, Input::SeatConfirmed { .. } | Input::QueueEmptied));
        self.pool = rest;
        for input in urgent {
            if self.log_answers {
                self.feed(input);
            }
        }
    }

    pub(super) fn answer_probes(&mut self) {
        let (answers, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pool)
            .into_iter()
            .partition(|input| matches!(input, Input::Session { message: FromWorker::ProbeAnswer { .. }, .. }));
        self.pool = rest;
        for answer in answers {
            self.feed(answer);
        }
    }

    pub(super) fn jump(&mut self, span: Duration) {
        self.now = Now { mono: self.now.mono + span, wall: self.now.wall + span };
    }

    pub(super) fn freeze(&mut self) {
        self.seen.insert("gap");
        let span = Duration::from_millis(1_500 + self.below(400_000));
        self.jump(span);
        // The clocks of leases stand still meanwhile; their ends move.
        self.leases.forget();
        if self.chance(30) {
            let wall = self.below(100_000);
            self.now.wall = Wall::from_ms(self.now.wall.as_ms() - 50_000 + wall);
        }
        self.feed(Input::Wake);
        self.confirm_now();
    }

    /// The process dies. Of what was not durable, some may be in the log all the same.
    pub(super) fn crash(&mut self) {
        self.seen.insert("crash");
        let undurable = (self.log.len() - self.durable) as u64;
        let kept = self.durable + if undurable > 0 { self.below(undurable + 1) as usize } else { 0 };
        if kept == self.log.len() {
            self.check_replay();
        }
        self.log.truncate(kept);
        self.durable = kept;
        self.waiting.clear();
        self.pool.clear();
        self.to_archive.clear();
        for worker in &mut self.workers {
            worker.session = None;
        }
        if self.chance(50) {
            self.feed(Input::SeatLost);
            assert_eq!(self.manager.next_wakeup(), None);
            assert_eq!(self.manager.kept_inputs(), 0, "nothing waits for a seat that is lost");
            self.waiting.clear();
        }
        self.open_requests.clear();
        self.log.truncate(kept);
        self.witness = Witness::read(&self.log);
        self.leases.forget();
        self.log_answers = true;
        self.term += 1 + self.below(2);
        let downtime = Duration::from_millis(self.below(200_000));
        self.jump(downtime);
        let random = self.below(1_000_000);
        self.now.mono = Mono::from_ms(random);
        self.manager = Manager::new(self.rules.clone(), random, self.now);
        // What was begun is lost; what was taken of events that are lost is of no use.
        self.snapshot = None;
        self.whole = self.whole.take().filter(|records| snapshot_seq(records) <= kept);
        match &self.whole {
            Some(records) => {
                self.seen.insert("restored");
                self.manager = restored(&self.rules, records, &self.log, random, self.now);
            }
            None => self.log.iter().for_each(|stamped| self.manager.apply(stamped)),
        }
        self.feed(Input::SeatTaken { term: Term::new(self.term) });
        self.sync();
        self.witness.check_acknowledged(&self.acknowledged, &self.manager);
    }

    pub(super) fn check_replay(&self) {
        let (mut replayed, mut older) =
            (Manager::new(self.rules.clone(), 99, self.now), Manager::new(self.rules.clone(), 99, self.now));
        for stamped in &self.log {
            replayed.apply(stamped);
            older.apply(&as_older(stamped));
        }
        let live = self.manager.state().dump();
        assert_eq!(replayed.state().dump(), live, "replay differs from the live state");
        assert_eq!(older.state().dump(), live, "a log that does not say what becomes of jobs means the same");
    }
}
