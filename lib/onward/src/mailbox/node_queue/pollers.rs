//! Who polls for a mailbox. To a node a worker has one open poll, and a newer one ends it; so every call that receives is
//! a worker of its own while it lasts.

use std::sync::Mutex;

use crate::client::random_key;

/// The workers of one mailbox in this process, as many as there were calls at a time.
#[derive(Debug)]
pub struct Pollers {
    name: String,
    incarnation: String,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    workers: Vec<PollingWorker>,
    made: u64,
}

#[derive(Debug)]
struct PollingWorker {
    id: String,
    /// The id of the poll that is open, or whose answer was lost: asked again, it gives the same leases.
    poll: String,
    is_answered: bool,
}

/// A worker that polls, and goes back to the idle ones when this is dropped.
#[derive(Debug)]
pub struct QueuePoller<'a> {
    pollers: &'a Pollers,
    worker: Option<PollingWorker>,
}

impl Default for Pollers {
    fn default() -> Self {
        let mut name = random_key();
        name.truncate(12);
        Self { name: format!("mailbox-{name}"), incarnation: random_key(), idle: Mutex::default() }
    }
}

impl Pollers {
    /// An idle worker, one whose answer was lost before others.
    pub fn take(&self) -> QueuePoller<'_> {
        let mut idle = self.idle.lock().expect("nothing panics while it is held");
        let unanswered = idle.workers.iter().position(|worker| !worker.is_answered);
        let worker = match unanswered {
            Some(at) => Some(idle.workers.swap_remove(at)),
            None => idle.workers.pop(),
        };
        let mut worker = worker.unwrap_or_else(|| {
            idle.made += 1;
            PollingWorker { id: format!("{}-{}", self.name, idle.made), poll: String::new(), is_answered: true }
        });
        if core::mem::take(&mut worker.is_answered) {
            worker.poll = random_key();
        }
        QueuePoller { pollers: self, worker: Some(worker) }
    }
}

impl QueuePoller<'_> {
    fn worker(&self) -> &PollingWorker {
        self.worker.as_ref().expect("it goes back when this is dropped")
    }

    pub fn id(&self) -> &str {
        &self.worker().id
    }

    pub fn incarnation(&self) -> &str {
        &self.pollers.incarnation
    }

    pub fn poll(&self) -> &str {
        &self.worker().poll
    }

    /// The answer came, whatever it was.
    pub fn answered(mut self) {
        self.worker.as_mut().expect("it goes back when this is dropped").is_answered = true;
    }
}

impl Drop for QueuePoller<'_> {
    fn drop(&mut self) {
        let mut idle = self.pollers.idle.lock().expect("nothing panics while it is held");
        idle.workers.extend(self.worker.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_at_a_time_are_workers_of_their_own_and_a_lost_answer_is_asked_for_again() {
        let pollers = Pollers::default();
        let (first, second) = (pollers.take(), pollers.take());
        assert_ne!(first.id(), second.id());
        let (lost, good) = ((first.id().to_owned(), first.poll().to_owned()), second.poll().to_owned());
        drop(first);
        second.answered();
        let again = pollers.take();
        assert_eq!((again.id(), again.poll()), (&*lost.0, &*lost.1));
        let other = pollers.take();
        assert_ne!(other.poll(), good, "a poll that was answered is over");
        again.answered();
        other.answered();
        assert_ne!(pollers.take().poll(), lost.1);
        assert_eq!(pollers.idle.lock().unwrap().made, 2);
    }
}
