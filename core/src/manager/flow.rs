//! This manager's own flow: what it has handed out lately, and whether more was wanted of it.

use crate::health::{FlowSample, ProgressRule, Tally};
use crate::time::Awake;

#[derive(Debug, Default)]
pub(crate) struct Flow {
    handed_out: Option<Box<Tally>>,
    last: Option<Awake>,
    /// Since when there is something to hand out that is not.
    demand_since: Option<Awake>,
}

impl Flow {
    /// Counts hand-outs that have become durable.
    pub(crate) fn count(&mut self, rule: &ProgressRule, now: Awake, handouts: u32) {
        if handouts == 0 {
            return;
        }
        let tally = self.handed_out.get_or_insert_with(|| Box::new(Tally::new(rule)));
        for _ in 0..handouts {
            tally.succeeded(now);
        }
        self.last = Some(now);
    }

    pub(crate) fn note_demand(&mut self, is_open: bool, now: Awake) {
        self.demand_since = if is_open { self.demand_since.or(Some(now)) } else { None };
    }

    /// The sample for the rule of progress, with the demand of this moment.
    pub(crate) fn sample(&self, now: Awake, demand: u64) -> FlowSample {
        let done = self.handed_out.as_ref().map_or(0, |tally| u64::from(tally.counts(now).0));
        FlowSample { done, demand, last_done: self.last, demand_since: self.demand_since }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn demand_begins_once_and_ends_when_it_is_met() {
        let mut flow = Flow::default();
        let at = Awake::from_ms;
        flow.note_demand(true, at(10));
        flow.note_demand(true, at(20));
        assert_eq!(flow.sample(Awake::from_ms(20), 3).demand_since, Some(Awake::from_ms(10)));
        flow.note_demand(false, at(30));
        flow.note_demand(true, at(40));
        assert_eq!(flow.sample(Awake::from_ms(40), 3).demand_since, Some(Awake::from_ms(40)));
    }

    #[test]
    fn a_step_without_hand_outs_is_no_work_done() {
        let rules = Settings::default().check().expect("valid settings");
        let mut flow = Flow::default();
        let now = Awake::from_ms(1_000);
        flow.count(&rules.progress, now, 0);
        assert_eq!((flow.sample(now, 0).done, flow.sample(now, 0).last_done), (0, None));
        flow.count(&rules.progress, now, 2);
        assert_eq!((flow.sample(now, 0).done, flow.sample(now, 0).last_done), (2, Some(now)));
    }
}
