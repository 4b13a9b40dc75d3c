//! A manager's streams to the gates: one for each gate, open for as long as this manager leads.
//!
//! ```text
//!   leads ──▶ dial ──▶ hello ──▶ reports and orders ──▶ the stream ends ──▶ a rest, with jitter ──▶ dial …
//!     ▲                                                        │
//!     └──────── another leads: the streams end ◀───────────────┘
//! ```
//!
//! The manager dials and proves for which datacenter it speaks, and whoever answers proves to be a gate
//! ([`crate::gate::peers`]); the gate needs to know of no manager beforehand. What is said on a stream is the machine's to say; here is the way there and back, with limits on what
//! is on it.

use core::time::Duration;
use std::io;

use axum::http::Uri;
use hyper_util::rt::TokioIo;
use onward_core::gate::message::{Frame, FromDatacenter};
use onward_core::ids::Name;
use onward_core::job::Retry;
use onward_core::refusal::RefusalKind;
use onward_proto::gate::{down_in, up_out};
use onward_proto::v1::gate_service_client::GateServiceClient;
use onward_proto::v1::{DatacenterFrame, GateFrame};
use onward_proto::{MAX_FRAME_BYTES, MAX_ORDER_BYTES};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;
use tonic::{Request, Status, Streaming};

use crate::clock;
use crate::cluster::leader::LeaderView;
use crate::engine::{Engine, ForGate, GateReports, GateStream};
use crate::gate::peers::{PeerProof, check_gate_certificate};
use crate::gossip::GossipHandle;
use crate::gossip::members::count_other_managers;
use crate::peer::certificate::of_chain;
use crate::peer::expiry::Expiring;
use crate::peer::proof::HEADER;

/// The time in which a gate must take the call that opens a stream.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// A connection that is silently gone is noticed by HTTP/2's own pings.
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_ANSWERED_WITHIN: Duration = Duration::from_secs(3);
/// The pause between two tries; doubled after each that came to nothing, and spread by half of it.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);
/// A stream that lasted so long was a good one: the next rest is short again.
const GOOD_AFTER: Duration = Duration::from_secs(5);
/// Frames that wait to be taken by the network.
const FRAMES_AHEAD: usize = 16;

/// The gates that a manager reports to, and its own identity.
#[derive(Clone, Debug)]
pub struct GateLinks {
    /// `host:port`, or a URL with its scheme, of each gate.
    pub gates: Vec<String>,
    /// The datacenter that the manager speaks for.
    pub datacenter: Name,
    pub proof: PeerProof,
}

impl GateLinks {
    /// Keeps a stream to every gate, until the node drains.
    pub(crate) fn keep(&self, engine: &Engine, gossip: Option<&GossipHandle>, draining: &watch::Receiver<bool>) {
        for gate in &self.gates {
            let scheme = if self.proof.tls.is_some() { "https" } else { "http" };
            let url = if gate.contains("://") { gate.clone() } else { format!("{scheme}://{gate}") };
            let link = GateLink {
                url,
                datacenter: self.datacenter.clone(),
                proof: self.proof.clone(),
                engine: engine.clone(),
                gossip: gossip.cloned(),
            };
            let mut draining = draining.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = link.keep() => {}
                    // An error means that the node is gone, which is the end of its streams too.
                    _ = draining.wait_for(|draining| *draining) => {}
                }
            });
        }
    }
}

/// The way to one gate.
struct GateLink {
    url: String,
    datacenter: Name,
    proof: PeerProof,
    engine: Engine,
    /// Knows the other managers of the datacenter.
    gossip: Option<GossipHandle>,
}

impl GateLink {
    /// Dials whenever this manager leads.
    async fn keep(&self) {
        let mut view = self.engine.leader_view().subscribe();
        let mut rest = FIRST_REST;
        let mut told = String::new();
        loop {
            if view.wait_for(|view| matches!(view, LeaderView::Leading { .. })).await.is_err() {
                return;
            }
            let begun = Instant::now();
            let ended = tokio::select! {
                ended = self.converse() => ended,
                other = view.wait_for(|view| !matches!(view, LeaderView::Leading { .. })) => match other {
                    Ok(_) => continue,
                    Err(_) => return,
                },
            };
            if begun.elapsed() > GOOD_AFTER {
                rest = FIRST_REST;
            }
            self.log_end(&ended, &mut told);
            sleep(rest.mul_f64(spread())).await;
            rest = (rest * 2).min(LONGEST_REST);
        }
    }

    /// Says once why there is no stream, for as long as it stays the same.
    fn log_end(&self, ended: &Result<(), Status>, told: &mut String) {
        let why = ended.as_ref().err().map_or("", Status::message).to_owned();
        if *told != why {
            tracing::warn!(gate = self.url, why, "the stream to a gate ended; it is dialled again");
        }
        *told = why;
    }

    async fn converse(&self) -> Result<(), Status> {
        let (out, mut frames) = timeout(DIAL_WITHIN, self.dial())
            .await
            .map_err(|_| Status::unavailable(format!("the gate did not answer within {DIAL_WITHIN:?}")))??;
        let (stream, mut reports) = self.engine.open_gate(self.datacenter.clone());
        let retry = self.engine.rules().job.retry;
        let mut is_welcome = false;
        loop {
            tokio::select! {
                frame = next_order(&stream, &mut frames) => match frame? {
                    Some(frame) => {
                        handle_order(&stream, frame, &retry)?;
                        if !is_welcome {
                            is_welcome = true;
                            tracing::info!(gate = self.url, "a gate that leads is reported to");
                        }
                    }
                    None => return Ok(()),
                },
                ended = self.report(&stream, &mut reports, &out) => return ended,
            }
        }
    }

    async fn dial(&self) -> Result<(Sender<DatacenterFrame>, Streaming<GateFrame>), Status> {
        let unreachable = |error: &dyn std::error::Error| Status::unavailable(deepest(error));
        let endpoint = Endpoint::from_shared(self.url.clone())
            .map_err(|error| unreachable(&error))?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWERED_WITHIN)
            .keep_alive_while_idle(true);
        let is_tls = self.url.starts_with("https://");
        let connected = match (is_tls, &self.proof.tls) {
            (false, _) => endpoint.connect().await,
            (true, None) => {
                let text = "the gate speaks TLS: give this manager `tls.cert`, `tls.key` and `tls.ca`";
                return Err(Status::failed_precondition(text));
            }
            (true, Some(tls)) => {
                let tls = TlsConnector::from(tls.clone());
                let connector = tower::service_fn(move |gate: Uri| connect_tls(tls.clone(), gate));
                endpoint.connect_with_connector(connector).await
            }
        };
        let connected = connected.map_err(|error| unreachable(&error))?;
        let mut client = GateServiceClient::new(connected)
            .max_decoding_message_size(MAX_ORDER_BYTES)
            .max_encoding_message_size(MAX_FRAME_BYTES);
        let (out, frames) = channel(FRAMES_AHEAD);
        let mut request = Request::new(ReceiverStream::new(frames));
        if let Some(proofs) = &self.proof.proofs {
            let proof = MetadataValue::try_from(proofs.prove(&self.proof.who, clock::now().wall));
            request.metadata_mut().insert(HEADER, proof.map_err(|_| Status::internal("a proof is fit for a header"))?);
        }
        let answer = client.coordinate(request).await?;
        if !is_tls {
            let proved = self.proof.check_gate(&answer.metadata().clone().into_headers(), clock::now().wall);
            proved.map_err(|error| Status::unauthenticated(error.to_string()))?;
        }
        Ok((out, answer.into_inner()))
    }

    /// Says what the machine wants said, and looks up what it wants looked up. May be given up at any time, and begun again.
    async fn report(
        &self,
        stream: &GateStream,
        reports: &mut GateReports,
        out: &Sender<DatacenterFrame>,
    ) -> Result<(), Status> {
        let cannot = |refused: crate::engine::EngineRefusal| Status::unavailable(refused.to_string());
        loop {
            let next = reports.next().await;
            let next =
                next.map_err(|_| Status::unavailable("this manager's term has ended; the gate is dialled again"))?;
            match next {
                ForGate::Find(question) => {
                    stream.find(question).await.map_err(cannot)?;
                    reports.pop();
                }
                ForGate::Send(frame) => {
                    // If it cannot be read now, the gate is dialled again and told then.
                    stream.complete(frame).await.map_err(cannot)?;
                    let Ok(permit) = out.reserve().await else { return Ok(()) };
                    if let Some(ForGate::Send(mut frame)) = reports.pop() {
                        self.add_managers(&mut frame);
                        permit.send(up_out(*frame));
                    }
                }
            }
        }
    }

    /// The machine counts its own manager only.
    fn add_managers(&self, frame: &mut Frame) {
        let counts = match &mut frame.message {
            FromDatacenter::Hello(hello) => &mut hello.counts,
            FromDatacenter::Health(counts) => counts,
            _ => return,
        };
        if let Some(gossip) = &self.gossip {
            count_other_managers(self.engine.rules(), &gossip.view(), counts);
        }
    }
}

/// Connects, and checks by the cluster's authority that a gate is there.
async fn connect_tls(tls: TlsConnector, gate: Uri) -> io::Result<TokioIo<Expiring<TlsStream<TcpStream>>>> {
    let host = gate.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let stream = TcpStream::connect((&*host, gate.port_u16().unwrap_or(443))).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let stream = tls.connect(name, stream).await?;
    let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
    check_gate_certificate(of_chain(chain.as_deref()).as_ref()).map_err(io::Error::other)?;
    Ok(TokioIo::new(Expiring::new(stream, chain.as_deref())?))
}

/// Read when the machine has room for it, so that a gate cannot fill its queue.
async fn next_order(stream: &GateStream, frames: &mut Streaming<GateFrame>) -> Result<Option<GateFrame>, Status> {
    stream.room().await;
    frames.message().await
}

fn handle_order(stream: &GateStream, frame: GateFrame, retry: &Retry) -> Result<(), Status> {
    let bytes = frame.encoded_len();
    let order = down_in(frame, retry);
    let malformed = |error| Status::invalid_argument(format!("{}: {error}", RefusalKind::Invalid.code()));
    stream.receive(order.map_err(malformed)?, bytes);
    Ok(())
}

/// A factor from a half to one and a half, so that managers that lost a gate together do not all come back at once.
fn spread() -> f64 {
    let mut byte = [0];
    // Without randomness they do, which is no more than a pity.
    let _ = getrandom::fill(&mut byte);
    0.5 + f64::from(byte[0]) / 256.0
}

fn deepest(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
