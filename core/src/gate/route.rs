//! Which datacenter gets a new job: the best class that has one, and in it the one with most room.
//!
//! Room is the free slots that it reported last, less what it was sent since. Equal ones are taken by name, so that a
//! gate decides the same on every run.

use crate::health::{DatacenterClass, route_order};
use crate::ids::Name;

/// A datacenter that could be sent a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate<'a> {
    pub datacenter: &'a Name,
    pub class: DatacenterClass,
    pub free_slots: u64,
    /// Jobs that it was sent since it said how many slots are free.
    pub sent: u64,
}

/// None where no datacenter may be routed to: the job waits.
pub fn choose<'a>(candidates: impl IntoIterator<Item = Candidate<'a>>) -> Option<&'a Name> {
    let mut all: Vec<Candidate<'a>> = candidates.into_iter().collect();
    all.sort_by(|one, other| one.datacenter.cmp(other.datacenter));
    let order = route_order(all.iter().map(|candidate| (candidate, candidate.class)));
    let class = order.first()?.class;
    let best = order.into_iter().take_while(|candidate| candidate.class == class);
    // The first of equal ones: `min_by_key` keeps it.
    best.min_by_key(|candidate| {
        let full_by = candidate.sent.saturating_sub(candidate.free_slots);
        (core::cmp::Reverse(candidate.free_slots.saturating_sub(candidate.sent)), full_by)
    })
    .map(|candidate| candidate.datacenter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DatacenterClass::{Busy, Degraded, Healthy, Unhealthy};

    /// Name, class, free slots, and jobs sent since.
    type Row = (&'static str, DatacenterClass, u64, u64);

    fn chosen(list: &[Row]) -> Option<String> {
        let names: Vec<Name> = list.iter().map(|(name, ..)| Name::new(*name).expect("valid")).collect();
        let candidates = names.iter().zip(list).map(|(datacenter, (_, class, free_slots, sent))| Candidate {
            datacenter,
            class: *class,
            free_slots: *free_slots,
            sent: *sent,
        });
        choose(candidates).map(Name::to_string)
    }

    #[test]
    fn the_best_class_counts_first_and_then_the_room_that_is_left() {
        let table: &[(&[Row], Option<&str>)] = &[
            (&[], None),
            (&[("a", Unhealthy, 90, 0)], None),
            (&[("a", Degraded, 90, 0), ("b", Busy, 0, 0), ("c", Healthy, 1, 0)], Some("c")),
            (&[("a", Degraded, 90, 0), ("b", Busy, 0, 0)], Some("b")),
            (&[("a", Degraded, 90, 0), ("b", Unhealthy, 99, 0)], Some("a")),
            (&[("a", Healthy, 4, 0), ("b", Healthy, 8, 0)], Some("b")),
            (&[("a", Healthy, 4, 0), ("b", Healthy, 8, 5)], Some("a")),
            (&[("b", Healthy, 4, 0), ("a", Healthy, 4, 0)], Some("a")),
            (&[("a", Busy, 0, 7), ("b", Busy, 0, 3)], Some("b")),
        ];
        for (candidates, expected) in table {
            assert_eq!(chosen(candidates).as_deref(), *expected, "{candidates:?}");
        }
    }
}
