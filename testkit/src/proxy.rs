//! A network that fails when it is told to: a proxy between a client and a server on loopback.
//!
//! What can happen to the connections that pass through it:
//!
//! | call | the client sees | the server sees |
//! |---|---|---|
//! | [`FaultProxy::cut`] | its connections close | the same |
//! | [`FaultProxy::refuse`] | new connections close at once, too | nothing |
//! | [`FaultProxy::silence`] | a half-open network: connections stay, nothing comes | the same |
//! | [`FaultProxy::hold`] | no answer | what is held arrives late, once it is [released](FaultProxy::release) |
//! | [`FaultProxy::abandon`] | its connection closes | nothing: what is held may still come |
//! | [`FaultProxy::lose_next_answer`] | its connection closes instead of an answer | a request that it carries out |
//! | [`FaultProxy::delay`] | a slow network | the same |
//!
//! One that was started [with datagrams](FaultProxy::with_datagrams) passes these on as well, and loses them while it is silent
//! or refuses.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A way that bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    ToServer,
    ToClient,
}

const WAYS: [Way; 2] = [Way::ToServer, Way::ToClient];

/// A proxy on a port of its own, in front of a server on another.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    shared: Arc<ProxyState>,
    accepting: Option<JoinHandle<()>>,
    passing: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ProxyState {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    has_ended: bool,
    refuses: bool,
    silent: bool,
    delay: Duration,
    links: Vec<Link>,
}

/// A connection of a client, and the one to the server that belongs to it.
#[derive(Debug)]
struct Link {
    /// The client's port, which tells links apart.
    port: u16,
    client: TcpStream,
    server: TcpStream,
    /// The number of pieces that still pass each way before they are held.
    held: [Option<usize>; 2],
    /// Bytes that wait because they are held.
    waiting: usize,
    loses_answer: bool,
    is_abandoned: bool,
}

impl FaultProxy {
    /// Starts a proxy in front of the server on this port.
    pub fn start(server: u16) -> io::Result<Self> {
        Self::before((Ipv4Addr::LOCALHOST, server).into())
    }

    /// Starts a proxy in front of the server at this address.
    pub fn before(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::<ProxyState>::default();
        let accepting = thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, server, &shared)
        });
        Ok(Self { port, shared, accepting: Some(accepting), passing: None })
    }

    /// Starts a proxy that passes on datagrams to the server as well, from the same port. There is no way back for them:
    /// the server sends its own to the address that the sender names inside. A proxy that is silent, or refuses, loses
    /// them.
    pub fn with_datagrams(server: SocketAddr) -> io::Result<Self> {
        let mut proxy = Self::before(server)?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, proxy.port))?;
        let shared = proxy.shared.clone();
        proxy.passing = Some(thread::spawn(move || pass_on(&socket, server, &shared)));
        Ok(proxy)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes every connection. New ones pass.
    pub fn cut(&self) {
        let mut state = self.shared.state();
        state.links.drain(..).for_each(|link| link.close());
        self.shared.changed.notify_all();
    }

    /// Closes every connection, and new ones as soon as they are opened, or lets new ones pass again.
    pub fn refuse(&self, refuses: bool) {
        self.shared.state().refuses = refuses;
        self.cut();
    }

    /// Lets nothing pass on any connection, or lets everything that waits go on.
    pub fn silence(&self, silent: bool) {
        self.shared.state().silent = silent;
        self.shared.changed.notify_all();
    }

    /// Keeps what goes this way on the connections that there are, after so many more pieces. New connections pass.
    ///
    /// A piece is what is sent at once; to a database, as long as it is small, a request.
    pub fn hold(&self, way: Way, after_pieces: usize) {
        self.shared.state().links.iter_mut().for_each(|link| link.held[way as usize] = Some(after_pieces));
    }

    /// Waits until something is held.
    pub fn wait_until_held(&self) {
        let mut state = self.shared.state();
        while state.links.iter().all(|link| link.waiting == 0) {
            state = self.shared.wait(state);
        }
    }

    /// Closes the clients' side of connections on which something is held, which the server will still get.
    pub fn abandon(&self) {
        for link in self.shared.state().links.iter_mut().filter(|link| link.waiting > 0) {
            // One that is closed already is as good.
            let _ = link.client.shutdown(Shutdown::Both);
            link.is_abandoned = true;
        }
    }

    /// Lets what is held go on. Returns once the server has done with the connections that were abandoned.
    pub fn release(&self) {
        let mut state = self.shared.state();
        state.links.iter_mut().for_each(|link| link.held = [None; 2]);
        self.shared.changed.notify_all();
        while state.links.iter().any(|link| link.is_abandoned) {
            state = self.shared.wait(state);
        }
    }

    /// Closes each connection that there is when its next answer comes, instead of passing it on.
    pub fn lose_next_answer(&self) {
        self.shared.state().links.iter_mut().for_each(|link| link.loses_answer = true);
    }

    /// Sets the time that everything is under way, each way.
    pub fn delay(&self, delay: Duration) {
        self.shared.state().delay = delay;
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.state().has_ended = true;
        self.cut();
        // It accepts once more, and sees that this is the end.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            let _ = socket.send_to(&[], (Ipv4Addr::LOCALHOST, self.port));
        }
        for thread in [self.accepting.take(), self.passing.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

impl ProxyState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    fn close(&self) {
        // One that is closed already is as good.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn accept(listener: &TcpListener, server: SocketAddr, shared: &Arc<ProxyState>) {
    for client in listener.incoming().flatten() {
        if shared.state().has_ended {
            return;
        }
        // A server that is not there is seen as such, and so is a proxy that refuses.
        let Ok(server) = TcpStream::connect(server) else { continue };
        let pairs = [client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone()];
        let [Ok(from_client), Ok(to_server), Ok(to_client), Ok(from_server)] = pairs else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let Ok(port) = client.peer_addr().map(|address| address.port()) else { continue };
        let mut state = shared.state();
        if state.refuses {
            continue;
        }
        // A port that comes back is of a client that has gone.
        state.links.retain(|link| link.port != port);
        state.links.push(Link {
            port,
            client,
            server,
            held: [None; 2],
            waiting: 0,
            loses_answer: false,
            is_abandoned: false,
        });
        drop(state);
        for (way, (from, to)) in WAYS.into_iter().zip([(from_client, to_server), (from_server, to_client)]) {
            let shared = shared.clone();
            thread::spawn(move || carry(&shared, port, way, from, to));
        }
    }
}

/// Passes on datagrams until the proxy ends.
fn pass_on(socket: &UdpSocket, server: SocketAddr, shared: &ProxyState) {
    let mut datagram = [0; 64 << 10];
    loop {
        let received = socket.recv(&mut datagram);
        let state = shared.state();
        if state.has_ended {
            return;
        }
        // A server that is not there is told of by an error of the socket.
        let Ok(length) = received else { continue };
        if !state.silent && !state.refuses {
            let _ = socket.send_to(&datagram[..length], server);
        }
    }
}

/// Carries bytes one way until their source ends. A reader that has gone does not end it: what the other side was
/// already sent is carried out.
fn carry(shared: &ProxyState, port: u16, way: Way, mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !may_pass(shared, port, way, count) {
            return;
        }
        let _ = to.write_all(&bytes[..count]);
    }
    let _ = to.shutdown(Shutdown::Write);
    if way == Way::ToClient {
        shared.state().links.retain(|link| link.port != port);
        shared.changed.notify_all();
    }
}

/// Waits for as long as bytes are held; false if they are not to be passed on at all.
fn may_pass(shared: &ProxyState, port: u16, way: Way, count: usize) -> bool {
    let delay = shared.state().delay;
    if !delay.is_zero() {
        thread::sleep(delay);
    }
    let mut state = shared.state();
    let mut counted = false;
    loop {
        let silent = state.silent;
        let Some(link) = state.links.iter_mut().find(|link| link.port == port) else { return false };
        if way == Way::ToClient && link.loses_answer {
            link.close();
            return false;
        }
        let held = &mut link.held[way as usize];
        if !silent && *held != Some(0) {
            *held = held.map(|pieces| pieces - 1);
            link.waiting -= if counted { count } else { 0 };
            return true;
        }
        if !counted {
            link.waiting += count;
            counted = true;
            shared.changed.notify_all();
        }
        state = shared.wait(state);
    }
}
