//! Messages into frames.

use onward_core::message::{EndReport, FromWorker, Settlement};
use onward_proto::v1::WorkerFrame;
use onward_proto::{MAX_FRAME_BYTES, MAX_FRAME_ENTRIES, worker};

/// Packs as much as one frame may hold; the rest stays. Order within a frame is by part, so a hello or a capacity
/// goes with what follows it, but beats that follow a settlement wait for the next frame.
pub(super) fn pack(unsent: &mut Vec<FromWorker>) -> WorkerFrame {
    let mut frame = WorkerFrame::default();
    let (mut entries, mut bytes, mut rank) = (0, 0, 0);
    let fits = unsent.iter().take_while(|message| {
        let (count, weight, place) = size(message);
        let is_first = entries == 0 && bytes == 0;
        let ok = is_first
            || (place >= rank && entries + count <= MAX_FRAME_ENTRIES && bytes + weight <= MAX_FRAME_BYTES / 2);
        (entries, bytes, rank) = (entries + count, bytes + weight, place);
        ok
    });
    let count = fits.count();
    for message in unsent.drain(..count) {
        worker::put(&mut frame, message);
    }
    frame
}

/// Entries, bytes about, and which part of a frame it is.
fn size(message: &FromWorker) -> (usize, usize, u8) {
    const SMALL: usize = 64;
    match message {
        FromWorker::Hello(hello) => {
            let names = hello.subscription.kinds.len() + hello.subscription.queues.len();
            (1 + names + hello.holding.len(), (1 + names * 2 + hello.holding.len()) * SMALL, 0)
        }
        FromWorker::Capacity { .. } => (1, SMALL, 1),
        FromWorker::Beats(beats) => {
            let more: usize = beats.iter().map(|beat| beat.checkpoint.as_ref().map_or(0, |bytes| bytes.len())).sum();
            (beats.len(), beats.len() * SMALL * 2 + more, 2)
        }
        FromWorker::Settle(list) => {
            let weight = |settlement: &Settlement| match &settlement.report {
                EndReport::Succeed { result } => result.len(),
                EndReport::Fail { error, .. } => error.len(),
                EndReport::Release { .. } => 0,
            };
            (list.len(), list.iter().map(weight).sum::<usize>() + list.len() * SMALL, 3)
        }
        FromWorker::ProbeAnswer { .. } => (1, SMALL, 4),
        FromWorker::RequestExtension(request) => (1 + request.claims.len(), (1 + request.claims.len()) * SMALL, 5),
        FromWorker::Ended(claims) => (claims.len(), claims.len() * SMALL, 6),
        FromWorker::Goodbye => (1, SMALL, 7),
    }
}

#[cfg(test)]
mod tests {
    use onward_core::fence::AttemptFence;
    use onward_core::ids::{Claim, JobId};
    use onward_core::message::Beat;
    use onward_core::payload::Payload;

    use super::*;

    fn claim() -> Claim {
        Claim { job: JobId::from_u128(1), workflow: 0, fence: AttemptFence::NONE }
    }

    fn settle(bytes: usize) -> FromWorker {
        let report = EndReport::Succeed { result: Payload::from(vec![0; bytes]) };
        FromWorker::Settle(vec![Settlement::new(claim(), report)])
    }

    /// The number of parts in each frame, after a check that nothing is lost or moved.
    fn frames(messages: Vec<FromWorker>) -> Vec<usize> {
        let (mut unsent, mut counts, mut told) = (messages.clone(), Vec::new(), Vec::new());
        while !unsent.is_empty() {
            let parts = worker::frame_in(&pack(&mut unsent)).expect("a frame that can be read");
            counts.push(parts.len());
            told.extend(parts);
        }
        assert_eq!(told, messages);
        counts
    }

    #[test]
    fn a_frame_takes_what_fits_in_the_order_in_which_it_was_said() {
        let beat = || FromWorker::Beats(vec![Beat::plain(claim())]);
        let capacity = FromWorker::Capacity { slots: 1, accepting: false };
        assert_eq!(frames(vec![capacity, beat(), settle(1), FromWorker::ProbeAnswer { probe: 1 }]), [4]);
        assert_eq!(frames(vec![settle(1), beat(), settle(1)]), [1, 2], "a beat that was said later comes later");
        assert_eq!(frames(vec![settle(3 << 20)]), [1], "however large it is");
        assert_eq!(
            frames(vec![FromWorker::ProbeAnswer { probe: 1 }, beat(), FromWorker::Ended(vec![claim()])]),
            [1, 2]
        );
        let many = FromWorker::Ended(vec![claim(); MAX_FRAME_ENTRIES]);
        assert_eq!(frames(vec![beat(), many]), [1, 1]);
    }

    #[test]
    fn results_that_are_large_together_go_apart() {
        let mut unsent = vec![settle(1 << 20), settle(1 << 20), settle(1 << 20)];
        let first = pack(&mut unsent);
        assert_eq!((first.settlements.len(), unsent.len()), (1, 2));
    }
}
