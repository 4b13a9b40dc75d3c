//! What this node says about itself: measured a few times a second, and told to gossip.

use core::time::Duration;

use onward_core::manager::{OwnHealth, SeatState};
use onward_gossip::{NodeHealth, RingView};
use tokio::time::{sleep, timeout};

use super::GossipHandle;
use crate::cluster::leader::LeaderView;
use crate::engine::Engine;
use crate::gate::GateEngine;

const MEASURE_EVERY: Duration = Duration::from_millis(500);

/// Goes on until it is dropped. A machine that does not answer within `answer_within` accepts nothing, and has no quorum.
pub(crate) async fn report_health(
    gossip: GossipHandle,
    engine: Engine,
    answer_within: Duration,
    is_accepting: impl Fn() -> bool + Send,
) {
    loop {
        let read = engine.read(|view| (view.manager.own_health(), view.manager.seat_state()));
        let overload = engine.load();
        let is_following = matches!(&*engine.leader_view().borrow(), LeaderView::Following { .. });
        if is_following {
            let health = of_follower(&engine, &gossip.view());
            gossip.report(NodeHealth { accepting: is_accepting() && health.has_quorum, overload, ..health });
            sleep(MEASURE_EVERY).await;
            continue;
        }
        let answered = match engine.trouble() {
            Some(_) => None,
            None => timeout(answer_within, read).await.ok().and_then(Result::ok),
        };
        let health = match answered {
            Some((own, seat)) => NodeHealth {
                accepting: is_accepting() && own.serving,
                leads: seat == SeatState::Serving,
                overload,
                ..of_manager(&own)
            },
            None => NodeHealth { overload, ..NodeHealth::default() },
        };
        gossip.report(health);
        sleep(MEASURE_EVERY).await;
    }
}

/// The same for a gate. One that follows reaches the datacenters whose streams wait for it; it forwards nothing itself.
pub(crate) async fn report_gate_health(
    gossip: GossipHandle,
    engine: GateEngine,
    answer_within: Duration,
    is_accepting: impl Fn() -> bool + Send,
) {
    loop {
        gossip.report(of_gate(&engine, answer_within, is_accepting()).await);
        sleep(MEASURE_EVERY).await;
    }
}

async fn of_gate(engine: &GateEngine, answer_within: Duration, is_accepting: bool) -> NodeHealth {
    let overload = engine.load();
    let datacenters = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let unheard = NodeHealth { overload, ..NodeHealth::default() };
    if engine.trouble().is_some() {
        return unheard;
    }
    if matches!(&*engine.leader_view().borrow(), LeaderView::Following { .. }) {
        let datacenters = datacenters(engine.waiting_datacenters());
        return NodeHealth { accepting: is_accepting, has_quorum: true, datacenters, ..unheard };
    }
    let read = engine.read(|gate| (gate.own_health(), gate.seat_state()));
    match timeout(answer_within, read).await.ok().and_then(Result::ok) {
        Some((own, seat)) => NodeHealth {
            accepting: is_accepting,
            has_quorum: seat == SeatState::Serving,
            leads: seat == SeatState::Serving,
            throughput: short(own.done),
            expected_throughput: short(own.done.saturating_add(own.demand)),
            unserved_ms: u32::try_from(own.unserved_for.as_millis()).unwrap_or(u32::MAX),
            datacenters: datacenters(own.datacenters),
            ..unheard
        },
        None => unheard,
    }
}

/// A follower passes calls on to the leader, so it is as ready as that one while it reads the log: the leader's workers are
/// those of all managers.
fn of_follower(engine: &Engine, view: &RingView) -> NodeHealth {
    let has_read = engine.trouble().is_none() && engine.followed().1 <= engine.rules().quorum.log_answer_within;
    let reports = view.members.iter().filter_map(|member| member.report.as_ref());
    let leader = reports.map(|report| report.health).find(|health| health.leads).unwrap_or_default();
    NodeHealth { has_quorum: has_read, capacity: leader.capacity, workers: leader.workers, ..NodeHealth::default() }
}

fn of_manager(own: &OwnHealth) -> NodeHealth {
    NodeHealth {
        has_quorum: own.has_quorum,
        capacity: short(own.free_slots),
        workers: short(own.workers as u64),
        throughput: short(own.done),
        expected_throughput: short(own.done.saturating_add(own.demand)),
        unserved_ms: u32::try_from(own.unserved_for.as_millis()).unwrap_or(u32::MAX),
        ..NodeHealth::default()
    }
}

/// The count, or the highest that a datagram can say.
fn short(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
