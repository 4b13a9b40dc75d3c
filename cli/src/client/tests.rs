use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

fn read_request(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0_u8; 4096];
    loop {
        let got = stream.read(&mut buffer).unwrap();
        text.extend_from_slice(&buffer[..got]);
        let seen = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = seen.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if got == 0 || body.len() >= length.unwrap_or(0) {
                return seen;
            }
        }
        assert!(got > 0, "the client closed early: {seen}");
    }
}

/// Answers one connection after the other; an empty answer closes it without one. Gives the requests that came.
fn node(answers: &'static [&'static str]) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = thread::spawn(move || {
        let serve = |answer: &&str| {
            let (mut stream, _) = listener.accept().unwrap();
            let request = read_request(&mut stream);
            stream.write_all(answer.as_bytes()).unwrap();
            request
        };
        answers.iter().map(serve).collect()
    });
    (url, served)
}

const CREATED: &str = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 10\r\nconnection: close\r\n\r\n{\"id\":\"a\"}";
const CONFLICT: &str = "HTTP/1.1 409 Conflict\r\ncontent-length: 75\r\nconnection: close\r\n\r\n\
    {\"code\":\"conflict\",\"title\":\"Conflict\",\"detail\":\"the key was used\",\"x\":1234}";

fn client(server: &str) -> NodeClient {
    NodeClient::new(&NodeTarget { server, token: Some("onw_secret"), ..NodeTarget::default() }).unwrap()
}

#[test]
fn a_call_that_lost_its_connection_is_sent_again_unchanged() {
    let (url, served) = node(&["", CREATED]);
    let body = serde_json::json!({"kind": "x", "idempotency_key": "k"});
    assert_eq!(client(&url).ask(async |node| node.submit_written(&body).await).unwrap().id, "a");
    let requests = served.join().unwrap();
    assert_eq!(requests[0], requests[1]);
    let text = requests[0].to_ascii_lowercase();
    assert!(text.starts_with("post /v1/jobs http/1.1\r\n"), "{text}");
    assert!(text.contains("authorization: bearer onw_secret") && text.contains("content-type: application/json"));
}

#[test]
fn a_refusal_is_told_and_not_repeated() {
    let (url, served) = node(&[CONFLICT]);
    let failure = client(&url).ask(async |node| node.submit_written(&()).await).unwrap_err().to_string();
    assert_eq!(failure, "refused: conflict\n  why: the key was used");
    assert_eq!(served.join().unwrap().len(), 1);
}

#[test]
fn nobody_there_says_which_address_and_what_to_do() {
    // Taken, so that nobody else listens there, and not listened at.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let failure = client(&url).ask(async |node| node.queues().await).unwrap_err().to_string();
    assert!(failure.contains(&url) && failure.contains("`onward up`"), "{failure}");
}

#[test]
fn the_token_of_this_machines_node_goes_to_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "onw_local\n").unwrap();
    let token_for = |server| token_for(server, None, Some(&file));
    for server in ["http://127.0.0.1:7400", "http://localhost:7400/", "https://[::1]:7400"] {
        assert_eq!(token_for(server).as_deref(), Some("onw_local"), "{server}");
    }
    for server in ["http://10.0.0.1:7400", "https://localhost.example:7400", "http://127.0.0.1.example"] {
        assert_eq!(token_for(server), None, "{server}");
    }
}

#[test]
fn what_is_no_address_is_refused() {
    for server in ["", "localhost:7400", "ftp://x", "http://", "http://user@host:1"] {
        let failure = NodeClient::new(&NodeTarget { server, ..NodeTarget::default() }).unwrap_err();
        assert_eq!(failure.code(), 2, "{server}");
    }
}

#[test]
fn a_port_that_is_none_is_wrong_usage() {
    for server in ["http://127.0.0.1:99999", "http://127.0.0.1:x", "https://[::1]:", "http://host:0"] {
        let failure = NodeClient::new(&NodeTarget { server, ..NodeTarget::default() }).unwrap_err();
        assert_eq!(failure.code(), 2, "{server}");
        assert!(failure.to_string().contains("65535"), "{server}: {failure}");
    }
    for server in ["http://127.0.0.1:1", "https://[::1]:7400", "http://[::1]", "http://host"] {
        assert!(NodeClient::new(&NodeTarget { server, ..NodeTarget::default() }).is_ok(), "{server}");
    }
}

const FOREIGN_HOST: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 62\r\nconnection: close\r\n\r\n\
    {\"code\":\"foreign_host\",\"detail\":\"this node is not called `x`\"}";

#[test]
fn a_name_that_the_node_does_not_have_is_no_matter_of_tokens() {
    let (url, served) = node(&[FOREIGN_HOST]);
    let failure = client(&url).ask(async |node| node.queues().await).unwrap_err().to_string();
    assert!(failure.contains("--host-name NAME") && !failure.contains("token"), "{failure}");
    served.join().unwrap();
}

#[test]
fn an_address_without_a_port_is_one_of_the_web() {
    for (server, url, path) in [
        ("http://h", "http://h:80", ""),
        ("https://h/onward/", "https://h:443", "/onward/"),
        ("http://[::1]:7400", "http://[::1]:7400", ""),
        ("https://h:1/a", "https://h:1", "/a"),
    ] {
        assert_eq!(split(server), (url.to_owned(), path), "{server}");
    }
}
