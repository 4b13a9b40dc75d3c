//! Calls to a node. Each may be repeated: what must not happen twice carries a key, or is safe by its nature.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, RequestBuilder};

use crate::answer::Answer;
use crate::failure::Failure;
use crate::read;

/// For one call without waiting.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses before a call is sent again, after its connection was lost or the node was not able to answer.
const PAUSES_MS: [u64; 3] = [100, 500, 1_500];
const MAX_ANSWER_BYTES: u64 = 256 << 20;
const ID_DIGITS: usize = 32;
/// Fewer would name half of all jobs.
const MIN_ID_DIGITS: usize = 4;

#[derive(Debug)]
pub struct Client {
    agent: Agent,
    server: String,
    token: Option<String>,
    /// Why the token of this machine's own node is not used, although it is there.
    token_trouble: Option<String>,
    has_answered: AtomicBool,
}

/// What is asked of an address.
#[derive(Clone, Copy, Debug)]
enum Verb<'a> {
    Get,
    Post(&'a str),
    Put(&'a str),
    Delete,
}

fn written(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("our bodies can be written as JSON")
}

/// Where the node is, and how to prove who we are.
#[derive(Debug, Default)]
pub struct Target<'a> {
    pub server: &'a str,
    pub token: Option<&'a str>,
    /// Of this machine's own node; sent to nobody else.
    pub token_file: Option<&'a Path>,
    /// Certificates to trust instead of the public ones.
    pub ca: Option<&'a Path>,
}

/// What to prove who we are with: what was given, else what this machine's own node has written down.
pub fn token_for(server: &str, given: Option<&str>, file: Option<&Path>) -> Option<String> {
    let token = match given {
        Some(token) => Some(token.to_owned()),
        None => file
            .filter(|_| host_of(server).is_some_and(is_loopback))
            .and_then(|file| std::fs::read_to_string(file).ok()),
    };
    token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty())
}

impl Client {
    pub fn new(target: &Target<'_>) -> Result<Self, Failure> {
        let server = target.server.trim_end_matches('/');
        let Some(host) = host_of(server) else {
            return Err(Failure::new(format!("`{server}` is not the address of a node"))
                .remedy("write it like http://127.0.0.1:7400 or https://onward.example:7400")
                .usage());
        };
        if let Some(port) = port_of(server).filter(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(Failure::new(format!("`{server}` is not the address of a node"))
                .why(format!("`{port}` is not a port"))
                .remedy("a port is a number from 1 to 65535, like in http://127.0.0.1:7400")
                .usage());
        }
        let is_here = is_loopback(host);
        let token = token_for(server, target.token, target.token_file);
        let token_trouble = match (&token, target.token_file.filter(|_| is_here)) {
            (None, Some(file)) => trouble_with(file),
            _ => None,
        };
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("onward/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT));
        if is_here {
            config = config.proxy(None);
        }
        if let Some(file) = target.ca {
            config = config.tls_config(TlsConfig::builder().root_certs(roots(file)?).build());
        }
        Ok(Self {
            agent: config.build().into(),
            server: server.to_owned(),
            token,
            token_trouble,
            has_answered: AtomicBool::new(false),
        })
    }

    /// Whether a node was there for any call so far, whatever it said.
    pub fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    pub fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.call(path, Verb::Get, CALL_TIMEOUT)
    }

    /// For a call that the node answers when something happened, after `wait` at the latest. It may take `at_most` longer.
    pub fn get_waiting(&self, path: &str, wait: Duration, at_most: Duration) -> Result<Answer, Failure> {
        self.call(path, Verb::Get, wait + at_most.min(CALL_TIMEOUT))
    }

    pub fn post(&self, path: &str, body: &impl Serialize) -> Result<Answer, Failure> {
        self.call(path, Verb::Post(&written(body)), CALL_TIMEOUT)
    }

    pub fn put(&self, path: &str, body: &impl Serialize) -> Result<Answer, Failure> {
        self.call(path, Verb::Put(&written(body)), CALL_TIMEOUT)
    }

    pub fn delete(&self, path: &str) -> Result<Answer, Failure> {
        self.call(path, Verb::Delete, CALL_TIMEOUT)
    }

    /// The id that begins with this, if only one does. What is no beginning of an id is given back, for the node to say so.
    pub fn whole_id(&self, text: &str) -> Result<String, Failure> {
        if text.trim().is_empty() {
            return Err(Failure::new("an id is needed")
                .why("what was given is empty, as a shell variable is that was never set")
                .remedy("`onward list` shows the jobs and their ids")
                .usage());
        }
        let digits: String = text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
        let may_be_one =
            (MIN_ID_DIGITS..ID_DIGITS).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if !may_be_one {
            return Ok(text.to_owned());
        }
        // Jobs are listed from the newest, that is the highest id, down: those with this beginning come first.
        let page = self.get(&format!("/v1/jobs?limit=3{}", cursor_above(&digits)))?;
        let ids = read::items(&page, "jobs").iter().filter_map(|job| read::text(job, "id"));
        let found: Vec<&str> = ids.filter(|id| id.replace('-', "").starts_with(&digits)).collect();
        match found.as_slice() {
            [] => Ok(text.to_owned()),
            [id] => Ok((*id).to_owned()),
            several => Err(Failure::new(format!("several jobs begin with `{text}`"))
                .why(several.join("\n"))
                .remedy("write more of the id")),
        }
    }

    /// What an attempt has printed; none if nothing is kept of it.
    pub fn output(&self, path: &str) -> Result<Option<Printed>, Failure> {
        match self.exchange(path, Verb::Get, CALL_TIMEOUT)? {
            Ok(Raw { bytes, skipped }) => Ok(Some(Printed { skipped: skipped.unwrap_or(0), bytes })),
            Err((404, problem)) if read::text(&problem, "code") == Some("no_output") => Ok(None),
            Err((status, problem)) => Err(self.refused(status, &problem)),
        }
    }

    fn call(&self, path: &str, verb: Verb<'_>, timeout: Duration) -> Result<Answer, Failure> {
        match self.exchange(path, verb, timeout)? {
            Ok(answer) => Answer::of(&answer.bytes).map_err(|error| {
                Failure::new(format!("the answer of {} is not JSON", self.server))
                    .why(error)
                    .remedy("is that address a node of Onward? `onward status` asks it")
            }),
            Err((status, problem)) => Err(self.refused(status, &problem)),
        }
    }

    /// The answer to a call, or the status and problem with which it was refused.
    fn exchange(&self, path: &str, verb: Verb<'_>, timeout: Duration) -> Result<Result<Raw, (u16, Value)>, Failure> {
        let mut pauses = PAUSES_MS.into_iter().map(Duration::from_millis);
        let mut was_lost = false;
        loop {
            match self.send(path, verb, timeout) {
                Ok((status, answer)) if (200..300).contains(&status) => return Ok(Ok(answer)),
                Ok((status, answer)) => {
                    let answer = answer.problem();
                    let may_pass = status == 503 && !matches!(read::text(&answer, "code"), None | Some("internal"));
                    match pauses.next().filter(|_| may_pass) {
                        Some(pause) => thread::sleep(pause),
                        None => return Ok(Err((status, answer))),
                    }
                }
                Err(error) => {
                    was_lost |= is_lost(&error);
                    match pauses.next().filter(|_| was_lost) {
                        Some(pause) => thread::sleep(pause),
                        None => return Err(self.unreachable(&error)),
                    }
                }
            }
        }
    }

    fn send(&self, path: &str, verb: Verb<'_>, timeout: Duration) -> Result<(u16, Raw), ureq::Error> {
        let url = format!("{}{path}", self.server);
        let mut response = match verb {
            Verb::Get => self.asked(self.agent.get(&url), timeout).call()?,
            Verb::Delete => {
                self.asked(self.agent.delete(&url), timeout).header("content-type", "application/json").call()?
            }
            Verb::Post(body) => self.sent(self.agent.post(&url), timeout, body)?,
            Verb::Put(body) => self.sent(self.agent.put(&url), timeout, body)?,
        };
        self.has_answered.store(true, Ordering::Relaxed);
        let status = response.status().as_u16();
        Ok((status, Raw::of(&mut response)?))
    }

    fn asked<B>(&self, request: RequestBuilder<B>, timeout: Duration) -> RequestBuilder<B> {
        let request = request.config().timeout_global(Some(timeout)).build();
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn sent(
        &self,
        request: RequestBuilder<ureq::typestate::WithBody>,
        timeout: Duration,
        body: &str,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        self.asked(request, timeout).header("content-type", "application/json").send(body.as_bytes())
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let server = &self.server;
        if is_lost(error) {
            return Failure::new(format!("the connection to {server} was lost, several times"))
                .why(reason(error))
                .remedy("look at the node's own output; repeat the command when it is back")
                .passing();
        }
        let failure = Failure::new(format!("cannot reach a node at {server}"));
        let address = server.split_once("://").map_or(server.as_str(), |(_, address)| address);
        match Handshake::of(error) {
            Some(Handshake::UnknownIssuer) => failure
                .why("its certificate is signed by an authority that is not trusted here")
                .remedy("--ca FILE (or ONWARD_CA) names the certificate to trust; `onward certs new` calls it ca.pem"),
            Some(Handshake::OtherName) => failure.why(reason(error)).remedy(
                "call the node by a name in its certificate; `onward certs new --host NAME` makes one for more names",
            ),
            Some(Handshake::NoTls) => {
                failure.why("what listens there does not speak TLS").remedy(format!("--server http://{address}"))
            }
            Some(Handshake::OnlyTls) => failure
                .why("the answer is not HTTP; a node that serves TLS answers so")
                .remedy(format!("--server https://{address} (with --ca FILE if its certificate is not a public one)")),
            None => failure
                .why(reason(error))
                .remedy("start one here with `onward up`, or name another with --server URL (or ONWARD_SERVER)")
                .passing(),
        }
    }

    fn refused(&self, status: u16, answer: &Value) -> Failure {
        let code = read::text(answer, "code").unwrap_or("");
        let title = read::text(answer, "title").unwrap_or("it does not say why");
        let detail = read::text(answer, "detail").unwrap_or(title);
        let what =
            if code.is_empty() { format!("{} answered {status}", self.server) } else { format!("refused: {code}") };
        let why = match read::text(answer, "field").filter(|field| !detail.contains(field)) {
            Some(field) => format!("`{field}`: {detail}"),
            None => detail.to_owned(),
        };
        let failure = Failure::new(what).why(why).refused(code).of_field(read::text(answer, "field"));
        match (status, code) {
            (_, "foreign_host") => failure.remedy(
                "call the node by its address, or start it with `onward up --host-name NAME` for every name that it is called by",
            ),
            (401 | 403, _) => {
                let failure = match &self.token_trouble {
                    Some(trouble) => failure.and_why(trouble),
                    None => failure,
                };
                failure.remedy(
                    "give a token with the needed scope: --token, ONWARD_TOKEN, or --data DIR of the node on this machine;\n\
                     `onward token new --scope read,submit --name ME` makes one",
                )
            }
            (_, "not_a_dead_letter") => failure.remedy(
                "`onward dead-letter list` shows the dead letters; `onward retry ID` repeats any job that has ended",
            ),
            (_, "backup_failed") => {
                failure.remedy("its folder has to be there on the node's own disk, with room in it, and writable for the node")
            }
            (_, "unknown_worker") => failure.remedy("`onward node list` shows the nodes that are known"),
            (_, "unknown_schedule") => failure.remedy("`onward schedule list` shows the schedules"),
            (_, "unknown_job") => failure.remedy("`onward list` shows the jobs that are kept"),
            (_, "not_terminal") => failure.remedy("`onward wait ID` waits for its end, `onward cancel ID` brings it about"),
            (_, "") => failure.remedy("is that address a node of Onward, and of this version?"),
            (503, _) => failure.remedy("repeat the command in a moment; nothing was changed").passing(),
            _ => failure,
        }
    }
}

/// The lowest cursor above every id that begins with these digits, as part of a query. A list begins below its cursor.
fn cursor_above(digits: &str) -> String {
    let highest = u128::from_str_radix(&format!("{digits:f<ID_DIGITS$}"), 16).expect("only digits come here");
    // Above the highest of all ids there is none: the list begins with the newest.
    highest.checked_add(1).map_or_else(String::new, |above| format!("&cursor={above:0ID_DIGITS$x}"))
}

/// The end of what an attempt has printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Printed {
    /// Bytes before these that are not kept.
    pub skipped: u64,
    pub bytes: Vec<u8>,
}

/// An answer as it came.
#[derive(Debug)]
struct Raw {
    bytes: Vec<u8>,
    /// Only said with what attempts have printed.
    skipped: Option<u64>,
}

impl Raw {
    fn of(response: &mut Response<ureq::Body>) -> Result<Self, ureq::Error> {
        let skipped =
            response.headers().get("onward-skipped-bytes").and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec()?;
        Ok(Self { bytes, skipped })
    }

    /// Why it was refused. What is no JSON says nothing that we understand.
    fn problem(&self) -> Value {
        Answer::of(&self.bytes).map_or(Value::Null, |answer| (*answer).clone())
    }
}

fn roots(file: &Path) -> Result<RootCerts, Failure> {
    let unusable = |why: String| {
        Failure::new(format!("cannot use the certificates in {}", file.display()))
            .why(why)
            .remedy("--ca takes a PEM file with the certificate that signed the node's")
    };
    let pem = std::fs::read(file).map_err(|error| unusable(error.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| unusable(error.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(unusable("there is none".into()));
    }
    Ok(RootCerts::Specific(Arc::new(certificates)))
}

/// It was there, and then it was not: the call may or may not have been carried out.
fn is_lost(error: &ureq::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        ureq::Error::Io(error) => {
            matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        }
        _ => false,
    }
}

fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            "connection refused: nothing listens there".into()
        }
        ureq::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Why two could not agree on how to talk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Handshake {
    UnknownIssuer,
    OtherName,
    NoTls,
    OnlyTls,
}

impl Handshake {
    /// By its words: the types belong to crates that are not ours to name.
    fn of(error: &ureq::Error) -> Option<Self> {
        let text = error.to_string();
        let has = |word: &str| text.contains(word);
        if has("UnknownIssuer") || has("SelfSigned") {
            Some(Self::UnknownIssuer)
        } else if has("not valid for name") || has("NotValidForName") {
            Some(Self::OtherName)
        } else if has("InvalidContentType") {
            Some(Self::NoTls)
        } else if has("invalid HTTP version") {
            Some(Self::OnlyTls)
        } else {
            None
        }
    }
}

/// A file that is not there is no trouble.
fn trouble_with(token_file: &Path) -> Option<String> {
    match std::fs::read_to_string(token_file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Some(format!("the token in {} cannot be read: {error}", token_file.display()))
        }
        _ => None,
    }
}

/// The port of a URL as it was written, if there is one.
fn port_of(server: &str) -> Option<&str> {
    let authority = server.split_once("://")?.1.split(['/', '?', '#']).next()?;
    let after_host = authority.rsplit(']').next()?;
    after_host.rsplit_once(':').map(|(_, port)| port)
}

/// The host of a URL, without port; nothing if it is not one of HTTP.
fn host_of(server: &str) -> Option<&str> {
    let rest = server.strip_prefix("http://").or_else(|| server.strip_prefix("https://"))?;
    let authority = rest.split(['/', '?', '#']).next()?;
    if authority.contains('@') {
        return None;
    }
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next()?,
        None => authority.split(':').next()?,
    };
    (!host.is_empty()).then_some(host)
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Text as one segment of a path, or one value of a query.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// A name that nobody else will choose: what is sent twice under it happens once.
pub fn unique_name(prefix: &str) -> Result<String, Failure> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::new("the operating system gives no random numbers").why(error))?;
    Ok(format!("{prefix}{}", hex(&random)))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
