//! Any manager answers any client: one that follows passes calls on to the one that leads, and its answers back.
//!
//! ```text
//!   client ──▶ follower: guard, limits ──▶ forward ──HTTP/2──▶ leader: guard, limits ──▶ forward ──▶ handler
//!                 ▲                          │  ▲                                                       │
//!                 └──────── pieces, trailers ┘  └── 503, surely not done: wait for who leads, again ────┘
//! ```
//!
//! - **Once.** What is passed on carries a mark. A node that gets a marked call and does not lead refuses it: calls never
//!   go round in circles while nodes disagree about who leads.
//! - **Who may call** is found out here as on any node, and again by the leader, which gets the same token. Sessions and
//!   streams end with their token there.
//! - **Nothing is kept but short requests**, in case they have to be sent again, and all of those together are bounded.
//!   Answers, and streams in both directions, pass piece by piece. A client that goes away ends its call at the leader.
//! - **What came to nothing is made again**, for up to [`REPEAT_FOR`], if it was surely not carried out, or if once more
//!   is the same (`repeat.rs`). Meanwhile another node may have begun to lead, or this one. Else the client is told, in
//!   the header `onward-done`, what is known.
//!
//! Probes, status, metrics and the page are each node's own and never come here.

mod call;
mod links;
mod relay;
mod repeat;
mod target;

use core::pin::pin;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use onward_api::cluster::{CODE, CallFate, DONE, LEADER, LeaderHint};
use onward_api::lease::Leases;
use onward_core::fence::Term;
use onward_gossip::{MemberView, NodeIdentity, RingView};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::leader::{LeaderAddress, LeaderView};
use crate::api::access::{Access, ClientConnection};
use crate::api::json::Json;
use crate::api::problem::ProblemResponse;
use crate::byte_room::ByteRoom;
use crate::engine::Counter;
use crate::gossip::GossipHandle;
use crate::grpc;
use call::ForwardedCall;
use links::{CallSlot, ConnectionKind, LeaderLinks, NoLink};
use relay::relay;
use target::NodeTargetParts;
pub(crate) use target::{LeaderTrust, tls_client};

/// The time for which a call is made again, from when it came, or from when it first failed if it waited longer than
/// that.
const REPEAT_FOR: Duration = Duration::from_secs(5);
/// The pause before the same node is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// A machine that is dropped because it has lost its seat is so a moment before it is known who leads.
const LEARN_WITHIN: Duration = Duration::from_millis(300);

/// The interval between two looks whether the leader answers, and the time that one may take.
const REACH_EVERY: Duration = Duration::from_secs(1);

/// Word that a node leads which is older says nothing of now.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// A node's place in its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// The address by which others reach the node, if they can.
    pub(crate) address: Option<String>,
    /// Nobody shares the node's log: there is nobody to pass anything on to.
    pub(crate) is_alone: bool,
    pub(crate) trust: Option<LeaderTrust>,
    /// Says who leads while this node cannot see the seat.
    pub(crate) gossip: Option<GossipHandle>,
}

/// Passes calls on to the node that leads. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    member: Member,
    mark: HeaderValue,
    view: watch::Receiver<LeaderView>,
    draining: watch::Receiver<bool>,
    room: ByteRoom,
    /// Links to the node that leads, as far as it is known.
    links: Mutex<Option<(LeaderAddress, Arc<LeaderLinks>)>>,
    counts: ForwardCounts,
}

/// Counts of calls that this node passed on.
#[derive(Debug, Default)]
pub(crate) struct ForwardCounts {
    pub(crate) answered: Counter,
    /// Made again after they came to nothing.
    pub(crate) repeated: Counter,
    /// Refused because no node leads, or the one that does was not reached.
    pub(crate) refused: Counter,
    /// Refused calls of which it is not known whether they were carried out.
    pub(crate) in_doubt: Counter,
}

/// The result of one try.
enum TryResult {
    Answered(Response),
    NotDone(String),
    Unknown(String),
}

/// The result of waiting for the leader's answer.
enum WaitResult {
    Sent(hyper::Result<hyper::Response<Incoming>>),
    /// This node drains, and the call is one that waits for something.
    Drained,
    /// Another node leads, and the call may be made there too.
    LedElsewhere,
}

/// The leader that has answered this node under its term. Only one that did can be said to answer no more: one that never
/// did may be behind a wall, and to replace it would change nothing.
#[derive(Debug, Default)]
struct ReachedLeader(Option<(Term, LeaderAddress)>);

impl ReachedLeader {
    /// Whether this leader counts as reached.
    fn judge(&mut self, term: Term, leader: LeaderAddress, answers: bool) -> bool {
        let asked = Some((term, leader));
        if answers {
            self.0 = asked;
            return true;
        }
        self.0 != asked
    }
}

/// Routes that are answered by whoever leads.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    pub(crate) forwarder: Forwarder,
    /// The prefix in front of the routes' paths, which they do not see.
    pub(crate) prefix: &'static str,
}

pub(crate) async fn forward(State(routes): State<Routes>, request: Request, next: Next) -> Response {
    let Routes { forwarder, prefix } = routes;
    // Whoever may not call is told so by the handler.
    if forwarder.0.member.is_alone || request.extensions().get::<Access>().is_none() {
        return next.run(request).await;
    }
    match ForwardedCall::of(request, prefix, &forwarder.0.room).await {
        Ok(call) => forwarder.answer(call, &next).await,
        Err(refused) => refused,
    }
}

impl Forwarder {
    pub(crate) fn new(member: Member, view: watch::Receiver<LeaderView>, draining: watch::Receiver<bool>) -> Self {
        // A name need not be fit for a header; that there is a mark is what counts.
        let mark = HeaderValue::from_str(&member.name).unwrap_or_else(|_| HeaderValue::from_static("1"));
        let (room, counts) = (call::room(), ForwardCounts::default());
        Self(Arc::new(Inner { member, mark, view, draining, room, links: Mutex::default(), counts }))
    }

    /// The same for routes under a prefix.
    pub(crate) fn under(&self, prefix: &'static str) -> Routes {
        Routes { forwarder: self.clone(), prefix }
    }

    pub(crate) fn member(&self) -> &Member {
        &self.0.member
    }

    pub(crate) fn view(&self) -> LeaderView {
        self.0.view.borrow().clone()
    }

    pub(crate) fn counts(&self) -> &ForwardCounts {
        &self.0.counts
    }

    /// Whether the leader answers, whatever it says of itself.
    pub(crate) async fn reach(&self, leader: &LeaderAddress) -> Result<(), String> {
        let links = self.links_to(leader)?;
        let CallSlot { mut sender, place: _place } = match links.open(ConnectionKind::Calls).await {
            Ok(link) => link,
            Err(NoLink::Full) => return Ok(()),
            Err(NoLink::Unreachable(why)) => return Err(unreachable(leader, &why)),
        };
        let answer = sender.send_request(links.target.request_of("/livez")).await;
        answer.map(drop).map_err(|error| unreachable(leader, &reason(&error)))
    }

    /// Looks every second whether the leader answers, until this node drains. While nobody leads, or this node does, nobody
    /// is out of reach.
    pub(crate) fn keep_reaching(&self, reaches_leader: Arc<AtomicBool>) {
        if self.0.member.is_alone {
            return;
        }
        let forwarder = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = forwarder.look_for_leader(&reaches_leader) => {}
                () = forwarder.drained() => {}
            }
        });
    }

    async fn look_for_leader(&self, reaches_leader: &AtomicBool) {
        let mut reached = ReachedLeader::default();
        loop {
            let reaches = match self.view() {
                LeaderView::Following { term, leader: Some(leader) } => {
                    let answers = matches!(timeout(REACH_EVERY, self.reach(&leader)).await, Ok(Ok(())));
                    reached.judge(term, leader, answers)
                }
                _ => true,
            };
            match (reaches_leader.swap(reaches, Ordering::Relaxed), reaches) {
                (true, false) => tracing::warn!("the node that leads does not answer this one"),
                (false, true) => tracing::info!("this node reaches whoever leads again"),
                _ => {}
            }
            tokio::time::sleep(REACH_EVERY).await;
        }
    }

    async fn answer(&self, mut call: ForwardedCall, next: &Next) -> Response {
        let (mut view, came_at) = (self.0.view.clone(), Instant::now());
        let (mut deadline, mut done) = (None, CallFate::No);
        loop {
            let known = self.or_by_gossip(view.borrow_and_update().clone());
            let tried = match &known {
                LeaderView::Leading { term } => self.run_as_leader(&mut call, next, *term).await,
                _ if call.is_forwarded() => TryResult::Answered(unavailable(
                    &call,
                    "this node does not lead, and the call was forwarded to it",
                    done,
                )),
                LeaderView::Following { leader: Some(leader), .. } => self.send(&mut call, leader).await,
                // A stream would wait for as long as the storage is away, while another node may lead.
                LeaderView::CutOff { .. } if call.lane() == ConnectionKind::Streams => {
                    TryResult::Answered(unavailable(&call, "this node led, and its storage does not answer", done))
                }
                LeaderView::CutOff { term } => self.run_here(&mut call, next, *term).await,
                LeaderView::Starting | LeaderView::Following { leader: None, .. } => {
                    TryResult::NotDone("no manager leads at the moment".into())
                }
            };
            let why = match tried {
                TryResult::Answered(response) => return response,
                TryResult::NotDone(why) => why,
                TryResult::Unknown(why) => {
                    done = CallFate::Unknown;
                    why
                }
            };
            let deadline = *deadline.get_or_insert_with(|| {
                let now = Instant::now();
                if now - came_at > REPEAT_FOR { now + REPEAT_FOR } else { came_at + REPEAT_FOR }
            });
            let may_again = call.is_whole() && (done == CallFate::No || call.is_repeatable());
            if !may_again || Instant::now() + PAUSE >= deadline {
                self.0.counts.refused.add(1);
                self.0.counts.in_doubt.add(u64::from(done == CallFate::Unknown));
                return unavailable(&call, &why, done);
            }
            self.0.counts.repeated.add(1);
            let pause = match known {
                LeaderView::Following { leader: Some(_), .. } => Instant::now() + PAUSE,
                _ => deadline,
            };
            // An error means that the engine is gone, and then nothing changes any more.
            if let Ok(Err(_)) = timeout_at(pause, view.changed()).await {
                tokio::time::sleep_until(pause).await;
            }
        }
    }

    /// The view of a node that is cut off from its storage, as far as gossip knows more. Who is taken for the leader by mistake
    /// refuses what is forwarded.
    fn or_by_gossip(&self, view: LeaderView) -> LeaderView {
        let (LeaderView::CutOff { term }, Some(gossip)) = (&view, &self.0.member.gossip) else { return view };
        let seen = gossip.view();
        let Some(leader) = leader_by_gossip(&seen) else { return view };
        let is_tls = self.0.member.address.as_ref().is_some_and(|address| address.starts_with("https://"));
        let address = format!("{}{}", if is_tls { "https://" } else { "" }, leader.address);
        LeaderView::Following { term: *term, leader: Some(LeaderAddress { name: leader.name.to_string(), address }) }
    }

    /// Runs the call on this node, because it leads, and says so.
    async fn run_as_leader(&self, call: &mut ForwardedCall, next: &Next, term: Term) -> TryResult {
        let mut tried = self.run_here(call, next, term).await;
        if let TryResult::Answered(answer) = &mut tried
            && let Some(address) = &self.0.member.address
            && let Ok(hint) =
                HeaderValue::try_from(LeaderHint { address: address.clone(), term: term.get() }.to_string())
        {
            answer.headers_mut().insert(LEADER, hint);
        }
        tried
    }

    /// Runs the call on this node, which leads under this term or did when it was last known who leads.
    async fn run_here(&self, call: &mut ForwardedCall, next: &Next, term: Term) -> TryResult {
        let answer = next.clone().run(call.local_request()).await;
        let Some(done) = without_leader(answer.headers()) else { return TryResult::Answered(answer) };
        if call.is_forwarded() || !self.is_deposed(term).await {
            return TryResult::Answered(answer);
        }
        match done {
            CallFate::No => TryResult::NotDone("this node leads no longer".into()),
            CallFate::Unknown => TryResult::Unknown("this node lost its seat before there was an answer".into()),
        }
    }

    /// Whether this node has stopped leading under that term, or is about to.
    async fn is_deposed(&self, term: Term) -> bool {
        let mut view = self.0.view.clone();
        let own = [LeaderView::Leading { term }, LeaderView::CutOff { term }];
        let other = view.wait_for(|view| !own.contains(view));
        timeout(LEARN_WITHIN, other).await.is_ok_and(|other| other.is_ok())
    }

    async fn send(&self, call: &mut ForwardedCall, leader: &LeaderAddress) -> TryResult {
        let links = match self.links_to(leader) {
            Ok(links) => links,
            Err(why) => return TryResult::NotDone(why),
        };
        let (answer, place) = loop {
            let link = match links.open(call.lane()).await {
                Ok(link) => link,
                Err(NoLink::Unreachable(why)) => return TryResult::NotDone(unreachable(leader, &why)),
                Err(NoLink::Full) => return TryResult::Answered(refused(call, too_many())),
            };
            let CallSlot { mut sender, place } = link;
            let sending = sender.send_request(call.forwarded_request(&links.target, &self.0.mark));
            match self.wait(sending, call, leader).await {
                WaitResult::Sent(Ok(answer)) => break (answer, place),
                WaitResult::Sent(Err(error)) if is_unsent(&error) => {
                    return TryResult::NotDone(unreachable(leader, &reason(&error)));
                }
                WaitResult::Sent(Err(error)) => return TryResult::Unknown(unreachable(leader, &reason(&error))),
                WaitResult::Drained if call.is_poll() => {
                    return TryResult::Answered(Json(Leases { leases: Vec::new() }).into_response());
                }
                WaitResult::Drained => call.stop_waiting(),
                WaitResult::LedElsewhere => return TryResult::Unknown(format!("`{}` leads no longer", leader.name)),
            }
        };
        match without_leader(answer.headers()) {
            Some(CallFate::No) => {
                return TryResult::NotDone(format!("`{}` does not lead, or cannot serve now", leader.name));
            }
            Some(CallFate::Unknown) if call.is_repeatable() => {
                return TryResult::Unknown(format!("`{}` lost its seat before there was an answer", leader.name));
            }
            _ => {}
        }
        self.0.counts.answered.add(1);
        let connection = call.parts().extensions.get::<ClientConnection>().cloned();
        let forwarder = self.clone();
        let drained = Box::pin(async move { forwarder.drained().await });
        TryResult::Answered(relay(answer, place, connection, drained))
    }

    /// Waits for the answer, or for a reason to wait no longer.
    async fn wait(
        &self,
        sending: impl Future<Output = hyper::Result<hyper::Response<Incoming>>>,
        call: &mut ForwardedCall,
        leader: &LeaderAddress,
    ) -> WaitResult {
        let mut sending = pin!(sending);
        let mut may_move = true;
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return WaitResult::Sent(sent),
                // Whoever waits for something to happen is answered now, as on any node that drains.
                () = self.drained(), if call.is_waiting() => return WaitResult::Drained,
                // A leader that is frozen answers nothing, and is found to be so only after a while.
                () = self.led_elsewhere(leader), if may_move => {
                    if call.is_repeatable() {
                        return WaitResult::LedElsewhere;
                    }
                    may_move = false;
                }
            }
        }
    }

    /// Resolves once another node leads.
    async fn led_elsewhere(&self, leader: &LeaderAddress) {
        let is_other = |view: &LeaderView| match view {
            LeaderView::Leading { .. } => true,
            LeaderView::Following { leader: Some(known), .. } => known.address != leader.address,
            LeaderView::Starting | LeaderView::CutOff { .. } | LeaderView::Following { leader: None, .. } => false,
        };
        if self.0.view.clone().wait_for(is_other).await.is_err() {
            // The engine is gone: nobody will say who leads.
            core::future::pending().await
        }
    }

    async fn drained(&self) {
        // An error means that the node is gone, which is the end of all waiting too.
        let _ = self.0.draining.clone().wait_for(|draining| *draining).await;
    }

    /// Connections to a node that leads no longer end with the calls on them.
    fn links_to(&self, leader: &LeaderAddress) -> Result<Arc<LeaderLinks>, String> {
        let mut links = self.0.links.lock().expect("no thread panics while it holds this");
        if let Some((_, known)) = links.as_ref().filter(|(to, _)| to.address == leader.address) {
            return Ok(known.clone());
        }
        let fresh = Arc::new(LeaderLinks::to(NodeTargetParts::parse(&leader.address)?, self.0.member.trust.clone()));
        *links = Some((leader.clone(), fresh.clone()));
        Ok(fresh)
    }
}

fn too_many() -> ProblemResponse {
    let detail = "as many calls as may are on their way to the leader; try again later, or call it directly";
    ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
}

/// The node of our kind that was last heard to say that it leads.
fn leader_by_gossip(view: &RingView) -> Option<&NodeIdentity> {
    let kind = |node: &NodeIdentity| (node.role, node.datacenter.clone());
    let leads = |member: &&MemberView| {
        let says_so = member.report.as_ref().is_some_and(|report| report.health.leads);
        says_so && member.state.is_live() && kind(&member.identity) == kind(&view.own)
    };
    let heard = |member: &&MemberView| member.heard_ago.unwrap_or(Duration::MAX);
    let newest = view.members.iter().filter(leads).min_by_key(heard)?;
    (heard(&newest) <= HEARD_WITHIN).then_some(&newest.identity)
}

/// Whether this says that its node does not lead, and if so, what became of the call.
fn without_leader(headers: &HeaderMap) -> Option<CallFate> {
    let is_it = headers.get(CODE).is_some_and(|code| code == "no_leader");
    headers.get(DONE).filter(|_| is_it).and_then(|done| CallFate::of(done.as_bytes()))
}

/// Whether the leader has surely not begun with a call that failed like this: it was never sent, or the leader has said
/// that it will not look at it.
fn is_unsent(error: &hyper::Error) -> bool {
    if error.is_canceled() {
        return true;
    }
    let mut cause = core::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && (is_refused || error.is_go_away());
        }
        cause = error.source();
    }
    false
}

fn reason(error: &hyper::Error) -> String {
    match core::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn unreachable(leader: &LeaderAddress, why: &str) -> String {
    format!("`{}`, which leads, does not answer at {}: {why}", leader.name, leader.address)
}

fn unavailable(call: &ForwardedCall, why: &str, done: CallFate) -> Response {
    let detail = match done {
        CallFate::No => format!("{why}; nothing was done, so ask again"),
        CallFate::Unknown => format!(
            "{why}; whether this was carried out is not known, and repeating it with the same idempotency key or request id \
             does nothing twice"
        ),
    };
    refused(call, ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "no_leader", detail).with_done(done))
}

fn refused(call: &ForwardedCall, problem: ProblemResponse) -> Response {
    if call.is_grpc() { grpc::refused(&problem) } else { problem.into_response() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Managers that reach their database and never each other would depose one leader after another.
    #[test]
    fn a_leader_that_never_answered_is_not_said_to_answer_no_more() {
        let leader = |name: &str| LeaderAddress { name: name.into(), address: format!("http://{name}:7400") };
        let (first, second) = (leader("m1"), leader("m2"));
        let mut reached = ReachedLeader::default();
        for (term, leader, answers, counts) in [
            (1, &first, false, true),
            (1, &first, true, true),
            (1, &first, false, false),
            (1, &first, true, true),
            (2, &second, false, true),
            (3, &first, false, true),
            (3, &first, true, true),
            (3, &first, false, false),
        ] {
            assert_eq!(reached.judge(Term::new(term), leader.clone(), answers), counts, "{term} {answers}");
        }
    }
}
