//! Liveness: does the node answer?
//!
//! Trusted is an answer to *our* question, and only for `answer_within`. A worker with a session is asked every
//! `probe_every`; a question still open when the next is due is a miss. Silence that was negotiated is no failure:
//! a grant moves the health deadline, and while it is live misses do not count.
//! An answer never renews a lease, and never takes back what a grant gave.
//!
//! A worker that calls over HTTP cannot be asked. Its calls, its open poll and its leases speak for it; where there is
//! none of them for `answer_within`, or it said goodbye, it is away, and nothing is to be said of it. A grant moves its
//! health deadline from its last call on, or from the end of its open poll: a lease that it holds proves nothing more.

use crate::time::Awake;
use core::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LivenessRule {
    pub probe_every: Duration,
    /// The time for which one answer (of an HTTP worker: one call) is proof of life.
    pub answer_within: Duration,
    /// The number of unanswered probes in a row that is too many.
    pub max_misses: u8,
    /// An HTTP worker that did nothing for so long is forgotten.
    pub forget_after: Duration,
}

impl Default for LivenessRule {
    fn default() -> Self {
        Self {
            probe_every: Duration::from_secs(10),
            answer_within: Duration::from_secs(30),
            max_misses: 3,
            forget_after: Duration::from_secs(300),
        }
    }
}

/// The reason why a worker does not count as live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum NotLive {
    SessionClosed,
    /// The health deadline has passed.
    Silent,
    MissedProbes,
}

impl NotLive {
    pub const fn code(self) -> &'static str {
        match self {
            Self::SessionClosed => "session_closed",
            Self::Silent => "silent",
            Self::MissedProbes => "missed_probes",
        }
    }
}

/// Liveness of a worker with a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionLiveness {
    last_answer: Awake,
    last_probe_at: Awake,
    /// The health deadline set by the latest grant; zero before the first.
    granted_until: Awake,
    /// Number of the latest probe; zero before the first.
    probe: u32,
    misses: u8,
    unanswered: bool,
    closed: bool,
}

impl SessionLiveness {
    /// The hello counts as an answer. A grant that the same incarnation was given before stays live.
    pub const fn connected(now: Awake, granted_until: Awake) -> Self {
        Self {
            last_answer: now,
            last_probe_at: now,
            granted_until,
            probe: 0,
            misses: 0,
            unanswered: false,
            closed: false,
        }
    }

    pub fn next_probe_at(&self, rule: &LivenessRule) -> Awake {
        self.last_probe_at + rule.probe_every
    }

    /// Counts a miss if the probe before is unanswered, and numbers the one to send. To be called when a probe is due.
    pub fn probe_due(&mut self, now: Awake, rule: &LivenessRule) -> u32 {
        if self.unanswered {
            self.misses = self.misses.saturating_add(1).min(rule.max_misses);
        }
        self.probe = self.probe.wrapping_add(1);
        self.unanswered = true;
        self.last_probe_at = now;
        self.probe
    }

    /// Only the probe that is out counts; false for any other, and on a closed session.
    pub fn answered(&mut self, probe: u32, now: Awake) -> bool {
        if self.closed || !self.unanswered || probe != self.probe {
            return false;
        }
        self.unanswered = false;
        self.misses = 0;
        self.last_answer = now;
        true
    }

    /// Closes the session for good: a worker that comes back does so on a new session.
    pub fn close(&mut self) {
        self.closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The later of what the last answer and what the grants allow.
    pub fn health_deadline(&self, rule: &LivenessRule) -> Awake {
        (self.last_answer + rule.answer_within).max(self.granted_until)
    }

    /// Moves the health deadline by the grant, and returns it. Whether to grant was decided before.
    pub fn granted(&mut self, rule: &LivenessRule, grant: Duration) -> Awake {
        self.granted_until = self.health_deadline(rule) + grant;
        self.granted_until
    }

    pub fn granted_until(&self) -> Awake {
        self.granted_until
    }

    /// A grant is live until the health deadline that it set.
    pub fn grant_live(&self, now: Awake) -> bool {
        now < self.granted_until
    }

    pub fn judge(&self, rule: &LivenessRule, now: Awake) -> Result<(), NotLive> {
        if self.closed {
            Err(NotLive::SessionClosed)
        } else if now >= self.health_deadline(rule) {
            Err(NotLive::Silent)
        } else if self.misses >= rule.max_misses && !self.grant_live(now) {
            Err(NotLive::MissedProbes)
        } else {
            Ok(())
        }
    }

    /// The instant when `judge` changes if nothing comes in until then, not even a probe falls due.
    pub fn next_change(&self, rule: &LivenessRule, now: Awake) -> Option<Awake> {
        match self.judge(rule, now) {
            Err(NotLive::SessionClosed | NotLive::Silent) => None,
            Ok(()) if self.misses >= rule.max_misses => Some(self.granted_until),
            Ok(()) | Err(NotLive::MissedProbes) => Some(self.health_deadline(rule)),
        }
    }
}

/// Liveness of a worker that calls over HTTP. It has one open poll at a time: a newer one takes the place of the older.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HttpLiveness {
    last_call: Awake,
    /// The latest end of the open poll, or the end of the last one; zero before the first.
    poll_end: Awake,
    /// Zero while it holds none.
    leases_end: Awake,
    /// The health deadline set by the latest grant; zero before the first.
    granted_until: Awake,
    left: bool,
}

impl HttpLiveness {
    pub const fn first_called(now: Awake, granted_until: Awake) -> Self {
        Self { last_call: now, poll_end: Awake::ZERO, leases_end: Awake::ZERO, granted_until, left: false }
    }

    pub fn called(&mut self, now: Awake) {
        self.last_call = self.last_call.max(now);
    }

    /// Notes that the worker said goodbye, and stays until it holds nothing.
    pub fn left(&mut self) {
        self.left = true;
    }

    pub fn has_left(&self) -> bool {
        self.left
    }

    /// Whether the worker is away. To be asked of one that holds nothing and has no poll open.
    pub fn is_away(&self, rule: &LivenessRule, now: Awake) -> bool {
        self.left || self.live_until(rule) <= now
    }

    /// Notes that the worker polls again, whatever it said before.
    pub fn returned(&mut self) {
        self.left = false;
    }

    /// `ends` is when we shall answer it at the latest.
    pub fn poll_opened(&mut self, ends: Awake) {
        self.poll_end = ends;
    }

    /// Answered or hung up. A poll that ran to its end leaves the worker its full time to call again.
    pub fn poll_closed(&mut self, now: Awake) {
        self.poll_end = self.poll_end.min(now);
    }

    /// Latest end of the leases it holds: later when one is renewed, earlier when one is given back.
    pub fn leases_end(&mut self, at: Awake) {
        self.leases_end = at;
    }

    pub fn holds_until(&self) -> Awake {
        self.leases_end
    }

    /// The later of what its last call or open poll and what the grants allow.
    pub fn health_deadline(&self, rule: &LivenessRule) -> Awake {
        (self.last_call.max(self.poll_end) + rule.answer_within).max(self.granted_until)
    }

    /// Moves the health deadline by the grant, and returns it. Whether to grant was decided before.
    pub fn granted(&mut self, rule: &LivenessRule, grant: Duration) -> Awake {
        self.granted_until = self.health_deadline(rule) + grant;
        self.granted_until
    }

    pub fn granted_until(&self) -> Awake {
        self.granted_until
    }

    /// The instant from which on the worker is away, unless it is heard of.
    pub fn live_until(&self, rule: &LivenessRule) -> Awake {
        self.health_deadline(rule).max(self.leases_end)
    }

    /// Idle from the end of the last thing it did or held.
    pub fn forget_at(&self, rule: &LivenessRule) -> Awake {
        self.last_call.max(self.poll_end).max(self.leases_end) + rule.forget_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NotLive::*;

    const RULE: fn() -> LivenessRule = LivenessRule::default;

    fn s(seconds: u64) -> Awake {
        Awake::from_ms(seconds * 1000)
    }

    fn ms(ms: u64) -> Awake {
        Awake::from_ms(ms)
    }

    #[derive(Clone, Copy, Debug)]
    enum In {
        /// Probe due; it is given this number.
        Probe(u32),
        /// Answer to that probe; whether it counts.
        Answer(u32, bool),
        Grant(u64),
        Close,
    }
    use In::*;

    fn play(inputs: &[(u64, In)]) -> SessionLiveness {
        let rule = RULE();
        let mut live = SessionLiveness::connected(s(0), Awake::ZERO);
        for &(at, input) in inputs {
            match input {
                Probe(number) => assert_eq!(live.probe_due(s(at), &rule), number, "{inputs:?} at {at}"),
                Answer(number, counts) => assert_eq!(live.answered(number, s(at)), counts, "{inputs:?} at {at}"),
                Grant(grant) => {
                    let before = live.health_deadline(&rule);
                    assert_eq!(live.granted(&rule, Duration::from_secs(grant)), before + Duration::from_secs(grant));
                }
                Close => live.close(),
            }
        }
        live
    }

    /// The inputs, then the judgement at each second.
    type Row = (&'static str, &'static [(u64, In)], &'static [(u64, Result<(), NotLive>)]);

    const TABLE: &[Row] = &[
        ("the hello is an answer, for 30 s", &[], &[(0, Ok(())), (29, Ok(())), (30, Err(Silent))]),
        (
            "an answer counts from when it came",
            &[(10, Probe(1)), (12, Answer(1, true))],
            &[(41, Ok(())), (42, Err(Silent))],
        ),
        (
            "an answer nobody asked for does not count",
            &[(5, Answer(0, false)), (6, Answer(1, false))],
            &[(30, Err(Silent))],
        ),
        (
            "an answer to an older probe does not count",
            &[(10, Probe(1)), (20, Probe(2)), (21, Answer(1, false))],
            &[(29, Ok(())), (30, Err(Silent))],
        ),
        (
            "an answer counts once",
            &[(10, Probe(1)), (12, Answer(1, true)), (19, Answer(1, false))],
            &[(41, Ok(())), (42, Err(Silent))],
        ),
        (
            "two misses are not yet too many",
            &[(10, Probe(1)), (19, Answer(1, true)), (20, Probe(2)), (30, Probe(3)), (40, Probe(4))],
            &[(40, Ok(())), (48, Ok(())), (49, Err(Silent))],
        ),
        (
            "an answer ends the run of misses",
            &[(10, Probe(1)), (20, Probe(2)), (29, Answer(2, true)), (30, Probe(3)), (40, Probe(4)), (50, Probe(5))],
            &[(58, Ok(())), (59, Err(Silent))],
        ),
        (
            "a grant adds to the deadline, and misses do not count while it is live",
            &[(5, Grant(30)), (10, Probe(1)), (20, Probe(2)), (30, Probe(3)), (40, Probe(4)), (50, Probe(5))],
            &[(59, Ok(())), (60, Err(Silent))],
        ),
        ("grants add up", &[(5, Grant(30)), (6, Grant(15))], &[(74, Ok(())), (75, Err(Silent))]),
        (
            "an answer takes nothing back from a grant",
            &[(5, Grant(30)), (10, Probe(1)), (11, Answer(1, true))],
            &[(59, Ok(())), (60, Err(Silent))],
        ),
        (
            "a grant after an answer adds to what the answer gave",
            &[(10, Probe(1)), (20, Answer(1, true)), (20, Grant(15))],
            &[(64, Ok(())), (65, Err(Silent))],
        ),
        ("a closed session is not live at once", &[(5, Close)], &[(5, Err(SessionClosed))]),
        (
            "neither grant nor answer opens a closed session",
            &[(10, Probe(1)), (11, Close), (12, Answer(1, false)), (12, Grant(30))],
            &[(13, Err(SessionClosed)), (500, Err(SessionClosed))],
        ),
    ];

    #[test]
    fn liveness_table() {
        for (name, inputs, expected) in TABLE {
            let live = play(inputs);
            for (at, verdict) in *expected {
                assert_eq!(live.judge(&RULE(), s(*at)), *verdict, "{name}: at {at} s");
            }
        }
    }

    #[test]
    fn three_misses_in_a_row_count_where_the_answer_would_still_be_young() {
        let rule = LivenessRule { probe_every: Duration::from_secs(5), ..RULE() };
        let mut live = SessionLiveness::connected(s(0), Awake::ZERO);
        for at in [5, 10, 15] {
            live.probe_due(s(at), &rule);
            assert_eq!(live.judge(&rule, s(at)), Ok(()));
        }
        live.probe_due(s(20), &rule);
        assert_eq!(live.judge(&rule, s(20)), Err(MissedProbes));

        live.granted(&rule, Duration::from_secs(7));
        assert!(live.grant_live(ms(36_999)) && !live.grant_live(s(37)));
        assert_eq!(live.judge(&rule, s(21)), Ok(()), "a live grant outweighs misses");
        assert!(live.answered(4, s(22)));
        assert_eq!(live.judge(&rule, s(40)), Ok(()), "an answer forgives the misses");
    }

    #[test]
    fn misses_count_again_when_the_grant_is_over() {
        let rule = LivenessRule { probe_every: Duration::from_secs(5), ..RULE() };
        let mut live = SessionLiveness::connected(s(0), Awake::ZERO);
        live.granted(&rule, Duration::from_secs(2));
        live.probe_due(s(5), &rule);
        live.answered(1, s(9));
        for at in [10, 15, 20, 25] {
            live.probe_due(s(at), &rule);
        }
        assert_eq!(live.health_deadline(&rule), s(39));
        assert_eq!(live.next_change(&rule, s(25)), Some(s(32)));
        assert_eq!(live.judge(&rule, s(31)), Ok(()));
        assert_eq!(live.judge(&rule, s(32)), Err(MissedProbes));
        assert_eq!(live.next_change(&rule, s(32)), Some(s(39)));
        assert_eq!(live.judge(&rule, s(39)), Err(Silent));
    }

    #[test]
    fn the_next_probe_is_due_an_interval_after_the_last_was_sent() {
        let rule = RULE();
        let mut live = SessionLiveness::connected(s(0), Awake::ZERO);
        assert_eq!(live.next_probe_at(&rule), s(10));
        live.probe_due(s(13), &rule);
        assert_eq!(live.next_probe_at(&rule), s(23));
        live.answered(1, s(14));
        assert_eq!(live.next_probe_at(&rule), s(23));
    }

    #[test]
    fn next_change_is_exact() {
        for (name, inputs, _) in TABLE {
            let live = play(inputs);
            for from in (0..80_000).step_by(500) {
                let now = live.judge(&RULE(), ms(from));
                let first = (from..120_000).step_by(500).find(|at| live.judge(&RULE(), ms(*at)) != now).map(ms);
                assert_eq!(live.next_change(&RULE(), ms(from)), first, "{name}: from {from} ms");
            }
        }
    }

    #[test]
    fn ten_thousand_sessions_stay_small() {
        assert!(size_of::<SessionLiveness>() <= 32);
        assert!(size_of::<HttpLiveness>() <= 40);
    }

    #[test]
    fn http_workers_live_until_the_latest_of_call_poll_and_leases() {
        // (last call, poll, leases end) -> (live until, forgotten at), in seconds
        #[derive(Debug)]
        enum Poll {
            None,
            Open(u64),
            Closed { ends: u64, at: u64 },
        }
        use Poll::*;
        let table = [
            (10, None, 0, 40, 310),
            (10, Open(35), 0, 65, 335),
            (10, Closed { ends: 35, at: 12 }, 0, 42, 312),
            (10, Closed { ends: 35, at: 35 }, 0, 65, 335),
            (10, None, 25, 40, 325),
            (10, None, 100, 100, 400),
            (10, Open(35), 64, 65, 364),
            (10, Open(35), 66, 66, 366),
        ];
        for (call, poll, leases, until, forgotten) in table {
            let rule = RULE();
            let mut live = HttpLiveness::first_called(s(3), Awake::ZERO);
            live.called(s(call));
            match poll {
                None => {}
                Open(ends) => live.poll_opened(s(ends)),
                Closed { ends, at } => {
                    live.poll_opened(s(ends));
                    live.poll_closed(s(at));
                }
            }
            live.leases_end(s(900));
            live.leases_end(s(leases));
            let row = format!("call {call}, {poll:?}, leases {leases}");
            assert_eq!(live.live_until(&rule), s(until), "{row}");
            assert_eq!([until * 1000 - 1, until * 1000].map(|at| live.is_away(&rule, ms(at))), [false, true], "{row}");
            assert_eq!(live.forget_at(&rule), s(forgotten), "{row}");
            live.left();
            assert!(live.is_away(&rule, s(0)), "{row}: it said goodbye");
            live.returned();
            assert!(!live.is_away(&rule, s(0)), "{row}: it polls again");
        }
    }

    #[test]
    fn a_grant_to_an_http_worker_adds_to_its_last_call_or_open_poll_and_not_to_its_leases() {
        let rule = RULE();
        // last call, poll ends, leases end, grants -> health deadline
        let table: [(u64, u64, u64, &[u64], u64); 5] = [
            (10, 0, 0, &[], 40),
            (10, 0, 900, &[30], 70),
            (10, 0, 900, &[30, 15], 85),
            (10, 50, 900, &[30], 110),
            (10, 50, 20, &[], 80),
        ];
        for (call, poll, leases, grants, deadline) in table {
            let mut live = HttpLiveness::first_called(s(call), Awake::ZERO);
            live.poll_opened(s(poll));
            live.leases_end(s(leases));
            for grant in grants {
                let before = live.health_deadline(&rule);
                assert_eq!(live.granted(&rule, Duration::from_secs(*grant)), before + Duration::from_secs(*grant));
            }
            assert_eq!(live.health_deadline(&rule), s(deadline), "call {call}, poll {poll}, grants {grants:?}");
            assert_eq!(live.live_until(&rule), s(deadline.max(leases)));
            live.called(s(call + 1));
            assert!(live.health_deadline(&rule) >= s(deadline), "a call takes nothing back");
        }
    }
}
