use onward_core::ids::JobId;
use onward_core::settings::Settings;
use onward_log::{Log, MemoryLog};

use super::*;
use crate::engine::term::{StartRole, begin};

/// Timers wait after a gap until everything is taken that queued up. What came in before the machine looks at the log's
/// answer counts as well.
#[test]
fn the_queue_is_drained_behind_all_that_is_queued_when_the_seat_is_confirmed() {
    let log = MemoryLog::new();
    let rules = Settings::default().check().expect("defaults are good");
    let mut start = EngineStart::new(rules, move || Ok(Box::new(log.clone()) as Box<dyn Log>));
    let shared = Arc::new(EngineState::new(&start));
    let Ok(StartRole::Leads(term)) = begin(&mut start, &shared) else { panic!("a log in memory") };
    let mut watchers = Watchers::default();
    let (mut machine, _committer) = machine_of(term, &start, &shared, (&None, &None), &mut watchers);
    shared.send(Command::Unwatch { job: JobId::from_u128(1), bell: 7 });
    let what = CommitReply::Seat { question: 1, term: machine.term };
    let confirmed = Command::FromLog(CommitAnswer { term: machine.term, what });
    assert!(machine.handle(confirmed).is_ok());
    let next = || shared.run_queue.next_within(Duration::ZERO);
    assert!(matches!(next(), Some(Command::Unwatch { bell: 7, .. })), "what was queued comes first");
    assert!(matches!(next(), Some(Command::QueueEmptied)), "and then it is told to be all");
    assert!(next().is_none());
}
