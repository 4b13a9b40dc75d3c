//! A proxy between this process and a node: asked once for a connection, after which it is not heard of again.

use core::fmt;
use std::io;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DEFAULT_PORT: u16 = 80;
/// A longer answer is none of a proxy's.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// An HTTP proxy that opens tunnels with `CONNECT`.
#[derive(Clone)]
pub struct Proxy {
    host: Arc<str>,
    port: u16,
    /// The header that proves who asks.
    authorization: Option<Arc<str>>,
}

impl Proxy {
    /// `http://user:password@host:port`, of which only the host is needed. Other kinds of proxies are none.
    pub fn at(url: &str) -> Option<Self> {
        let rest = match url.trim().split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return None,
            None => url.trim(),
        };
        let rest = rest.split('/').next()?;
        let (user, authority) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let authority: hyper::http::uri::Authority = authority.parse().ok()?;
        let port = match authority.as_str().strip_prefix(authority.host())? {
            "" => DEFAULT_PORT,
            _ => authority.port_u16()?,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        Some(Self {
            host: Some(host).filter(|host| !host.is_empty())?.into(),
            port,
            authorization: user.map(|user| format!("Basic {}", STANDARD.encode(user)).into()),
        })
    }

    /// A connection to `target` (`host:port`) through this proxy.
    pub(super) async fn open(&self, target: &str) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect((&*self.host, self.port)).await?;
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(authorization) = &self.authorization {
            request += &format!("Proxy-Authorization: {authorization}\r\n");
        }
        stream.write_all((request + "\r\n").as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == MAX_HEAD_BYTES {
                return Err(io::Error::other(format!("the answer of the proxy {self} has no end")));
            }
            // Byte for byte: what comes after belongs to the node.
            head.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&head);
        let line = line.lines().next().unwrap_or_default();
        match line.split(' ').nth(1) {
            Some(status) if status.starts_with('2') => Ok(stream),
            _ => Err(io::Error::other(format!("the proxy {self} refused a connection to {target}: {line}"))),
        }
    }
}

/// Shown without the header that proves who asks.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn proxies_by_their_addresses() {
        for (url, shown) in
            [("http://p:3128", "p:3128"), ("p", "p:80"), ("http://u:w@p:1/", "p:1"), ("http://[::1]:8080", "::1:8080")]
        {
            assert_eq!(Proxy::at(url).unwrap().to_string(), shown, "{url}");
        }
        for url in ["", "socks5://p:1", "https://p", "http://", "http://p:99999"] {
            assert!(Proxy::at(url).is_none(), "{url}");
        }
    }

    /// Answers one request, and gives it back.
    async fn asked(answer: &'static [u8]) -> (io::Result<Vec<u8>>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::at(&format!("http://me:secret@{}", listener.local_addr().unwrap())).unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer).await.unwrap();
            String::from_utf8(request).unwrap()
        });
        let heard = match proxy.open("node:7400").await {
            Ok(mut stream) => {
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.map(|_| rest)
            }
            Err(error) => Err(error),
        };
        (heard, serving.await.unwrap())
    }

    #[tokio::test]
    async fn a_tunnel_begins_right_after_the_proxys_answer() {
        let (heard, request) = asked(b"HTTP/1.1 200 OK\r\nvia: x\r\n\r\nhello").await;
        assert_eq!(heard.unwrap(), b"hello");
        assert!(request.starts_with("CONNECT node:7400 HTTP/1.1\r\nHost: node:7400\r\n"), "{request}");
        assert!(request.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{request}");
        let refused = asked(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.0.unwrap_err().to_string();
        assert!(refused.contains("403 Forbidden") && !refused.contains("secret"), "{refused}");
    }
}
