//! Ports that the kernel chose.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Reserves a port of 127.0.0.1, as [`reserve_at`] does.
pub fn reserve() -> io::Result<u16> {
    reserve_at(Ipv4Addr::LOCALHOST)
}

/// Reserves a port of a loopback address for about a minute: the kernel gives it to nobody who asks for *any* port, and a server
/// that asks for *this* one, with `SO_REUSEADDR` as servers do, gets it.
///
/// A connection whose listening side closed first leaves its port in TIME_WAIT. Without that, two tests that start at
/// once could be told the same port.
pub fn reserve_at(host: Ipv4Addr) -> io::Result<u16> {
    let listener = TcpListener::bind((host, 0))?;
    let address: SocketAddr = listener.local_addr()?;
    let mut far = TcpStream::connect(address)?;
    let (near, _) = listener.accept()?;
    drop(near);
    // The end of the stream says that the listening side has closed first.
    far.read_to_end(&mut Vec::new())?;
    Ok(address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_waits_for_who_asks_for_it() {
        let port = reserve().unwrap();
        // The kernel's table has addresses in hexadecimal, and 06 for TIME_WAIT.
        let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let waits = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(1).is_some_and(|local| local.ends_with(&format!(":{port:04X}"))) && fields[3] == "06"
        };
        assert!(connections.lines().any(waits), "{port} is not in {connections}");
        // The standard library asks with `SO_REUSEADDR`, as servers do.
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
