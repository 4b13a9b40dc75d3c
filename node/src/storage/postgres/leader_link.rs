//! A link to the leader: a connection that is only held open. When the leader's process ends, however it does, its
//! computer closes the connection and refuses the next; so its end is known long before its seat is still for long enough.
//! A leader that is frozen or cut off keeps the link, or is merely not reached, and that says nothing.

use core::time::Duration;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use onward_core::candidate::HolderId;

/// The interval of the look whether another leader is to be watched.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// The pause between two tries to connect.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// The thread that holds the link, and what it has found.
#[derive(Debug)]
pub(super) struct LeaderLink(Arc<LinkState>);

#[derive(Debug, Default)]
struct LinkState {
    /// The leader to watch, and its address.
    target: Mutex<Option<(HolderId, String)>>,
    /// The leader whose link broke and who refuses connections.
    refused: Mutex<Option<HolderId>>,
    is_over: AtomicBool,
    /// The number of failures to connect.
    failures: AtomicU64,
}

impl LeaderLink {
    pub(super) fn start() -> std::io::Result<Self> {
        let state = Arc::new(LinkState::default());
        let theirs = state.clone();
        thread::Builder::new().name("onward-link".into()).spawn(move || theirs.run())?;
        Ok(Self(state))
    }

    /// Watches this leader from now on, or none.
    pub(super) fn watch(&self, target: Option<(HolderId, String)>) {
        let mut known = self.0.target.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != target {
            *known = target;
        }
    }

    /// Whether the link to this leader broke, and it refuses another.
    pub(super) fn is_refused(&self, leader: HolderId) -> bool {
        *self.0.refused.lock().unwrap_or_else(PoisonError::into_inner) == Some(leader)
    }
}

impl Drop for LeaderLink {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl LinkState {
    fn run(&self) {
        // Only a leader that was once reached can be said to have gone.
        let mut reached = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let Some((leader, address)) = self.target() else {
                thread::sleep(TRY_EVERY);
                continue;
            };
            let connected = connect(&address);
            match connected {
                Ok(stream) => {
                    reached = Some(leader);
                    self.set_refused(None);
                    self.hold(stream, leader);
                }
                Err(error) => {
                    let is_gone = error.kind() == ErrorKind::ConnectionRefused && reached == Some(leader);
                    self.set_refused(is_gone.then_some(leader));
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(TRY_EVERY);
                }
            }
        }
    }

    /// Holds the connection until it ends, or another leader is to be watched.
    fn hold(&self, mut stream: TcpStream, leader: HolderId) {
        let mut ignored = [0_u8; 256];
        while !self.is_over.load(Ordering::Relaxed) && self.target().is_some_and(|(target, _)| target == leader) {
            match stream.read(&mut ignored) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
        }
    }

    fn target(&self) -> Option<(HolderId, String)> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_refused(&self, leader: Option<HolderId>) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }
}

fn connect(address: &str) -> std::io::Result<TcpStream> {
    let host_and_port = address.split_once("://").map_or(address, |(_, rest)| rest).trim_end_matches('/');
    let resolved: Vec<SocketAddr> = host_and_port.to_socket_addrs()?.collect();
    let first = resolved.first().ok_or(ErrorKind::AddrNotAvailable)?;
    let stream = TcpStream::connect_timeout(first, CONNECT_WITHIN)?;
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what} is not so");
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_leader_that_was_reached_and_refuses_has_gone() {
        let (first, second) = (HolderId(1), HolderId(2));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let link = LeaderLink::start().unwrap();
        link.watch(Some((first, format!("http://{address}"))));
        let (held, _) = listener.accept().unwrap();
        assert!(!link.is_refused(first), "it is there");
        // The leader closes connections, and takes others: it lives.
        drop(held);
        let (held, _) = listener.accept().unwrap();
        assert!(!link.is_refused(first));
        drop((listener, held));
        until("it has gone", || link.is_refused(first));
        assert!(!link.is_refused(second));
        // One that was never reached may be behind a wall.
        link.watch(Some((second, address.clone())));
        until("the other is watched", || !link.is_refused(first));
        let failures = || link.0.failures.load(Ordering::Relaxed);
        let before = failures();
        until("the other does not answer", || failures() >= before + 3);
        assert!(!link.is_refused(second));
        let listener = TcpListener::bind(&address).unwrap();
        let (held, _) = listener.accept().unwrap();
        drop((listener, held));
        until("the other has gone too", || link.is_refused(second));
    }
}
