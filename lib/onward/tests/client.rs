//! The client's calls against a real node, by both protocols, and what it says where there is none.

mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onward::api::command::CancelWhere;
use onward::api::dead_letter::ReplayFromWord;
use onward::api::schedule::SetSchedule;
use onward::api::submit::SubmitJob;
use onward::client::{JobFilter, NoConnection, Page, Protocol, Retries, Silence};
use onward::{CallError, Client, Job, JobState, NodeAddress};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};
use world::World;

#[tokio::test]
async fn jobs_are_asked_for_and_acted_on_by_both_protocols() {
    let world = World::start().await;
    for (protocol, queue) in [(Protocol::Http2, "two"), (Protocol::Http1, "one")] {
        let client = &Client::at(world.place()).speaking(protocol);
        let job = || Job::new("nobody", 1).unwrap().queue(queue);
        let mut ids = client.submit_all([job(), job(), job()]).await.unwrap();
        ids.reverse();
        assert_eq!(listed(client, queue).await, ids, "the newest first");
        let id = &ids[0];
        let shown = client.job(id).await.unwrap();
        assert_eq!((&shown.state, shown.queue.as_str()), (&JobState::Ready, queue));
        assert!(shown.text().get().contains("\"waits_for_key\""), "as it came");
        let payload = client.job_with_content(id, "nobody").await.unwrap();
        assert_eq!(payload.workflows[0].payload.as_ref().unwrap().get(), "1");
        assert_eq!(client.job_within(id, Duration::from_millis(1)).await.unwrap().state, JobState::Ready);
        assert_eq!(client.explain(id).await.unwrap().code, "no_capable_worker");
        let extended = client.extend(id, Duration::from_secs(60), "by hand").await.unwrap();
        assert_eq!(extended.extensions_s, 60.0);
        let ledger = client.ledger(id).await.unwrap();
        assert_eq!((&*ledger.entries[0].what, ledger.entries[0].by_s), ("extended_by_hand", Some(60.0)));
        assert_eq!(client.cancel(id).await.unwrap().state, JobState::Cancelled);
        let mut watch = client.watch(id);
        assert_eq!(watch.next().await.unwrap().unwrap().state, JobState::Cancelled);
        assert!(watch.next().await.unwrap().is_none());
        let again = client.retry_as(id, "once").await.unwrap().into_value();
        assert_eq!(client.retry_as(id, "once").await.unwrap().into_value(), again, "one request, one job");
        let which = CancelWhere { queue: Some(queue.into()), ..CancelWhere::default() };
        assert_eq!(client.cancel_where(&which).await.unwrap().cancelled, 3);
        let refused = client.output(id, "nobody", 1).await.unwrap_err();
        assert_eq!(refused.code(), Some("unknown_attempt"), "{refused}");
    }
}

/// Ids of the jobs in a queue, listed by pages of two.
async fn listed(client: &Client, queue: &str) -> Vec<String> {
    let which = JobFilter { queue: Some(queue.into()), ..JobFilter::default() };
    let (mut page, mut ids) = (Page { limit: 2, cursor: None }, Vec::new());
    loop {
        let answer = client.jobs(&which, &page).await.unwrap().into_value();
        ids.extend(answer.jobs.into_iter().map(|job| job.id));
        match answer.next_cursor {
            Some(next) => page = page.after(next),
            None => return ids,
        }
    }
}

#[tokio::test]
async fn operators_calls_have_their_types_by_both_protocols() {
    let world = World::start().await;
    for protocol in [Protocol::Http2, Protocol::Http1] {
        let client = &Client::at(world.place()).speaking(protocol);
        assert_eq!(client.status().await.unwrap().state(), "serving");
        assert!(client.pause_queue("a b").await.unwrap().paused);
        let queues = client.queues().await.unwrap();
        assert!(queues.queues.iter().any(|queue| queue.name == "a b" && queue.paused), "{queues:?}");
        assert!(!client.resume_queue("a b").await.unwrap().paused);
        assert!(client.nodes(&Page::default()).await.unwrap().nodes.is_empty());
        for unknown in [client.drain_node("x").await, client.undrain_node("x").await] {
            assert_eq!(unknown.unwrap_err().code(), Some("unknown_worker"));
        }
        assert_eq!(client.datacenters().await.unwrap().datacenters[0].managers, 1);
        let letters = client.dead_letters(&JobFilter::default(), &Page::default()).await.unwrap();
        assert!(letters.dead_letters.is_empty());
        let named = ["01a1e2b1-4440-7000-8000-000038ba1071".to_owned()];
        let refused = [
            client.replay(&named, ReplayFromWord::Start, "r").await.unwrap_err(),
            client.drop_dead_letters(&named).await.unwrap_err(),
        ];
        for error in refused {
            let CallError::Refused { status: 404, code, field, .. } = error else { panic!("{error}") };
            assert_eq!((code.as_str(), field.as_deref()), ("unknown_job", Some("jobs[0]")));
        }
        let refused = client.back_up("/nowhere/backup").await.unwrap_err();
        assert_eq!(refused.code(), Some("backup_needs_token"), "{refused}");
        schedules(client, &format!("{protocol:?}")).await;
    }
}

async fn schedules(client: &Client, request: &str) {
    let job = SubmitJob { kind: Some("nobody".into()), ..SubmitJob::default() };
    let plan = SetSchedule { every_s: Some(3_600.0), job, paused: Some(true), ..SetSchedule::default() };
    assert!(client.set_schedule("hourly", &plan).await.unwrap().paused);
    assert_eq!(client.schedules(&Page::default()).await.unwrap().schedules.len(), 1);
    assert!(client.resume_schedule("hourly").await.unwrap().next_at.is_some());
    assert!(client.pause_schedule("hourly").await.unwrap().next_at.is_none());
    let run = client.run_schedule("hourly", request).await.unwrap().into_value();
    assert_eq!(client.schedule("hourly").await.unwrap().open, [run.id.as_str()]);
    assert!(client.schedule_records("hourly", &Page::default()).await.is_ok());
    client.cancel(&run.id).await.unwrap();
    assert!(client.remove_schedule("hourly").await.unwrap().removed);
    assert_eq!(client.schedule("hourly").await.unwrap_err().code(), Some("unknown_schedule"));
}

fn impatient(url: &str) -> Client {
    let retries = Retries { pauses: vec![Duration::from_millis(1); 2], unreachable: false };
    Client::at(NodeAddress::at(url).unwrap()).speaking(Protocol::Http1).retrying(retries)
}

#[tokio::test]
async fn a_node_that_is_not_there_has_done_nothing_and_that_is_said() {
    // Taken, so that nobody else listens there, and not listened at.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let error = impatient(&url).queues().await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { why: NoConnection::Refused, .. }), "{error:?}");
}

#[tokio::test]
async fn a_call_whose_answer_was_lost_is_made_again_only_where_that_is_safe() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            stream.read_u8().await.unwrap();
        }
    });
    let client = impatient(&url);
    let lost = |error: CallError| matches!(error, CallError::Unanswered { why: Silence::Lost(_), .. });
    assert!(lost(client.submit(Job::of_kind("k")).await.unwrap_err()));
    assert_eq!(asked.swap(0, Ordering::SeqCst), 3, "its key makes it one");
    assert!(lost(client.queues().await.unwrap_err()));
    assert_eq!(asked.swap(0, Ordering::SeqCst), 3, "it changes nothing");
    assert!(lost(client.back_up("/somewhere").await.unwrap_err()));
    assert_eq!(asked.swap(0, Ordering::SeqCst), 1, "whether it was done is not known");
    serving.abort();
}
