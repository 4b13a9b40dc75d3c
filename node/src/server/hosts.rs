//! By which names this node may be called. A page on the web can make a browser send requests to a node on loopback, or
//! let a name of its own lead there; neither knows one of our names.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, StatusCode, Uri, header, uri::Authority};

use crate::api::problem::ProblemResponse;

#[derive(Debug)]
pub(super) struct Hosts {
    listen: SocketAddr,
    default_port: u16,
    names: Vec<String>,
}

impl Hosts {
    pub(super) fn new(listen: SocketAddr, tls: bool, names: &[String]) -> Self {
        let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { listen, default_port: if tls { 443 } else { 80 }, names }
    }

    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ProblemResponse> {
        let host = match uri.authority() {
            Some(authority) => authority.as_str(),
            None => headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or(""),
        };
        if !self.is_ours(host) {
            let address = match self.listen.ip().is_unspecified() {
                true => "by one of its addresses".to_owned(),
                false => format!("http(s)://{}", self.listen),
            };
            let detail = match self.is_ours_elsewhere(host) {
                true => format!(
                    "this node listens on port {}, and `{host}` means another; call it {address}",
                    self.listen.port()
                ),
                false => format!(
                    "this node is not called `{host}`; call it {address}, or add the name to its host names (`onward up --host-name NAME`)"
                ),
            };
            return Err(ProblemResponse::new(StatusCode::FORBIDDEN, "foreign_host", detail));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or("");
        let of_origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if of_origin.is_some_and(|of_origin| of_origin.eq_ignore_ascii_case(host)) {
            return Ok(());
        }
        let detail = format!("pages of `{origin}` may not call this node");
        Err(ProblemResponse::new(StatusCode::FORBIDDEN, "foreign_origin", detail))
    }

    /// Whether only the port is not ours.
    fn is_ours_elsewhere(&self, host: &str) -> bool {
        let authority = host.parse::<Authority>().ok();
        authority.is_some_and(|authority| self.is_ours(&format!("{}:{}", authority.host(), self.listen.port())))
    }

    fn is_ours(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if host.contains('@') {
            return false;
        }
        let (name, port) = (authority.host().to_ascii_lowercase(), authority.port_u16());
        let full = port.map(|port| format!("{name}:{port}"));
        if self.names.iter().any(|known| *known == name || Some(known) == full.as_ref()) {
            return true;
        }
        if port.unwrap_or(self.default_port) != self.listen.port() {
            return false;
        }
        if name == "localhost" {
            return true;
        }
        // An address cannot be made to lead elsewhere, as a name can. Who listens on all has all of them.
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let all = self.listen.ip().is_unspecified();
        address.is_ok_and(|address| {
            let ours = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), self.listen.ip()];
            all || ours.contains(&address)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_names_are_the_address_loopback_and_what_was_configured() {
        let hosts = |listen: &str| {
            let names = ["Jobs.example".to_owned(), "other.example:8443".to_owned()];
            Hosts::new(listen.parse().unwrap(), false, &names)
        };
        let loopback = hosts("127.0.0.1:7400");
        let ours =
            ["127.0.0.1:7400", "localhost:7400", "LOCALHOST:7400", "[::1]:7400", "jobs.example", "jobs.example:1"];
        for host in ours.into_iter().chain(["other.example:8443"]) {
            assert!(loopback.is_ours(host), "{host}");
        }
        let foreign = [
            "",
            "127.0.0.1",
            "127.0.0.1:7401",
            "localhost",
            "evil.example:7400",
            "localhost.evil.example:7400",
            "10.0.0.1:7400",
            "other.example",
            "user@localhost:7400",
            "localhost:7400/x",
            "localhost:x",
        ];
        for host in foreign {
            assert!(!loopback.is_ours(host), "{host}");
        }
        assert!(hosts("127.0.0.1:80").is_ours("localhost"));
        let refused = |listen: &str| hosts(listen).check(&"http://evil.example/".parse().unwrap(), &HeaderMap::new());
        let portless = |host: &str| loopback.check(&format!("http://{host}/").parse().unwrap(), &HeaderMap::new());
        for host in ["localhost", "127.0.0.1", "localhost:7401"] {
            let detail = portless(host).unwrap_err().detail.clone();
            assert!(detail.contains("port 7400") && !detail.contains("not called"), "{detail}");
        }
        assert!(portless("evil.example:7400").unwrap_err().detail.contains("not called `evil.example:7400`"));
        assert!(refused("127.0.0.1:7400").unwrap_err().detail.contains("http(s)://127.0.0.1:7400"));
        assert!(!refused("0.0.0.0:7400").unwrap_err().detail.contains("0.0.0.0"), "nobody can call it that");
        assert!(hosts("0.0.0.0:7400").is_ours("10.0.0.1:7400"));
        assert!(!hosts("0.0.0.0:7400").is_ours("evil.example:7400"));
    }
}
