//! The datacenters as a gate hears them: streams, counts, and when each was heard last. Soft, all of it.
//!
//! Three spans, on awake time, so that a gate that was frozen or without its seat blames nobody:
//!
//! | a datacenter is | when |
//! |---|---|
//! | heard | something came on its stream within three reports' time |
//! | silent | nothing came for `silent_after`, while this gate heard somebody: what nobody says is the gate's own deafness |
//! | usable | heard, and its class is not Unhealthy |

use core::time::Duration;
use std::collections::BTreeMap;

use crate::health::datacenter::datacenter;
use crate::health::{DatacenterClass, DatacenterCounts, DatacenterReason};
use crate::ids::{JobId, Name, StreamId};
use crate::time::Awake;

use super::rule::GateRule;

#[derive(Debug, Default)]
pub(super) struct Datacenters {
    by_name: BTreeMap<Name, Datacenter>,
    streams: BTreeMap<StreamId, Name>,
    /// Since when somebody is heard without a break.
    hearing_since: Awake,
    /// The instant at which any datacenter was heard last.
    heard_any: Option<Awake>,
}

#[derive(Debug)]
pub(super) struct Datacenter {
    /// The stream of its leader, once that was welcomed.
    pub stream: Option<StreamId>,
    pub counts: DatacenterCounts,
    /// Open jobs that name it.
    jobs: usize,
    heard_at: Awake,
    /// The newest frame of its leader.
    number: u64,
    /// Jobs that it was sent since its counts came.
    pub sent: u64,
    /// Set if the datacenter was silent at the last look.
    pub was_silent: bool,
    /// Set while everything that it is owed is being sent again, from behind this job.
    pub resending: Option<Option<JobId>>,
    /// Set while it is being asked for jobs that it does not report, from behind this one.
    pub asking: Option<Option<JobId>>,
    pub ask_at: Awake,
}

impl Datacenters {
    /// A new term: who speaks is not known yet, and nobody is silent before they had the time to.
    pub(super) fn begin(&mut self, now: Awake) {
        *self = Self { hearing_since: now, ..Self::default() };
    }

    /// Keeps track of a datacenter from now on.
    pub(super) fn add(&mut self, name: &Name, now: Awake) -> &mut Datacenter {
        self.by_name.entry(name.clone()).or_insert_with(|| Datacenter {
            stream: None,
            counts: DatacenterCounts::default(),
            jobs: 0,
            heard_at: now,
            number: 0,
            sent: 0,
            was_silent: false,
            resending: None,
            asking: None,
            ask_at: now,
        })
    }

    /// An open job names it.
    pub(super) fn begin_job(&mut self, name: &Name, now: Awake) {
        self.add(name, now).jobs += 1;
    }

    /// Notes that a job which names the datacenter has ended. If that was the last, and it was never heard, its name
    /// may be misspelt, and is not kept.
    pub(super) fn end_job(&mut self, name: &Name, was_ever_heard: bool) {
        let Some(known) = self.by_name.get_mut(name) else { return };
        known.jobs -= 1;
        if known.jobs == 0 && !was_ever_heard {
            self.by_name.remove(name);
        }
    }

    pub(super) fn get(&self, name: &Name) -> Option<&Datacenter> {
        self.by_name.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &Name) -> Option<&mut Datacenter> {
        self.by_name.get_mut(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &Datacenter)> {
        self.by_name.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Name, &mut Datacenter)> {
        self.by_name.iter_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn open_stream(&mut self, stream: StreamId, datacenter: Name) {
        self.streams.insert(stream, datacenter);
    }

    pub(super) fn close_stream(&mut self, stream: StreamId) {
        let Some(name) = self.streams.remove(&stream) else { return };
        if let Some(known) = self.by_name.get_mut(&name).filter(|known| known.stream == Some(stream)) {
            known.stream = None;
            (known.resending, known.asking) = (None, None);
        }
    }

    /// The datacenter that a stream was authenticated for.
    pub(super) fn of_stream(&self, stream: StreamId) -> Option<&Name> {
        self.streams.get(&stream)
    }

    /// Welcomes the datacenter's leader on this stream. Gives the stream that it had before.
    pub(super) fn welcome(
        &mut self,
        name: &Name,
        stream: StreamId,
        is_new_leader: bool,
        now: Awake,
    ) -> Option<StreamId> {
        let known = self.add(name, now);
        let before = known.stream.replace(stream).filter(|before| *before != stream);
        if is_new_leader {
            known.number = 0;
        }
        known.resending = Some(None);
        before
    }

    /// Something came from it. Gives whether it is newer than all that came before from the same leader.
    pub(super) fn note_heard(&mut self, name: &Name, number: u64, rule: &GateRule, now: Awake) -> bool {
        if self.heard_any.is_none_or(|at| now.since(at) > rule.heard_within()) {
            self.hearing_since = now;
        }
        self.heard_any = Some(now);
        let known = self.add(name, now);
        known.heard_at = now;
        known.was_silent = false;
        let is_newest = number > known.number;
        known.number = known.number.max(number);
        is_newest
    }

    /// The instant at which it was heard last, as far as this gate was able to hear.
    fn heard_or_deaf(&self, name: &Name) -> Awake {
        self.by_name.get(name).map_or(self.hearing_since, |known| known.heard_at.max(self.hearing_since))
    }

    pub(super) fn since_heard(&self, name: &Name, now: Awake) -> Option<Duration> {
        Some(now.since(self.by_name.get(name)?.heard_at))
    }

    pub(super) fn is_heard(&self, name: &Name, rule: &GateRule, now: Awake) -> bool {
        let known = self.by_name.get(name);
        known.is_some_and(|known| known.stream.is_some() && now.since(known.heard_at) <= rule.heard_within())
    }

    pub(super) fn silent_at(&self, name: &Name, rule: &GateRule) -> Awake {
        self.heard_or_deaf(name) + rule.silent_after
    }

    pub(super) fn is_silent(&self, name: &Name, rule: &GateRule, now: Awake) -> bool {
        now >= self.silent_at(name, rule)
    }

    pub(super) fn heard_count(&self, rule: &GateRule, now: Awake) -> usize {
        self.by_name.keys().filter(|name| self.is_heard(name, rule, now)).count()
    }

    /// The class that it reported last; one that is not heard has no live manager.
    pub(super) fn class(&self, name: &Name, rule: &GateRule, now: Awake) -> (DatacenterClass, DatacenterReason) {
        match self.by_name.get(name) {
            Some(known) if self.is_heard(name, rule, now) => datacenter(&known.counts),
            _ => datacenter(&DatacenterCounts::default()),
        }
    }

    pub(super) fn is_usable(&self, name: &Name, rule: &GateRule, now: Awake) -> bool {
        self.class(name, rule, now).0 != DatacenterClass::Unhealthy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Awake {
        Awake::from_ms(seconds * 1000)
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("valid")
    }

    #[test]
    fn silence_counts_only_while_somebody_is_heard() {
        let rule = GateRule::default();
        let (a, b) = (name("a"), name("b"));
        let mut all = Datacenters::default();
        all.begin(at(0));
        for (number, second) in (0..=100).step_by(10).enumerate() {
            all.note_heard(&a, number as u64 + 1, &rule, at(second));
            all.note_heard(&b, number as u64 + 1, &rule, at(second));
        }
        // From 100 s on only `a` is heard.
        for (number, second) in (110..=270).step_by(10).enumerate() {
            all.note_heard(&a, number as u64 + 20, &rule, at(second));
        }
        assert!(!all.is_silent(&b, &rule, at(279)));
        assert!(all.is_silent(&b, &rule, at(280)));
        // Nobody is heard for ten minutes; then `a` is, and `b` gets its time anew.
        all.note_heard(&a, 90, &rule, at(900));
        assert!(!all.is_silent(&b, &rule, at(901)));
        assert!(!all.is_silent(&name("never heard"), &rule, at(901)));
        for second in (910..=1_080).step_by(10) {
            all.note_heard(&a, 90 + second, &rule, at(second));
        }
        assert!(all.is_silent(&b, &rule, at(1_080)));
    }

    #[test]
    fn a_frame_is_newest_once() {
        let (rule, a) = (GateRule::default(), name("a"));
        let mut all = Datacenters::default();
        assert!(all.note_heard(&a, 5, &rule, at(1)));
        assert!(!all.note_heard(&a, 5, &rule, at(2)), "doubled");
        assert!(!all.note_heard(&a, 4, &rule, at(2)), "late");
        assert!(all.note_heard(&a, 6, &rule, at(2)));
        all.welcome(&a, StreamId(1), true, at(3));
        assert!(all.note_heard(&a, 1, &rule, at(3)), "another leader counts for itself");
    }
}
