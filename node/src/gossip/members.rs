//! The others as they are judged by what they say about themselves, and by whether they answer.
//!
//! Liveness is SWIM's: a member that is suspect still counts, one that is down does not. Readiness and progress follow
//! from its own report by the rules that it judges itself by. Eviction of a manager or a gate means that nobody is
//! routed to it; it is held like that of workers, per role.

use core::time::Duration;

use onward_core::health::hold::{Hold, hold};
use onward_core::health::progress::flow;
use onward_core::health::verdict::{evict_at, gate_ready, judge, manager_ready, worker_ready};
use onward_core::health::{DatacenterCounts, FlowSample, Judgement, NotLive, NotReady, Verdict};
use onward_core::settings::Rules;
use onward_core::time::Awake;
use onward_gossip::{MemberState, MemberView, NodeHealth, NodeIdentity, RingView, Role};

/// A node of the ring with the verdict on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JudgedMember {
    pub identity: NodeIdentity,
    /// None for the node that looks.
    pub state: Option<MemberState>,
    pub state_for: Duration,
    pub health: Option<NodeHealth>,
    pub heard_ago: Option<Duration>,
    pub judgement: Judgement,
    /// The node's grace is over, and nothing holds its eviction: nobody is routed to it.
    pub evicted: bool,
    pub held_by_hold: bool,
}

/// An instant that is later than any span before it is long.
const NOW: Awake = Awake::from_ms(u64::MAX / 2);

/// Every node of the view, the one that looks first.
pub fn judged(rules: &Rules, view: &RingView) -> Vec<JudgedMember> {
    let own = JudgedMember {
        identity: view.own.clone(),
        state: None,
        state_for: Duration::ZERO,
        health: Some(view.own_health),
        heard_ago: None,
        judgement: judgement(rules, view.own.role, Ok(()), Some((view.own_health, Duration::ZERO))),
        evicted: false,
        held_by_hold: false,
    };
    let mut all = vec![own];
    all.extend(view.members.iter().map(|member| judge_member(rules, member)));
    for role in Role::ALL {
        let of_role = |one: &&mut JudgedMember| one.identity.role == role;
        let tracked =
            all.iter().filter(|one| one.identity.role == role && one.state != Some(MemberState::Left)).count();
        let failing = all.iter().filter(|one| one.identity.role == role && is_due(rules, one)).count();
        let hold = hold(tracked, failing);
        for one in all.iter_mut().filter(of_role) {
            let is_due = is_due(rules, one);
            one.held_by_hold = is_due && hold == Hold::Held;
            one.evicted = is_due && hold == Hold::Clear;
        }
    }
    all
}

/// Adds the other managers of the datacenter to the counts of the one that looks. One that said goodbye is none any more,
/// and neither is an earlier address of one that lives.
pub fn count_other_managers(rules: &Rules, view: &RingView, counts: &mut DatacenterCounts) {
    let all = judged(rules, view);
    let is_of_ours =
        |one: &&JudgedMember| one.identity.role == Role::Manager && one.identity.datacenter == view.own.datacenter;
    let living: Vec<_> =
        all.iter().filter(is_of_ours).filter(|one| one.judgement.signals.live).map(|one| &one.identity.name).collect();
    for one in all[1..].iter().filter(is_of_ours) {
        let Judgement { verdict, signals, .. } = one.judgement;
        if one.state == Some(MemberState::Left) || (!signals.live && living.contains(&&one.identity.name)) {
            continue;
        }
        counts.managers += 1;
        counts.managers_live += u32::from(signals.live);
        counts.managers_ready += u32::from(signals.live && signals.ready);
        counts.managers_stuck += u32::from(verdict == Verdict::Stuck);
    }
}

fn judge_member(rules: &Rules, member: &MemberView) -> JudgedMember {
    let live = match member.state {
        MemberState::Alive | MemberState::Suspect => Ok(()),
        MemberState::Down => Err(NotLive::MissedProbes),
        MemberState::Left => Err(NotLive::SessionClosed),
    };
    let health = member.report.as_ref().map(|report| report.health);
    let heard = health.zip(member.heard_ago);
    JudgedMember {
        identity: member.identity.clone(),
        state: Some(member.state),
        state_for: member.state_for,
        health,
        heard_ago: member.heard_ago,
        judgement: judgement(rules, member.identity.role, live, heard),
        evicted: false,
        held_by_hold: false,
    }
}

/// Whether the node's grace is over. One that left on its own needs no eviction.
fn is_due(rules: &Rules, one: &JudgedMember) -> bool {
    let since = Awake::from_ms(NOW.as_ms().saturating_sub(one.state_for.as_millis() as u64));
    let is_suspect = one.state.is_some_and(|state| state == MemberState::Down);
    is_suspect && evict_at(&rules.eviction, one.judgement.verdict, since).is_some_and(|at| at <= NOW)
}

/// The judgement by the health that the node reported, and by how long ago that was.
fn judgement(rules: &Rules, role: Role, live: Result<(), NotLive>, heard: Option<(NodeHealth, Duration)>) -> Judgement {
    let (health, ago) = heard.unwrap_or_default();
    let ready = match role {
        _ if heard.is_none() => Err(NotReady::NotAccepting),
        Role::Manager => manager_ready(health.has_quorum, health.accepting, health.workers as usize),
        Role::Gate => gate_ready(usize::from(health.datacenters), health.overload),
        Role::Worker => worker_ready(health.accepting, health.capacity),
    };
    let unserved = Duration::from_millis(health.unserved_ms.into()) + ago;
    let demand = u64::from(health.expected_throughput.saturating_sub(health.throughput));
    let sample = FlowSample {
        done: health.throughput.into(),
        demand,
        last_done: None,
        demand_since: (demand > 0).then_some(NOW - unserved),
    };
    judge(live, ready, &flow(&rules.progress, NOW, &sample))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onward_gossip::health::HealthReport;
    use onward_gossip::{DropCounts, NodeLabel, Ring};

    fn identity(number: u16, role: Role) -> NodeIdentity {
        let label = |text: &str| NodeLabel::new(text).unwrap();
        let address = ([127, 0, 0, 1], number).into();
        NodeIdentity::new(address, role, Some(label("dc-a")), label(&format!("m{number}")), 1)
    }

    const WELL: NodeHealth = NodeHealth {
        accepting: true,
        has_quorum: true,
        leads: false,
        overload: onward_core::health::OverloadLevel::Normal,
        capacity: 4,
        workers: 2,
        throughput: 0,
        expected_throughput: 0,
        unserved_ms: 0,
        datacenters: 1,
    };

    fn view(members: &[(Role, MemberState, u64, Option<NodeHealth>)]) -> RingView {
        let member =
            |(number, (role, state, seconds, health)): (usize, &(Role, MemberState, u64, Option<NodeHealth>))| {
                MemberView {
                    identity: identity(number as u16 + 2, *role),
                    state: *state,
                    state_for: Duration::from_secs(*seconds),
                    report: health.map(|health| HealthReport { health, ..HealthReport::default() }),
                    heard_ago: health.map(|_| Duration::from_secs(1)),
                }
            };
        RingView {
            ring: Ring::Datacenter,
            own: identity(1, Role::Manager),
            own_health: WELL,
            members: members.iter().enumerate().map(member).collect(),
            disagreements: Vec::new(),
            stretch: 1,
            gaps: 0,
            received: 0,
            sent: 0,
            drops: DropCounts::default(),
        }
    }

    fn rules() -> Rules {
        Rules::default()
    }

    #[test]
    fn a_manager_is_judged_by_swim_and_by_its_own_word() {
        use MemberState::*;
        let busy = NodeHealth { throughput: 9, expected_throughput: 10, ..WELL };
        let slow = NodeHealth { throughput: 5, expected_throughput: 10, ..WELL };
        let idle_hands = NodeHealth { expected_throughput: 10, unserved_ms: 30_000, ..WELL };
        let table = [
            (Alive, Some(WELL), "healthy", "route", "nothing_to_count"),
            (Suspect, Some(WELL), "healthy", "route", "nothing_to_count"),
            (Alive, Some(busy), "healthy", "route", "rate_as_expected"),
            (Alive, Some(slow), "slow", "investigate", "rate_below_expected"),
            (Alive, Some(NodeHealth { accepting: false, ..WELL }), "busy", "drain", "not_accepting"),
            (Alive, Some(NodeHealth { has_quorum: false, ..WELL }), "busy", "drain", "no_quorum"),
            (Alive, Some(NodeHealth { workers: 0, ..WELL }), "busy", "drain", "no_worker"),
            (Alive, Some(idle_hands), "slow", "investigate", "demand_not_served"),
            (Alive, Some(NodeHealth { unserved_ms: 119_000, ..idle_hands }), "stuck", "drain", "demand_not_served"),
            (Alive, None, "busy", "drain", "not_accepting"),
            (Down, Some(WELL), "suspect", "evict", "missed_probes"),
            (Left, Some(WELL), "suspect", "evict", "session_closed"),
        ];
        for (state, health, verdict, action, reason) in table {
            let judged = judged(&rules(), &view(&[(Role::Manager, state, 1, health)]));
            let found = judged[1].judgement;
            assert_eq!(
                (found.verdict.code(), found.verdict.action().code(), found.reason.code()),
                (verdict, action, reason),
                "{state:?} {health:?}"
            );
        }
    }

    #[test]
    fn a_datacenter_has_all_its_managers_but_those_that_left() {
        use MemberState::{Alive, Down, Left, Suspect};
        let stuck = NodeHealth { expected_throughput: 10, unserved_ms: 119_000, ..WELL };
        let manager = |state, health| (Role::Manager, state, 1, Some(health));
        let unready = NodeHealth { accepting: false, ..WELL };
        // members -> managers, live, ready, stuck, with the one that looks
        let table: [(&[_], [u32; 4]); 7] = [
            (&[], [1, 1, 1, 0]),
            (&[manager(Alive, WELL), manager(Suspect, WELL)], [3, 3, 3, 0]),
            (&[manager(Down, WELL)], [2, 1, 1, 0]),
            (&[manager(Left, WELL)], [1, 1, 1, 0]),
            (&[manager(Alive, unready)], [2, 2, 1, 0]),
            (&[manager(Alive, stuck)], [2, 2, 2, 1]),
            (&[(Role::Worker, Alive, 1, Some(WELL))], [1, 1, 1, 0]),
        ];
        let found = |view: &RingView| {
            let own =
                DatacenterCounts { managers: 1, managers_live: 1, managers_ready: 1, ..DatacenterCounts::default() };
            let mut counts = own;
            count_other_managers(&rules(), view, &mut counts);
            [counts.managers, counts.managers_live, counts.managers_ready, counts.managers_stuck]
        };
        for (members, expected) in table {
            assert_eq!(found(&view(members)), expected, "{members:?}");
        }
        let mut moved = view(&[manager(Down, WELL), manager(Alive, WELL)]);
        moved.members[0].identity.name = moved.members[1].identity.name.clone();
        assert_eq!(found(&moved), [2, 2, 2, 0], "one of them, at two addresses");
        let mut elsewhere = view(&[manager(Alive, WELL)]);
        elsewhere.members[0].identity.datacenter = Some(NodeLabel::new("dc-b").unwrap());
        assert_eq!(found(&elsewhere), [1, 1, 1, 0]);
    }

    #[test]
    fn gates_are_ready_by_another_rule() {
        let gate = |health| judged(&rules(), &view(&[(Role::Gate, MemberState::Alive, 1, Some(health))]))[1].judgement;
        assert_eq!(gate(NodeHealth { workers: 0, has_quorum: false, ..WELL }).verdict.code(), "healthy");
        assert_eq!(gate(NodeHealth { datacenters: 0, ..WELL }).reason.code(), "no_datacenter");
        let strained = NodeHealth { overload: onward_core::health::OverloadLevel::Stressed, ..WELL };
        assert_eq!(gate(strained).reason.code(), "overloaded");
    }

    #[test]
    fn eviction_has_its_grace_and_is_held_when_most_fail() {
        use MemberState::{Alive, Down, Left};
        let manager = |state, seconds| (Role::Manager, state, seconds, Some(WELL));
        // members -> (evicted, held) of each; the node that looks is one more
        let table: [(&[_], &[(bool, bool)]); 6] = [
            (&[manager(Down, 9), manager(Alive, 9)], &[(false, false), (false, false)]),
            (&[manager(Down, 10), manager(Alive, 9)], &[(true, false), (false, false)]),
            (&[manager(Down, 10), manager(Down, 10)], &[(false, true), (false, true)]),
            (&[manager(Down, 10)], &[(true, false)]),
            (&[manager(Left, 10), manager(Alive, 10)], &[(false, false), (false, false)]),
            (
                &[manager(Left, 10), manager(Down, 10), manager(Down, 10)],
                &[(false, false), (false, true), (false, true)],
            ),
        ];
        for (members, expected) in table {
            let judged = judged(&rules(), &view(members));
            let found: Vec<(bool, bool)> = judged[1..].iter().map(|one| (one.evicted, one.held_by_hold)).collect();
            assert_eq!(found, expected, "{members:?}");
        }
    }
}
