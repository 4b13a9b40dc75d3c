//! The mailbox on a queue of a real node: the suite and the model that every mailbox is held to, and outages.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use onward::client::Retries;
use onward::mailbox::{ChangeCertainty, Depth, End, Mailbox, MailboxError, Message, NodeQueue, Received, Reply, Want};
use onward::{Client, Delivery, Job, JobState, MessageLoop, NodeAddress};
use onward_lease::conformance::{self, Setup, Subject};
use onward_node::server::{Door, Node, NodeConfig};
use onward_node::testing::TestNode;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;

const DOCUMENT: &str = include_str!("../../../docs/mailboxes.md");
const LONG: Duration = Duration::from_secs(900);
const SHORT: Duration = Duration::from_millis(300);

async fn start() -> TestNode {
    TestNode::start_with(|settings| settings.min_lease = Duration::from_millis(50)).await.unwrap()
}

fn client(node: &TestNode) -> Client {
    Client::connect(&node.url()).unwrap()
}

async fn take(mailbox: &NodeQueue, lease: Duration) -> Received {
    let want = Want { max: 1, lease, wait: Duration::from_secs(60) };
    mailbox.receive(want).await.unwrap().remove(0)
}

async fn settle(mailbox: &NodeQueue, received: &Received, end: End) -> Result<(), MailboxError> {
    mailbox.settle(vec![(received.receipt.clone(), end)]).await.remove(0)
}

struct OnNode {
    node: TestNode,
    opened: AtomicU32,
}

impl OnNode {
    async fn start() -> Self {
        Self { node: start().await, opened: AtomicU32::new(0) }
    }
}

impl Subject for OnNode {
    type Mailbox = NodeQueue;

    fn name(&self) -> &'static str {
        "Onward"
    }

    fn short_lease(&self) -> Duration {
        SHORT
    }

    async fn open(&self, setup: Setup) -> NodeQueue {
        let name = format!("box-{}", self.opened.fetch_add(1, Ordering::Relaxed));
        let builder = NodeQueue::builder(client(&self.node), name).max_deliveries(setup.max_deliveries);
        builder.connect().await.unwrap()
    }

    async fn open_elsewhere(&self, mailbox: &NodeQueue) -> NodeQueue {
        NodeQueue::connect(client(&self.node), mailbox.address()).await.unwrap()
    }

    async fn open_replies(&self, _: &NodeQueue) -> (String, NodeQueue) {
        let replies = self.open(Setup { max_deliveries: 5, lease: LONG }).await;
        (replies.address().to_owned(), replies)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_a_node_does_what_it_declares() {
    let report = conformance::check(&OnNode::start().await).await;
    report.print();
    conformance::check_documented(DOCUMENT, &report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_a_node_is_as_the_model() {
    conformance::check_against_model(&OnNode::start().await, 6, 40).await;
}

const CHILD: &str = "ONWARD_NODE_QUEUE_CHILD";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_aborts_its_process_reaches_the_dead_letters() {
    let node = start().await;
    let orders = NodeQueue::builder(client(&node), "orders").max_deliveries(2).connect().await.unwrap();
    let url = node.url();
    // Another thread serves the process meanwhile.
    let run = || tokio::task::block_in_place(|| conformance::run_test("receives_and_aborts", CHILD, &url));
    conformance::check_abort(&orders, 2, run).await;
}

/// Does nothing, unless it is run by the test above.
#[tokio::test]
async fn receives_and_aborts() {
    if let Ok(url) = std::env::var(CHILD) {
        let orders = NodeQueue::connect(Client::connect(&url).unwrap(), "orders").await.unwrap();
        conformance::abort_by_message(orders, SHORT).await;
    }
}

/// A node that can be away. Its client finds it again, wherever it is.
struct Coming {
    data: tempfile::TempDir,
    node: Option<Node>,
    door: Arc<Mutex<Option<Door>>>,
}

impl Coming {
    async fn start() -> Self {
        let mut coming = Self { data: tempfile::tempdir().unwrap(), node: None, door: Arc::default() };
        coming.come().await;
        coming
    }

    async fn come(&mut self) {
        let mut config = NodeConfig::new("127.0.0.1:0".parse().unwrap(), self.data.path());
        config.listens = false;
        let node = Node::start(config).await.unwrap();
        *self.door.lock().unwrap() = Some(node.door());
        self.node = Some(node);
    }

    async fn go(&mut self) {
        self.door.lock().unwrap().take();
        self.node.take().unwrap().shutdown(Duration::ZERO).await;
    }

    fn client(&self) -> Client {
        let door = self.door.clone();
        let open = move || match &*door.lock().unwrap() {
            Some(door) => Ok(Box::new(door.open()?) as Box<dyn onward::address::Stream>),
            None => Err(std::io::ErrorKind::ConnectionRefused.into()),
        };
        Client::at(NodeAddress::inside("127.0.0.1:0", Arc::new(open)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_away_in_mid_work_loses_nothing() {
    let node = tokio::sync::Mutex::new(Coming::start().await);
    let orders = NodeQueue::connect(node.lock().await.client(), "orders").await.unwrap();
    let (begin, end) = (async || node.lock().await.go().await, async || node.lock().await.come().await);
    conformance::check_outage(&orders, begin, end).await;
}

/// A client whose connection is cut once, when a message is acknowledged: before the node hears it, or before its answer
/// comes back. It makes no call again by itself.
fn cut_once(node: &TestNode, is_heard: bool) -> Client {
    cut_once_at(node, "\"succeed\"", is_heard)
}

/// The same, when a call has this word.
fn cut_once_at(node: &TestNode, word: &'static str, is_heard: bool) -> Client {
    let (address, was_cut) = (node.url().strip_prefix("http://").unwrap().to_owned(), Arc::new(AtomicBool::new(false)));
    let authority = address.clone();
    let open = move || {
        let (near, other) = tokio::io::duplex(64 << 10);
        let (address, was_cut) = (address.clone(), was_cut.clone());
        tokio::spawn(async move {
            carry(other, TcpStream::connect(address).await.unwrap(), word.as_bytes(), was_cut, is_heard).await
        });
        Ok(Box::new(near) as Box<dyn onward::address::Stream>)
    };
    let retries = Retries { pauses: Vec::new(), unreachable: false };
    Client::at(NodeAddress::inside(&authority, Arc::new(open))).retrying(retries)
}

/// A connection that broke may be noticed by the first call after that.
async fn settle_again(mailbox: &NodeQueue, received: &Received, end: End) -> Result<(), MailboxError> {
    loop {
        match settle(mailbox, received, end.clone()).await {
            Err(MailboxError::Unavailable { .. } | MailboxError::Cut { .. }) => {}
            settled => return settled,
        }
    }
}

async fn carry(mut near: DuplexStream, mut far: TcpStream, word: &[u8], was_cut: Arc<AtomicBool>, is_heard: bool) {
    let (mut asked, mut answered) = ([0; 16_384], [0; 16_384]);
    loop {
        tokio::select! {
            count = near.read(&mut asked) => {
                let asked = &asked[..count.unwrap_or(0)];
                let has_word = asked.windows(word.len()).any(|window| window == word);
                let is_cut = has_word && !was_cut.swap(true, Ordering::SeqCst);
                if asked.is_empty() || (is_cut && !is_heard) || far.write_all(asked).await.is_err() {
                    return;
                }
                if is_cut {
                    // Its answer, which goes no further.
                    drop(far.read(&mut answered).await);
                    return;
                }
            }
            count = far.read(&mut answered) => {
                let answered = &answered[..count.unwrap_or(0)];
                if answered.is_empty() || near.write_all(answered).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The bytes of the message and of its reply are there once each, wherever the line was cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_between_reply_and_ack_leaves_one_reply_and_loses_nothing() {
    let (question, answer): (&[u8], &[u8]) = (b" {\"n\": 1.10}\n\x00\xff", b"\xfe {\"sum\": 1e999} \n\x00");
    for is_heard in [false, true] {
        let node = start().await;
        let orders = NodeQueue::connect(cut_once(&node, is_heard), "orders").await.unwrap();
        let [replies, uncut] = ["replies", "orders"].map(|name| NodeQueue::connect(client(&node), name));
        let (replies, uncut) = (replies.await.unwrap(), uncut.await.unwrap());
        let asked = Message::new(question).header("trace-id", "7").reply_to(replies.address());
        orders.send(vec![asked.clone()]).await.remove(0).unwrap();
        let held = take(&orders, LONG).await;
        assert_eq!((&held.message, held.message.body.as_ref()), (&asked, question));
        let reply = Reply { to: replies.address().into(), message: Message::new(answer).header("in-reply-to", "7") };
        let end = End::Ack { reply: Some(reply.clone()) };

        let error = settle(&orders, &held, end.clone()).await.unwrap_err();
        assert!(matches!(error, MailboxError::Cut { done: "the reply was sent", .. }), "{error}");
        assert_eq!(error.changed(), ChangeCertainty::Yes);
        let held_on = u64::from(!is_heard);
        assert_eq!(uncut.depth().await.unwrap(), Depth { waiting: 0, held: held_on, dead: 0 });
        settle_again(&orders, &held, end).await.unwrap();

        let came = take(&replies, LONG).await;
        assert_eq!((&came.message, came.message.body.as_ref()), (&reply.message, answer));
        assert_eq!(
            replies.depth().await.unwrap(),
            Depth { waiting: 0, held: 1, dead: 0 },
            "one reply, though said twice"
        );
        assert_eq!(uncut.depth().await.unwrap(), Depth::default());
    }
}

/// Cut off between reply and acknowledgement, and not heard of again: the next holder gets the same bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_ends_in_a_cut_leaves_its_message_to_the_next() {
    let node = start().await;
    let orders = NodeQueue::connect(cut_once(&node, false), "orders").await.unwrap();
    let replies = NodeQueue::connect(client(&node), "replies").await.unwrap();
    let asked = Message::new(&b"\xff question \n"[..]).reply_to(replies.address());
    orders.send(vec![asked.clone()]).await.remove(0).unwrap();
    let answer = |text: &'static str| End::Ack {
        reply: Some(Reply { to: replies.address().into(), message: Message::new(text) }),
    };
    let first = take(&orders, SHORT).await;
    let cut = settle(&orders, &first, answer("first")).await.unwrap_err();
    let elsewhere = NodeQueue::connect(client(&node), "orders").await.unwrap();
    let next = take(&elsewhere, LONG).await;
    assert_eq!((next.delivery, &next.message), (2, &asked), "the message is not lost");
    // A slow machine may have been cut off before it could reply.
    let is_replied = matches!(cut, MailboxError::Cut { .. });
    assert!(cut.is_passing(), "{cut}");
    let late = settle_again(&orders, &first, answer("late")).await;
    assert_eq!(late, Err(MailboxError::Stale), "a lost lease replies no more");
    settle(&elsewhere, &next, answer("in time")).await.unwrap();
    let mut bodies = vec![take(&replies, LONG).await.message.body];
    if is_replied {
        bodies.push(take(&replies, LONG).await.message.body);
    }
    bodies.sort();
    assert_eq!(bodies, if is_replied { vec!["first", "in time"] } else { vec!["in time"] });
    assert_eq!(replies.depth().await.unwrap().waiting, 0);
    assert_eq!(elsewhere.depth().await.unwrap(), Depth::default());
}

/// A holder that has replied, and says it again in other words, has replied: one hand-out has one reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_said_again_in_other_words_is_the_first() {
    let node = start().await;
    let orders = NodeQueue::connect(cut_once(&node, false), "orders").await.unwrap();
    let replies = NodeQueue::connect(client(&node), "replies").await.unwrap();
    orders.send(vec![Message::new("question")]).await.remove(0).unwrap();
    let held = take(&orders, LONG).await;
    let answer = |text: &'static str| End::Ack {
        reply: Some(Reply { to: replies.address().into(), message: Message::new(text) }),
    };
    settle(&orders, &held, answer("first")).await.unwrap_err();
    settle_again(&orders, &held, answer("second")).await.unwrap();
    assert_eq!(take(&replies, LONG).await.message.body, "first");
    assert_eq!(replies.depth().await.unwrap().waiting, 0);
}

/// Two who wait at the same time do not take each other's place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_wait_at_a_time() {
    let node = start().await;
    let orders = NodeQueue::connect(client(&node), "orders").await.unwrap();
    let sending = async { orders.send(vec![Message::new("1"), Message::new("2")]).await };
    let (one, other, sent) = tokio::join!(take(&orders, LONG), take(&orders, LONG), sending);
    assert!(sent.iter().all(Result::is_ok));
    assert_ne!(one.message.body, other.message.body);
}

/// A job that others submit is a message, and one that is cancelled is taken away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_somebody_else_is_a_message_and_a_cancel_ends_its_lease() {
    let (node, job) = (start().await, json!({ "id": 7, "size": 1.5 }));
    let client = client(&node);
    let orders = NodeQueue::builder(client.clone(), "orders").kind("order").connect().await.unwrap();
    let id = client.submit(Job::new("order", &job).unwrap().queue("orders").header("trace-id", "t")).await.unwrap();
    let held = take(&orders, LONG).await;
    assert_eq!((held.id.as_str(), held.message.body.as_ref()), (&*id, job.to_string().as_bytes()));
    assert_eq!(held.message.headers["trace-id"], "t");
    client.cancel(&id).await.unwrap();
    let extended = orders.extend(vec![(held.receipt.clone(), LONG)]).await.remove(0);
    assert_eq!(extended, Err(MailboxError::Stale));
    settle(&orders, &held, End::Release { after: Duration::ZERO }).await.unwrap();
    assert_eq!(client.wait(&id).await.unwrap().state, JobState::Cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_refused_at_connect() {
    let node = start().await;
    let connect = async |max, name: String| NodeQueue::builder(client(&node), name).max_deliveries(max).connect().await;
    assert!(connect(999, "orders".into()).await.is_ok());
    for (max, name, text) in
        [(1_000, "orders".to_owned(), "gives up after 1000 deliveries"), (5, "x".repeat(129), "128")]
    {
        let error = connect(max, name).await.unwrap_err();
        assert!(error.to_string().contains(text) && error.changed() == ChangeCertainty::No, "{error}");
    }
}

/// The message loop, as on any other mailbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_loop_runs_on_it() {
    let node = start().await;
    let orders = NodeQueue::connect(client(&node), "orders").await.unwrap();
    let batch = ["1", "2", "no number", "3"].map(Message::new);
    orders.send(batch.into()).await.into_iter().for_each(|sent| drop(sent.unwrap()));
    let messages = MessageLoop::on(orders.clone()).concurrency(2).handle(|msg: Delivery, number: u32| async move {
        msg.progress(1, 1);
        Ok(number)
    });
    let counts = messages.counts();
    let over = async {
        while counts.get().acknowledged < 3 || counts.get().dead < 1 {
            tokio::task::yield_now().await;
        }
    };
    messages.run_until(over).await.unwrap();
    let letters = orders.dead_letters(9).await.unwrap();
    assert!(letters.len() == 1 && letters[0].why.starts_with("the body does not fit this handler"), "{letters:?}");
}

/// A poll whose answer was lost is made again, and may bring more than is wanted by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_answer_brought_beyond_what_is_wanted_is_given_back() {
    let node = start().await;
    let orders = NodeQueue::connect(cut_once_at(&node, "\"poll_id\"", true), "orders").await.unwrap();
    let uncut = NodeQueue::connect(client(&node), "orders").await.unwrap();
    uncut.send(["1", "2", "3"].map(Message::new).into()).await.into_iter().for_each(|sent| drop(sent.unwrap()));
    let want = |max| Want { max, lease: LONG, wait: Duration::from_secs(60) };
    let lost = orders.receive(want(3)).await.unwrap_err();
    assert!(lost.is_passing(), "{lost}");
    assert_eq!(uncut.depth().await.unwrap(), Depth { waiting: 0, held: 3, dead: 0 });
    assert_eq!(orders.receive(want(1)).await.unwrap().len(), 1);
    assert_eq!(uncut.depth().await.unwrap(), Depth { waiting: 2, held: 1, dead: 0 });
}

/// Behind one that was handed out too often there may be another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_buries_a_message_gives_the_one_behind_it() {
    let node = start().await;
    let orders = NodeQueue::builder(client(&node), "orders").max_deliveries(1).connect().await.unwrap();
    orders.send(vec![Message::new("poison")]).await.remove(0).unwrap();
    settle(&orders, &take(&orders, LONG).await, End::Retry { after: Duration::ZERO }).await.unwrap();
    orders.send(vec![Message::new("good")]).await.remove(0).unwrap();
    let now = Want { max: 1, lease: LONG, wait: Duration::ZERO };
    let came = orders.receive(now).await.unwrap();
    assert_eq!(came.iter().map(|one| one.message.body.as_ref()).collect::<Vec<_>>(), [b"good"]);
}

/// The letters do not fit in one call: neither their bytes nor their number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_batches_and_many_dead_letters_are_several_calls() {
    const LETTERS: usize = 1_050;
    let node = start().await;
    let orders = NodeQueue::connect(client(&node), "orders").await.unwrap();
    let large = vec![Message::new(vec![0xff; 1 << 20]); 32];
    orders.send(large).await.into_iter().for_each(|sent| drop(sent.unwrap()));
    assert_eq!(orders.depth().await.unwrap().waiting, 32);

    let graves = NodeQueue::connect(client(&node), "graves").await.unwrap();
    graves.send(vec![Message::new("1"); LETTERS]).await.into_iter().for_each(|sent| drop(sent.unwrap()));
    let mut buried = 0;
    while buried < LETTERS {
        let held = graves.receive(Want { max: 100, lease: LONG, wait: Duration::from_secs(60) }).await.unwrap();
        let ends: Vec<_> = held.into_iter().map(|one| (one.receipt, End::Dead { why: "no".into() })).collect();
        buried += ends.len();
        graves.settle(ends).await.into_iter().for_each(|settled| settled.unwrap());
    }
    assert_eq!(graves.depth().await.unwrap(), Depth { waiting: 0, held: 0, dead: LETTERS as u64 });
}

/// A node that answers each call with what stands here for its path, and counts the calls.
fn answering(answers: &'static [(&'static str, u16, &'static str)]) -> (Client, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let open = move || {
        let (near, other) = tokio::io::duplex(64 << 10);
        let counted = counted.clone();
        let answer = move |request: hyper::Request<hyper::body::Incoming>| {
            let path = request.uri().path();
            let (_, status, body) = answers.iter().find(|one| path.starts_with(one.0)).expect("a path from the list");
            counted.fetch_add(1, Ordering::SeqCst);
            let body = http_body_util::Full::new(bytes::Bytes::from_static(body.as_bytes()));
            let response = hyper::Response::builder().status(*status).header("content-type", "application/json");
            core::future::ready(response.body(body))
        };
        tokio::spawn(async move {
            let serving = auto::Builder::new(TokioExecutor::new());
            // Until whoever asks has gone.
            drop(serving.serve_connection(TokioIo::new(other), hyper::service::service_fn(answer)).await);
        });
        Ok(Box::new(near) as Box<dyn onward::address::Stream>)
    };
    (Client::at(NodeAddress::inside("127.0.0.1:0", Arc::new(open))), calls)
}

/// A job of kind `message` as a node shows it.
macro_rules! job {
    ($id:literal, $attempts:literal) => {
        concat!(
            r#"{"id":""#,
            $id,
            r#"","kind":"message","queue":"orders","state":"failed","created_at":"2026-11-17T10:00:00.000Z","priority":0,
                "tags":[],"progress":{"done":0,"total":null},"timeout_s":1,"stuck_after_s":1,"max_extension_s":1,
                "extensions_s":0,"on_stuck":"retry","require_progress":false,
                "retry":{"max_attempts":5,"base_s":1,"max_s":60},"limits":[],"headers":{},"datacenters":[],
                "timeout_policy":"any","dead_letter":true,"workflows":[{"name":"w","kind":"message","state":"failed",
                "after":[],"counted":1,"payload":7,"attempts":["#,
            $attempts,
            "]}]}"
        )
    };
}

const QUEUES: (&str, u16, &str) = ("/v1/queues", 200, r#"{"queues":[]}"#);

/// A node that is about to stop answers at once, and is not asked without end.
#[tokio::test]
async fn a_poll_that_is_answered_with_nothing_before_its_time_is_made_again_after_a_pause() {
    let (client, calls) = answering(&[QUEUES, ("/v1/leases", 200, r#"{"leases":[]}"#)]);
    let orders = NodeQueue::connect(client, "orders").await.unwrap();
    let want = Want { max: 1, lease: LONG, wait: Duration::from_secs(2) };
    assert_eq!(orders.receive(want).await, Ok(Vec::new()));
    assert!((3..=5).contains(&calls.load(Ordering::SeqCst)), "{calls:?} calls in two seconds");
}

/// A reader of dead letters is not the only one.
#[tokio::test]
async fn a_dead_letter_that_somebody_takes_away_meanwhile_is_passed_over() {
    const LETTERS: &str =
        concat!(r#"{"dead_letters":["#, job!("gone", ""), ",", job!("there", ""), r#"],"next_cursor":null}"#);
    let (client, _) = answering(&[
        QUEUES,
        ("/v1/dead-letters/replay", 200, r#"{"jobs":[{"job":"gone","id":null},{"job":"there","id":"new"}]}"#),
        ("/v1/dead-letters", 200, LETTERS),
        ("/v1/jobs/gone", 404, r#"{"status":404,"code":"unknown_job","title":"x","detail":"there is no such job"}"#),
        (
            "/v1/jobs/there",
            200,
            job!(
                "there",
                r#"{"n":1,"fence":7,"worker":"w","started_at":"2026-11-17T10:00:01.500Z","ended_at":null,
                    "outcome":"failed","error":"no"}"#
            ),
        ),
    ]);
    let orders = NodeQueue::connect(client, "orders").await.unwrap();
    let letters = orders.dead_letters(9).await.unwrap();
    let told: Vec<_> = letters.iter().map(|one| (one.id.as_str(), one.why.as_str())).collect();
    assert_eq!(told, [("there", "no")]);
    assert_eq!(orders.replay(9).await, Ok(1), "the other one was gone");
}
