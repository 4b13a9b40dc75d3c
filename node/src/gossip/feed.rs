//! What this node says about itself: measured a few times a second, and told to gossip.

use core::time::Duration;

use onward_core::manager::{OwnHealth, SeatState};
use onward_gossip::NodeHealth;
use tokio::time::{sleep, timeout};

use super::GossipHandle;
use crate::engine::Engine;

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
        let answered = match engine.trouble() {
            Some(_) => None,
            None => timeout(answer_within, read).await.ok().and_then(Result::ok),
        };
        let overload = engine.load();
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

fn of_manager(own: &OwnHealth) -> NodeHealth {
    let short = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
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
