//! The mailbox on a queue of a real node: the suite and the model that every mailbox is held to, and outages.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward::mailbox::{Changed, End, Mailbox, MailboxError, Message, NodeQueue, Received, Reply, Want};
use onward::{Client, Delivery, Job, JobState, MessageLoop, NodeAddress};
use onward_lease::conformance::{self, Setup, Subject};
use onward_node::server::{Door, Node, NodeConfig};
use onward_node::testing::TestNode;
use serde_json::json;

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

    async fn open_replies(&self, _: &NodeQueue) -> (String, NodeQueue) {
        let replies = self.open(Setup { max_deliveries: 5, lease: LONG }).await;
        (replies.address().to_owned(), replies)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stdout, reason = "the table of promises is printed by the run of the tests")]
async fn a_queue_of_a_node_does_what_it_declares() {
    let report = conformance::check(&OnNode::start().await).await;
    println!("{report}");
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

/// A reply has the name of its hand-out, so whoever repeats it after a cut sends it once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_repeated_is_one_and_that_of_a_lost_lease_is_none() {
    let node = start().await;
    let orders = NodeQueue::connect(client(&node), "orders").await.unwrap();
    let replies = NodeQueue::connect(client(&node), "replies").await.unwrap();
    orders.send(vec![Message::new("question").reply_to(replies.address())]).await.remove(0).unwrap();
    let answer = |text: &'static str| End::Ack {
        reply: Some(Reply { to: replies.address().into(), message: Message::new(text) }),
    };
    let late = take(&orders, SHORT).await;
    let held = take(&orders, LONG).await;
    assert_eq!(settle(&orders, &late, answer("late")).await, Err(MailboxError::Stale));
    // Sent, and then cut: the acknowledgement was not heard, so all of it is said again.
    let key = format!("reply-{}-{}", held.id, held.fence);
    let sent = Job::new("message", "answer").unwrap().queue("replies").idempotency_key(&key);
    client(&node).submit(sent).await.unwrap();
    settle(&orders, &held, answer("answer")).await.unwrap();
    assert_eq!(replies.depth().await.unwrap().waiting, 1);
    assert_eq!(orders.depth().await.unwrap().held, 0);
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

/// What others submit is a message, and what is cancelled is taken away.
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
        assert!(error.to_string().contains(text) && error.changed() == Changed::No, "{error}");
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
