//! Leases: they end, they are extended, and a receipt is worth what its mailbox declared.

use core::time::Duration;

use tokio::time::Instant;

use super::{LONG, Subject, Suite, extend, send, settle, take_now, take_one};
use crate::mailbox::{ChangeCertainty, End, LeaseLength, Mailbox, MailboxError, StaleAck};

impl<S: Subject> Suite<'_, S> {
    pub(super) async fn a_lease_ends_and_its_receipt_is_stale(&self) {
        let mailbox = self.hasty().await;
        send(&mailbox, "a").await;
        let asked = Instant::now();
        let first = take_one(&mailbox, self.subject.short_lease()).await;
        if let LeaseLength::Granted(span) = mailbox.promises().lease {
            assert!(first.lease >= span, "the lease is as long as was declared");
        }
        // The next holder keeps it for longer, where it can.
        let second = take_one(&mailbox, LONG).await;
        assert!(
            asked.elapsed() >= first.lease,
            "redelivered after {:?}, with a lease of {:?}",
            asked.elapsed(),
            first.lease
        );
        assert_eq!((second.delivery, &second.message), (2, &first.message));
        assert_ne!(first.receipt, second.receipt, "every hand-out has another receipt");
        assert!(first.fence < second.fence, "the fence of the next hand-out is higher");

        let extended = extend(&mailbox, &first.receipt, LONG).await;
        let acked = settle(&mailbox, &first.receipt, End::ACK).await;
        match self.promises.stale_ack {
            StaleAck::Refused => {
                assert_eq!(extended, Err(MailboxError::Stale), "a stale receipt extended a lease");
                let refused = acked.expect_err("a stale ack was taken, and declared as refused");
                assert_eq!((&refused, refused.changed()), (&MailboxError::Stale, ChangeCertainty::No));
                let buried = settle(&mailbox, &first.receipt, End::Dead { why: "late".into() }).await;
                assert_eq!(buried, Err(MailboxError::Stale), "a stale receipt buried a message");
                assert_eq!(mailbox.dead_letters(10).await, Ok(Vec::new()), "what was refused left a dead letter");
            }
            StaleAck::MayBeTaken => {
                assert!(matches!(acked, Ok(()) | Err(MailboxError::Stale)), "{acked:?}");
            }
        }
        // The lease of the newest holder may have ended meanwhile where leases have one short length.
        let mut newest = second;
        loop {
            match settle(&mailbox, &newest.receipt, End::ACK).await {
                Ok(()) => break,
                Err(MailboxError::Stale) if self.promises.stale_ack == StaleAck::MayBeTaken => break,
                Err(MailboxError::Stale) if matches!(self.promises.lease, LeaseLength::Granted(_)) => {}
                Err(error) => panic!("the newest holder was refused: {error}"),
            }
            newest = take_one(&mailbox, LONG).await;
        }
        assert_eq!(take_now(&mailbox).await, [], "it is gone");
        self.depth_is(&mailbox, 0, 0, 0).await;
    }

    pub(super) async fn an_extension_is_at_least(&self) {
        let mailbox = self.calm().await;
        send(&mailbox, "a").await;
        let asked = Instant::now();
        let held = take_one(&mailbox, LONG).await;
        let granted = extend(&mailbox, &held.receipt, self.subject.short_lease()).await.expect("it is held");
        let left = held.lease.saturating_sub(asked.elapsed());
        // Brokers count in whole seconds.
        assert!(granted + Duration::from_secs(1) >= left, "of {left:?} an extension left {granted:?}");
        assert_eq!(take_now(&mailbox).await, []);
        settle(&mailbox, &held.receipt, End::ACK).await.expect("the receipt is good as before");
    }

    pub(super) async fn an_extension_lasts(&self) {
        let mailbox = self.hasty().await;
        send(&mailbox, "a").await;
        let short = self.subject.short_lease();
        // Held on a machine that may be slow: if the lease ended before it was extended, it is taken again.
        let (asked, granted) = loop {
            let held = take_one(&mailbox, short).await;
            let asked = Instant::now();
            match extend(&mailbox, &held.receipt, 2 * short).await {
                Ok(granted) => break (asked, granted),
                Err(error) => assert_eq!(error, MailboxError::Stale),
            }
        };
        assert!(granted >= short, "granted {granted:?}");
        let again = take_one(&mailbox, short).await;
        assert!(asked.elapsed() >= granted, "extended by {granted:?}, redelivered after {:?}", asked.elapsed());
        assert!(again.delivery >= 2);
    }

    pub(super) async fn a_hold_has_an_end(&self) {
        let Some(longest) = self.promises.longest_hold else { return self.a_hold_has_no_end().await };
        let mailbox = self.calm().await;
        send(&mailbox, "a").await;
        let held = take_one(&mailbox, LONG).await;
        match extend(&mailbox, &held.receipt, longest + Duration::from_secs(3_600)).await {
            Ok(granted) => assert!(granted <= longest, "granted {granted:?} of {longest:?} declared"),
            Err(error) => assert_eq!(error.changed(), ChangeCertainty::No, "{error}"),
        }
        settle(&mailbox, &held.receipt, End::ACK).await.expect("it is held all the same");
    }

    async fn a_hold_has_no_end(&self) {
        let mailbox = self.calm().await;
        send(&mailbox, "a").await;
        let held = take_one(&mailbox, LONG).await;
        let week = Duration::from_secs(7 * 24 * 3_600);
        let granted = extend(&mailbox, &held.receipt, week).await.expect("it is held");
        match self.promises.lease {
            LeaseLength::Asked => assert!(granted >= week, "granted {granted:?}"),
            LeaseLength::Repeated => assert!((LONG..week).contains(&granted), "granted {granted:?}"),
            LeaseLength::Granted(_) => assert!(granted >= LONG, "granted {granted:?}"),
        }
    }
}
