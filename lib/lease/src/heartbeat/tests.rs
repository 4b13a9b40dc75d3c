//! Beats: who hears them, how often, and what they remember.

use core::time::Duration;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::*;

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Listener for Wakes {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn only_a_beat_that_is_news_wakes() {
    let (heartbeat, wakes) = (Heartbeat::new(), Arc::new(Wakes::default()));
    heartbeat.beat();
    let listening = heartbeat.listen(wakes.clone());
    assert_eq!((listening.take_beat(), wakes.count()), (false, 0), "what was before is not heard");
    for _ in 0..1_000 {
        heartbeat.beat();
    }
    assert_eq!(wakes.count(), 1);
    assert!(listening.take_beat() && !listening.take_beat());
    heartbeat.beat();
    heartbeat.progress(1, 2);
    assert_eq!((wakes.count(), heartbeat.watermark()), (2, Some((1, Some(2)))));
    drop(listening);
    heartbeat.beat();
    assert_eq!(wakes.count(), 2);
}

#[test]
fn the_next_unit_is_one_more_than_were_reported_by_anybody() {
    let heartbeat = Heartbeat::new();
    assert_eq!([heartbeat.next_unit(), heartbeat.next_unit()], [1, 2]);
    heartbeat.progress(0, None);
    assert_eq!((heartbeat.next_unit(), heartbeat.watermark()), (3, Some((3, None))));
    heartbeat.progress(100, 200);
    assert_eq!((heartbeat.next_unit(), heartbeat.watermark()), (101, Some((101, Some(200)))));
    heartbeat.progress(0, None);
    assert_eq!(heartbeat.next_unit(), 102);
    heartbeat.progress(u64::MAX, None);
    assert_eq!([heartbeat.next_unit(), heartbeat.next_unit()], [u64::MAX - 1; 2], "there is no more");
}

#[test]
fn each_listener_hears_each_beat_though_another_looked_first() {
    let heartbeat = Heartbeat::new();
    let (one, other) = (heartbeat.listen(Arc::new(Wakes::default())), heartbeat.listen(Arc::new(Wakes::default())));
    heartbeat.beat();
    assert!(one.take_beat());
    heartbeat.beat();
    assert!(one.take_beat() && other.take_beat());
    assert!(!one.take_beat() && !other.take_beat());
}

/// No beat is lost between threads: after the last one, whoever looks sees it.
#[test]
fn a_beat_while_a_listener_looks_is_not_lost() {
    let heartbeat = Heartbeat::new();
    let listening = heartbeat.listen(Arc::new(Wakes::default()));
    let turn = Arc::new(std::sync::Barrier::new(2));
    let mut missed = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5_000 {
                turn.wait();
                heartbeat.beat();
                turn.wait();
            }
        });
        for _ in 0..5_000 {
            turn.wait();
            let early = listening.take_beat();
            turn.wait();
            missed += u32::from(!(early | listening.take_beat()));
        }
    });
    assert_eq!(missed, 0);
}

/// Whatever beats while a listener looks, the beats after that are heard: who goes on beating is never taken for silent.
#[test]
fn beats_that_race_with_a_look_do_not_silence_those_after_it() {
    let heartbeat = Heartbeat::new();
    let listening = heartbeat.listen(Arc::new(Wakes::default()));
    let is_over = AtomicBool::new(false);
    let is_heard = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                heartbeat.beat();
            }
        });
        let is_heard = (0..50_000).all(|_| {
            listening.take_beat();
            is_beaten_soon(&listening)
        });
        is_over.store(true, Ordering::Relaxed);
        is_heard
    });
    assert!(is_heard, "it beats and beats, and nobody hears it");
}

/// By the clock of the machine, on however slow a machine.
fn is_beaten_soon(listening: &Listening) -> bool {
    let mut began = None;
    for turn in 0_u64.. {
        if listening.is_beaten() {
            return true;
        }
        if turn > 1_000 {
            if began.get_or_insert_with(std::time::Instant::now).elapsed() > Duration::from_secs(10) {
                return false;
            }
            std::thread::yield_now();
        }
    }
    unreachable!("it returns from within")
}

#[test]
fn beats_rise_to_the_parent_and_never_to_a_sibling() {
    let parent = Heartbeat::new();
    let (one, other) = (parent.child(), parent.child());
    let wakes = || Arc::new(Wakes::default());
    let (above, sibling) = (parent.listen(wakes()), other.listen(wakes()));
    one.child().progress(7, None);
    assert!(above.take_beat() && !sibling.take_beat());
    assert_eq!((parent.watermark(), one.watermark()), (None, None), "units are one's own");
    parent.beat();
    assert!(!sibling.take_beat());
}

#[tokio::test]
async fn a_cancel_goes_to_all_children_and_not_up() {
    let parent = Heartbeat::new();
    let (child, other) = (parent.child().child(), parent.child());
    other.cancel(CancelWhy::Stuck);
    assert!(!parent.is_cancelled() && child.check().is_ok());
    let (why, ()) = tokio::join!(child.cancelled(), async { parent.cancel(CancelWhy::LeaseExpired) });
    assert_eq!(why, CancelWhy::LeaseExpired);
    assert_eq!((child.cancel_reason(), other.cancel_reason()), (Some(why), Some(CancelWhy::Stuck)), "the first stays");
    assert!(child.check().is_err());
}

#[test]
fn observers_see_every_beat_and_detach_in_any_order() {
    let heartbeat = Heartbeat::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observe = |name: &'static str| {
        let seen = seen.clone();
        heartbeat.observe(move |beat| seen.lock().unwrap().push((name, beat)))
    };
    let (first, second, third) = (observe("first"), observe("second"), observe("third"));
    let take = || core::mem::take(&mut *seen.lock().unwrap());
    heartbeat.beat();
    assert_eq!(take(), [("first", Beat::Beat), ("second", Beat::Beat), ("third", Beat::Beat)]);
    drop(first);
    heartbeat.progress(3, 9);
    let progress = Beat::Progress { done: 3, total: Some(9) };
    assert_eq!(take(), [("second", progress), ("third", progress)]);
    drop(third);
    heartbeat.beat();
    heartbeat.beat();
    assert_eq!(take(), [("second", Beat::Beat); 2]);
    drop(second);
    heartbeat.beat();
    assert_eq!(take(), []);
}

#[test]
fn an_observer_that_panics_hurts_neither_the_beat_nor_another() {
    let heartbeat = Heartbeat::new();
    let seen = Arc::new(AtomicU32::new(0));
    let _first = heartbeat.observe(|_| panic!("on purpose"));
    let _second = heartbeat.observe({
        let seen = seen.clone();
        move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    });
    heartbeat.beat();
    heartbeat.beat();
    assert_eq!(seen.load(Ordering::SeqCst), 2);
}

#[test]
fn it_remembers_where_it_beat_last() {
    let heartbeat = Heartbeat::new();
    assert_eq!(heartbeat.last_beat(), None);
    heartbeat.beat();
    let first = heartbeat.last_beat().unwrap();
    assert!(first.file().ends_with("heartbeat/tests.rs"));
    heartbeat.beat();
    assert_eq!(heartbeat.last_beat().unwrap().line(), first.line() + 3, "also of a beat that is no news");
    heartbeat.child().progress(1, None);
    assert_eq!(heartbeat.last_beat().unwrap().line(), first.line() + 5, "and of a child's");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_section_lasts_until_it_is_dropped_and_rises() {
    let parent = Heartbeat::new();
    let child = parent.child();
    let wakes = Arc::new(Wakes::default());
    let _listening = parent.listen(wakes.clone());
    let outer = child.quiet(Duration::from_secs(100));
    assert_eq!((parent.quiet_left(), wakes.count()), (Some(Duration::from_secs(100)), 1));
    tokio::time::advance(Duration::from_secs(30)).await;
    let inner = parent.quiet(Duration::from_secs(5));
    assert_eq!(
        (parent.quiet_left(), child.quiet_left()),
        (Some(Duration::from_secs(5)), Some(Duration::from_secs(70)))
    );
    drop(outer);
    assert_eq!((parent.quiet_left(), child.quiet_left()), (Some(Duration::from_secs(5)), None));
    drop(inner);
    assert_eq!((parent.quiet_left(), wakes.count()), (None, 4));
}

#[test]
fn nothing_of_a_detached_child_is_heard_above() {
    let parent = Heartbeat::new();
    let (child, seen) = (parent.child(), Arc::new(Mutex::new(Vec::new())));
    let grandchild = child.child();
    let listening = parent.listen(Arc::new(Wakes::default()));
    let heard = seen.clone();
    let _observer = parent.observe(move |beat| heard.lock().unwrap().push(beat));
    grandchild.beat();
    let quiet = grandchild.quiet(Duration::from_secs(9));
    assert!(listening.take_beat() && parent.quiet_left().is_some());
    assert!(!grandchild.is_detached());

    child.detach(CancelWhy::TimedOut);
    assert_eq!(grandchild.cancel_reason(), Some(CancelWhy::TimedOut));
    assert!(grandchild.is_detached() && !parent.is_detached() && !parent.is_cancelled());
    assert_eq!(parent.quiet_left(), None, "its quiet section holds the parent's clocks no more");
    seen.lock().unwrap().clear();
    drop(quiet);
    let _late = grandchild.quiet(Duration::from_secs(9));
    grandchild.beat();
    child.progress(7, 8);
    assert_eq!((seen.lock().unwrap().len(), parent.quiet_left(), listening.take_beat()), (0, None, false));
    parent.child().beat();
    assert!(listening.take_beat(), "its siblings are heard");
}

#[test]
fn a_part_that_is_done_is_not_begun_again_and_one_that_was_given_up_is() {
    let heartbeat = Heartbeat::new();
    let begin = || heartbeat.begin_part();
    let (first, second) = (begin(), begin());
    assert_eq!((first.number(), second.number(), heartbeat.child().begin_part().number()), (0, 1, 0));
    second.finish();
    drop(first);
    let again = begin();
    assert_eq!((again.number(), begin().number()), (0, 2));
    again.finish();
    assert_eq!(begin().number(), 2);
    let late = begin();
    heartbeat.forget_progress();
    assert_eq!(begin().number(), 0, "the work begins again");
    drop(late);
    assert_eq!(begin().number(), 0);
}
