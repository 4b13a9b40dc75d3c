//! Ends: retry, release, dead letters, replies, groups and batches.

use core::time::Duration;

use tokio::time::Instant;

use super::{LONG, Setup, Subject, Suite, extend, send, settle, take, take_now, take_one};
use crate::mailbox::{
    ChangeCertainty, Counting, End, Groups, Mailbox, MailboxError, Message, OneStep, RepeatedEnd, Reply, StaleAck,
};

const AT_ONCE: Duration = Duration::ZERO;

impl<S: Subject> Suite<'_, S> {
    pub(super) async fn a_retry_comes_after_its_time(&self) {
        let mailbox = self.calm().await;
        send(&mailbox, "a").await;
        let held = take_one(&mailbox, LONG).await;
        let (after, asked) = (self.subject.short_lease(), Instant::now());
        settle(&mailbox, &held.receipt, End::Retry { after }).await.expect("it is held");
        let again = take_one(&mailbox, LONG).await;
        assert!(asked.elapsed() >= after, "came after {:?} and not {after:?}", asked.elapsed());
        assert_eq!((again.delivery, again.message.body.as_ref()), (2, &b"a"[..]));
    }

    pub(super) async fn a_release_is_counted_as_declared(&self) {
        let mailbox = self.calm().await;
        send(&mailbox, "a").await;
        let held = take_one(&mailbox, LONG).await;
        settle(&mailbox, &held.receipt, End::Release { after: AT_ONCE }).await.expect("it is held");
        let again = take_one(&mailbox, LONG).await;
        let expected = match self.promises.counting {
            Counting::Attempts => 1,
            Counting::Deliveries => 2,
        };
        assert_eq!(again.delivery, expected, "declared: {:?}", self.promises.counting);
    }

    pub(super) async fn a_dead_letter_is_kept_and_replayed(&self) {
        let mailbox = self.calm().await;
        let message = Message::new("a").header("trace-id", "7");
        mailbox.send(vec![message.clone()]).await.remove(0).expect("it is sent");
        let held = take_one(&mailbox, LONG).await;
        let why = "no such order: \u{fc}".to_owned();
        settle(&mailbox, &held.receipt, End::Dead { why: why.clone() }).await.expect("it is held");
        assert_eq!(take_now(&mailbox).await, [], "a dead letter is not handed out");
        for _ in 0..2 {
            let letters = mailbox.dead_letters(10).await.expect("dead letters");
            let told: Vec<_> = letters.iter().map(|one| (&one.message, &one.why, one.deliveries)).collect();
            assert_eq!(told, [(&message, &why, 1)], "looking leaves them where they are");
        }
        self.depth_is(&mailbox, 0, 0, 1).await;
        assert_eq!(mailbox.replay(10).await, Ok(1));
        let again = take_one(&mailbox, LONG).await;
        assert_eq!((again.delivery, &again.message), (1, &message), "as if it had never been handed out");
        settle(&mailbox, &again.receipt, End::ACK).await.expect("it is held");
        assert_eq!(mailbox.replay(10).await, Ok(0));
        self.depth_is(&mailbox, 0, 0, 0).await;
    }

    /// Where a message becomes a dead letter in one step, a holder who is refused leaves none behind. Where the letter is
    /// stored first, there is one at most, and the message is not gone without it.
    pub(super) async fn a_late_dead_letter_is_as_declared(&self) {
        let mailbox = self.hasty().await;
        send(&mailbox, "a").await;
        let first = take_one(&mailbox, self.subject.short_lease()).await;
        let second = take_one(&mailbox, LONG).await;
        let buried = settle(&mailbox, &first.receipt, End::Dead { why: "late".into() }).await;
        let letters = mailbox.dead_letters(10).await.expect("dead letters").len();
        let mut acked = settle(&mailbox, &second.receipt, End::ACK).await;
        match self.promises.dead_letter {
            OneStep::Yes => {
                assert_eq!(letters, usize::from(buried.is_ok()), "one step, and the answer was {buried:?}");
                assert_eq!(acked.is_ok(), buried.is_err(), "a dead letter or its holder's: {acked:?}, {buried:?}");
            }
            OneStep::CopyFirst => {
                let allowed = usize::from(buried.is_ok())..=1;
                assert!(allowed.contains(&letters), "{letters} letters of one message, and the answer was {buried:?}");
            }
        }
        // The lease of its holder may have ended meanwhile where leases have one short length. Then it comes again.
        while letters == 0 && acked == Err(MailboxError::Stale) {
            let again = take_one(&mailbox, LONG).await;
            acked = settle(&mailbox, &again.receipt, End::ACK).await;
        }
        self.depth_is(&mailbox, 0, 0, letters as u64).await;
    }

    pub(super) async fn too_many_deliveries_are_the_last(&self) {
        let mailbox = self.subject.open(Setup { max_deliveries: 2, lease: LONG }).await;
        send(&mailbox, "poison").await;
        for delivery in 1..=2 {
            let held = take_one(&mailbox, LONG).await;
            assert_eq!(held.delivery, delivery);
            settle(&mailbox, &held.receipt, End::Retry { after: AT_ONCE }).await.expect("it is held");
        }
        send(&mailbox, "good").await;
        assert_eq!(take_one(&mailbox, LONG).await.message.body, "good", "the poison is handed out no more");
        assert_eq!(take_now(&mailbox).await, []);
        let letters = mailbox.dead_letters(10).await.expect("dead letters");
        let told: Vec<_> = letters.iter().map(|one| (one.message.body.as_ref(), one.deliveries)).collect();
        assert_eq!(told, [(&b"poison"[..], 2)]);
        assert!(letters[0].why.contains("2 times"), "{:?} says how often it was handed out", letters[0].why);
    }

    pub(super) async fn an_end_may_be_repeated(&self) {
        let mailbox = self.calm().await;
        let (to, replies) = self.subject.open_replies(&mailbox).await;
        let reply = Some(Reply { to, message: Message::new("answer") });
        for end in [End::ACK, End::Ack { reply }] {
            send(&mailbox, "a").await;
            let held = take_one(&mailbox, LONG).await;
            settle(&mailbox, &held.receipt, end.clone()).await.expect("it is held");
            let again = settle(&mailbox, &held.receipt, end).await;
            match self.promises.repeated_ack {
                RepeatedEnd::Accepted => assert_eq!(again, Ok(())),
                RepeatedEnd::Stale => assert_eq!(again, Err(MailboxError::Stale)),
            }
            self.depth_is(&mailbox, 0, 0, 0).await;
        }
        assert_eq!(take_one(&replies, LONG).await.message.body, "answer");
        assert_eq!(take_now(&replies).await, [], "one reply, though said twice");
    }

    pub(super) async fn a_reply_goes_with_its_ack(&self) {
        let mailbox = self.hasty().await;
        let (address, replies) = self.subject.open_replies(&mailbox).await;
        let asked = Message::new("question").reply_to(&address);
        mailbox.send(vec![asked.clone()]).await.remove(0).expect("it is sent");
        let first = take_one(&mailbox, self.subject.short_lease()).await;
        assert_eq!(first.message, asked, "the address comes with it");
        let answer = |text: &'static str| {
            let message = Message::new(text).header("in-reply-to", "q-1");
            End::Ack { reply: Some(Reply { to: address.clone(), message }) }
        };
        // Redelivered: what its first holder answers now is late.
        let mut newest = take_one(&mailbox, LONG).await;
        let late = settle(&mailbox, &first.receipt, answer("late")).await;
        if self.promises.stale_ack == StaleAck::Refused {
            assert_eq!(late, Err(MailboxError::Stale));
        }
        while let Err(error) = settle(&mailbox, &newest.receipt, answer("in time")).await {
            assert_eq!(error, MailboxError::Stale);
            if late.is_ok() {
                break;
            }
            newest = take_one(&mailbox, LONG).await;
        }
        let reply = take_one(&replies, LONG).await;
        match (self.promises.stale_ack, self.promises.reply_with_ack) {
            (StaleAck::Refused, OneStep::Yes) => {
                assert_eq!(reply.message, Message::new("in time").header("in-reply-to", "q-1"));
                assert_eq!(take_now(&replies).await, [], "an ack that was refused left its reply behind");
            }
            (StaleAck::Refused, OneStep::CopyFirst) => {
                let more = take_now(&replies).await;
                let all: Vec<_> = core::iter::once(&reply).chain(&more).map(|one| &one.message.body).collect();
                assert!(all.iter().all(|body| **body == "in time"), "a late holder replied: {all:?}");
            }
            (StaleAck::MayBeTaken, _) => assert_eq!(reply.message.headers["in-reply-to"], "q-1"),
        }
    }

    pub(super) async fn groups_are_as_declared(&self) {
        let mailbox = self.calm().await;
        let batch = [("a1", "a"), ("a2", "a"), ("b1", "b")].map(|(body, group)| Message::new(body).group(group));
        let sent = mailbox.send(batch.into()).await;
        if self.promises.groups == Groups::Refused {
            for refused in sent {
                let error = refused.expect_err("a group was taken, and declared as refused");
                assert_eq!(error.changed(), ChangeCertainty::No, "{error}");
                assert!(matches!(error, MailboxError::Refused { .. }), "{error}");
            }
            self.depth_is(&mailbox, 0, 0, 0).await;
            return;
        }
        let mut held = take(&mailbox, 2, LONG).await;
        held.sort_by(|one, other| one.message.body.cmp(&other.message.body));
        assert_eq!((held[0].message.body.as_ref(), held[1].message.body.as_ref()), (&b"a1"[..], &b"b1"[..]));
        assert_eq!(take_now(&mailbox).await, [], "a2 waits for a1");
        settle(&mailbox, &held[0].receipt, End::Retry { after: AT_ONCE }).await.expect("it is held");
        let again = take_one(&mailbox, LONG).await;
        assert_eq!(again.message.body, "a1", "a retry keeps its place");
        settle(&mailbox, &again.receipt, End::ACK).await.expect("it is held");
        let next = take_one(&mailbox, LONG).await;
        assert_eq!((next.message.body.as_ref(), next.message.group.as_deref()), (&b"a2"[..], Some("a")));
    }

    pub(super) async fn batches_are_answered_in_order(&self) {
        const COUNT: usize = 12;
        let mailbox = self.calm().await;
        let batch: Vec<_> = (0..COUNT).map(|number| Message::new(number.to_string())).collect();
        let sent = mailbox.send(batch).await;
        assert_eq!(sent.len(), COUNT);
        let held = take(&mailbox, COUNT, LONG).await;
        for (number, id) in sent.into_iter().enumerate() {
            let id = id.expect("it is sent");
            let one = held.iter().find(|one| one.id == id).expect("what is received has the id that it was sent with");
            assert_eq!(one.message.body, number.to_string().as_bytes(), "ids are answered in the order of the batch");
        }
        // Every second one is given up first, so that a batch has good and bad receipts in turn.
        for one in held.iter().step_by(2) {
            settle(&mailbox, &one.receipt, End::Dead { why: "every second".into() }).await.expect("it is held");
        }
        let extensions = held.iter().map(|one| (one.receipt.clone(), LONG)).collect();
        let extended = mailbox.extend(extensions).await;
        assert_eq!(extended.len(), COUNT);
        for (number, answer) in extended.into_iter().enumerate() {
            let is_held = number % 2 == 1;
            if self.promises.stale_ack == StaleAck::Refused || is_held {
                assert_eq!(answer.is_ok(), is_held, "{number}: {answer:?}");
            }
        }
        let ends = held.iter().skip(1).step_by(2).map(|one| (one.receipt.clone(), End::ACK)).collect();
        let settled = mailbox.settle(ends).await;
        assert_eq!(settled, vec![Ok(()); COUNT / 2]);
        self.depth_is(&mailbox, 0, 0, COUNT as u64 / 2).await;
        assert_eq!(mailbox.send(Vec::new()).await, [], "an empty batch is no call");
        assert_eq!(mailbox.extend(Vec::new()).await, []);
        assert_eq!(mailbox.settle(Vec::new()).await, []);
    }

    pub(super) async fn what_is_too_large_is_refused(&self) {
        let mailbox = self.calm().await;
        let max = self.promises.max_bytes;
        let mut sent = mailbox.send(vec![Message::new(vec![b'x'; max]), Message::new(vec![b'x'; max + 1])]).await;
        assert_eq!(sent.pop(), Some(Err(MailboxError::TooLarge { bytes: max + 1, max })));
        sent.remove(0).expect("the largest body is sent");
        let held = take_one(&mailbox, LONG).await;
        assert_eq!(held.message.body.len(), max);
        assert!(extend(&mailbox, &held.receipt, LONG).await.is_ok());
    }
}
