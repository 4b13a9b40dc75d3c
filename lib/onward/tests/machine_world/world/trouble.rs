//! What goes wrong, and what people want meanwhile.

use super::*;

impl World {
    pub(super) fn trouble(&mut self) {
        let worker = self.below(WORKERS as u64) as usize;
        match self.below(100) {
            0..=39 => self.submit(),
            40..=49 => self.cancel_one(),
            50..=69 => {
                if let Some(line) = self.workers[worker].line {
                    self.cut(line);
                }
            }
            70..=76 => self.stop_log(),
            77..=81 => self.kill_manager(),
            82..=86 => {
                self.seen.insert("worker crashed");
                self.begin_anew(worker);
            }
            87..=92 => {
                self.seen.insert("starved");
                self.tell_worker(worker, Input::ExecutorLag(Duration::from_secs(3)));
                let (pause, life) = (Duration::from_millis(self.below(9_000)), self.workers[worker].life);
                self.after(pause, Happening::Awake { worker, life });
            }
            93..=95 => {
                if !self.workers[worker].handlers.is_empty() {
                    self.seen.insert("drained while working");
                }
                self.tell_worker(worker, Input::Drain);
            }
            96..=97 => {
                self.seen.insert("abandoned");
                self.tell_worker(worker, Input::Abandon);
            }
            _ => self.impostor(worker),
        }
    }

    pub(super) fn submit(&mut self) {
        let id = JobId::v7(Wall::from_ms(1_800_000_000_000 + self.now.as_ms()), u128::from(self.rng.next_u64()));
        let draft = Draft { stuck_after: Some(Duration::from_secs(40)), ..Draft::of_kind("task", *b"{}") };
        self.jobs.push(id);
        self.call(Call::Submit(vec![Submission { id, draft }]));
    }

    fn cancel_one(&mut self) {
        if !self.jobs.is_empty() {
            let at = self.below(self.jobs.len() as u64) as usize;
            self.call(Call::Cancel { job: self.jobs[at], epoch: None });
        }
    }

    fn call(&mut self, call: Call) {
        self.number += 1;
        self.tell_manager(LinkEvent::Call { request: RequestId(self.number), call });
    }

    /// Nothing passes any more; either end finds out when it does.
    pub(super) fn cut(&mut self, line: usize) {
        if std::mem::replace(&mut self.lines[line].is_cut, true) {
            return;
        }
        let (one, other) = (self.below(15_000), self.below(15_000));
        self.after(Duration::from_millis(one), Happening::ManagerSees { line });
        self.after(Duration::from_millis(other), Happening::WorkerSees { line });
    }

    fn stop_log(&mut self) {
        if std::mem::replace(&mut self.log_answers, false) {
            let pause = Duration::from_millis(self.below(MAX_SILENCE_MS));
            self.after(pause, Happening::LogAnswers);
        }
    }

    /// A second process with the worker's name replaces it: the first one is rejected when it comes back.
    fn impostor(&mut self, worker: usize) {
        let before = self.workers[worker].life;
        let mut second = self.new_worker(worker, before + 1_000);
        std::mem::swap(&mut self.workers[worker], &mut second);
        // It greets, and is gone; then the first one goes on.
        let mut hello = Vec::new();
        self.workers[worker].machine.step(self.now, Input::Wake, &mut hello);
        self.workers[worker].machine.step(self.now, Input::Connected, &mut hello);
        std::mem::swap(&mut self.workers[worker], &mut second);
        self.lines.push(Line::new(worker, self.now));
        let line = self.lines.len() - 1;
        self.lines[line].worker_knows = true;
        for effect in hello {
            if let Effect::Send(message) = effect {
                self.tell_manager(LinkEvent::Session { session: SessionId(line as u64), message });
            }
        }
        self.after(Duration::from_secs(1), Happening::ManagerSees { line });
    }
}
