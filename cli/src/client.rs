//! Calls to a node through [`onward::Client`], one after the other, with what goes wrong told as people read it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onward::client::{JobFilter, NoConnection, Page, Protocol, Retries, Silence};
use onward::{CallError, NodeAddress, NodeAddresses};
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use crate::answer::PrintableAnswer;
use crate::failure::CommandFailure;
use crate::proxy;

/// Pauses before a call is sent again, after its connection was lost or the node was not able to answer.
const PAUSES_MS: [u64; 3] = [100, 500, 1_500];
const ID_DIGITS: usize = 32;
const WRITE_IT: &str = "write it like http://127.0.0.1:7400 or https://onward.example:7400";
/// Fewer would name half of all jobs.
const MIN_ID_DIGITS: usize = 4;

#[derive(Debug)]
pub struct NodeClient {
    node: onward::Client,
    /// What a call needs, and nothing more: a command line that asks one question starts no threads.
    runtime: Runtime,
    server: String,
    /// The reason why the token of this machine's own node is not used, although it is there.
    token_trouble: Option<String>,
    has_answered: AtomicBool,
}

/// The node's address, and the proof of who we are.
#[derive(Debug, Default)]
pub struct NodeTarget<'a> {
    pub server: &'a str,
    pub token: Option<&'a str>,
    /// The token file of this machine's own node; sent to nobody else.
    pub token_file: Option<&'a Path>,
    /// Certificates to trust instead of the public ones.
    pub ca: Option<&'a Path>,
}

/// What to prove who we are with: what was given, else what this machine's own node has written down.
pub fn token_for(server: &str, given: Option<&str>, file: Option<&Path>) -> Option<String> {
    let token = match given {
        Some(token) => Some(token.to_owned()),
        None => file.filter(|_| is_here(server)).and_then(|file| std::fs::read_to_string(file).ok()),
    };
    token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty())
}

impl NodeClient {
    pub fn new(target: &NodeTarget<'_>) -> Result<Self, CommandFailure> {
        let servers = servers(target.server);
        let places: Result<Vec<(NodeAddress, &str)>, _> = servers.iter().map(|server| place(server, target)).collect();
        let places = places?;
        let path = places.first().map_or("", |(_, path)| *path);
        if places.iter().any(|(_, other)| *other != path) {
            return Err(CommandFailure::new("the addresses of a cluster's nodes have different paths")
                .why(target.server)
                .remedy("give them all the same path, or none")
                .usage());
        }
        let addresses = NodeAddresses::of(places.into_iter().map(|(address, _)| address).collect());
        let mut addresses = addresses.ok_or_else(|| not_an_address(target.server).remedy(WRITE_IT).usage())?;
        let token = token_for(target.server, target.token, target.token_file);
        let token_trouble = match (&token, target.token_file.filter(|_| is_here(target.server))) {
            (None, Some(file)) => trouble_with(file),
            _ => None,
        };
        if let Some(token) = &token {
            addresses = addresses.with_token(token);
        }
        let retries = Retries { pauses: PAUSES_MS.map(Duration::from_millis).to_vec(), unreachable: false };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self {
            node: onward::Client::at(addresses).speaking(Protocol::Http1).retrying(retries).under(path),
            runtime: runtime.map_err(|error| CommandFailure::new("cannot begin to ask a node").why(error))?,
            server: servers.join(", "),
            token_trouble,
            has_answered: AtomicBool::new(false),
        })
    }

    /// Whether a node was there for any call so far, whatever it said.
    pub fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Makes a call and gives its answer.
    pub fn ask<T: DeserializeOwned>(
        &self,
        call: impl AsyncFnOnce(&onward::Client) -> Result<onward::NodeAnswer<T>, CallError>,
    ) -> Result<PrintableAnswer<T>, CommandFailure> {
        let answer = self.run(call(&self.node))?;
        PrintableAnswer::of(answer).map_err(|error| self.unreadable(&error.to_string()))
    }

    /// Makes any call.
    pub fn run<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CommandFailure> {
        let told = self.runtime.block_on(call);
        let answered = !matches!(told, Err(CallError::Unreachable { .. } | CallError::Unanswered { .. }));
        self.has_answered.fetch_or(answered, Ordering::Relaxed);
        told.map_err(|error| self.failure(&error))
    }

    pub fn node(&self) -> &onward::Client {
        &self.node
    }

    /// The id that begins with this, if only one does. What is no beginning of an id is given back, for the node to say so.
    pub fn whole_id(&self, text: &str) -> Result<String, CommandFailure> {
        if text.trim().is_empty() {
            return Err(CommandFailure::new("an id is needed")
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
        let page = Page { limit: 3, cursor: cursor_above(&digits) };
        let page = self.run(self.node.jobs(&JobFilter::default(), &page))?;
        let ids = page.jobs.iter().map(|job| job.id.as_str());
        let found: Vec<&str> = ids.filter(|id| id.replace('-', "").starts_with(&digits)).collect();
        match found.as_slice() {
            [] => Ok(text.to_owned()),
            [id] => Ok((*id).to_owned()),
            several => Err(CommandFailure::new(format!("several jobs begin with `{text}`"))
                .why(several.join("\n"))
                .remedy("write more of the id")),
        }
    }

    fn failure(&self, error: &CallError) -> CommandFailure {
        match error {
            CallError::Refused { status, code, detail, field } => self.refused(*status, code, detail, field.as_deref()),
            CallError::Unreachable { why, .. } => self.unreachable(why),
            CallError::Unanswered { why: Silence::Lost(why), .. } => {
                CommandFailure::new(format!("the connection to {} was lost, several times", self.server))
                    .why(why)
                    .remedy("look at the node's own output; repeat the command when it is back")
                    .passing()
            }
            CallError::Unanswered { why: Silence::InDoubt(why), .. } => CommandFailure::new("refused: no_leader")
                .why(why)
                .refused("no_leader")
                .remedy("look whether it was done (`onward list`), and else repeat the command in a moment")
                .passing(),
            CallError::Unanswered { why, .. } => self.unreachable(&NoConnection::Other(format!("no answer: {why}"))),
            CallError::Unreadable(why) => self.unreadable(why),
            other => CommandFailure::new(other.to_string()),
        }
    }

    fn unreadable(&self, why: &str) -> CommandFailure {
        CommandFailure::new(format!("the answer of {} cannot be read", self.server))
            .why(why)
            .remedy("is that address a node of Onward? `onward status` asks it")
    }

    fn unreachable(&self, why: &NoConnection) -> CommandFailure {
        let server = &self.server;
        let failure = CommandFailure::new(format!("cannot reach a node at {server}")).why(why);
        let address = server.split_once("://").map_or(server.as_str(), |(_, address)| address);
        match why {
            NoConnection::UnknownIssuer => failure
                .remedy("--ca FILE (or ONWARD_CA) names the certificate to trust; `onward certs new` calls it ca.pem"),
            NoConnection::OtherName(_) => failure.remedy(
                "call the node by a name in its certificate; `onward certs new --host NAME` makes one for more names",
            ),
            NoConnection::NoTls => failure.remedy(format!("--server http://{address}")),
            NoConnection::OnlyTls => failure
                .remedy(format!("--server https://{address} (with --ca FILE if its certificate is not a public one)")),
            _ => failure
                .remedy("start one here with `onward up`, or name another with --server URL (or ONWARD_SERVER)")
                .passing(),
        }
    }

    fn refused(&self, status: u16, code: &str, detail: &str, field: Option<&str>) -> CommandFailure {
        if code == "unknown" {
            return CommandFailure::new(format!("{} answered {status}", self.server))
                .why("it does not say why")
                .refused("")
                .remedy("is that address a node of Onward, and of this version?");
        }
        let why = match field.filter(|field| !detail.contains(field)) {
            Some(field) => format!("`{field}`: {detail}"),
            None => detail.to_owned(),
        };
        let failure = CommandFailure::new(format!("refused: {code}")).why(why).refused(code).of_field(field);
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
            (503, _) => failure.remedy("repeat the command in a moment; nothing was changed").passing(),
            _ => failure,
        }
    }
}

/// The addresses in a text with commas between them.
fn servers(text: &str) -> Vec<&str> {
    text.split(',').map(|server| server.trim().trim_end_matches('/')).filter(|server| !server.is_empty()).collect()
}

/// Whether all of these nodes are on this machine.
fn is_here(text: &str) -> bool {
    servers(text).into_iter().all(|server| host_of(server).is_some_and(is_loopback))
}

fn not_an_address(server: &str) -> CommandFailure {
    CommandFailure::new(format!("`{server}` is not the address of a node"))
}

/// The address of one node, and the path behind it.
fn place<'a>(server: &'a str, target: &NodeTarget<'_>) -> Result<(NodeAddress, &'a str), CommandFailure> {
    let Some(host) = host_of(server) else { return Err(not_an_address(server).remedy(WRITE_IT).usage()) };
    if let Some(port) = port_of(server).filter(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return Err(not_an_address(server)
            .why(format!("`{port}` is not a port"))
            .remedy("a port is a number from 1 to 65535, like in http://127.0.0.1:7400")
            .usage());
    }
    let (url, path) = split(server);
    let mut address = match target.ca {
        Some(file) => trusting(&url, file)?,
        None => NodeAddress::at(&url).map_err(|_| not_an_address(server).remedy(WRITE_IT).usage())?,
    };
    if let Some(proxy) = proxy::of_environment(host, |name| std::env::var(name).ok()).filter(|_| !is_loopback(host)) {
        address = address.through(proxy);
    }
    Ok((address, path))
}

/// The lowest cursor above every id that begins with these digits. A list begins below its cursor.
fn cursor_above(digits: &str) -> Option<String> {
    let highest = u128::from_str_radix(&format!("{digits:f<ID_DIGITS$}"), 16).expect("only digits come here");
    // Above the highest of all ids there is none: the list begins with the newest.
    highest.checked_add(1).map(|above| format!("{above:0ID_DIGITS$x}"))
}

fn trusting(url: &str, file: &Path) -> Result<NodeAddress, CommandFailure> {
    let unusable = |why: String| {
        CommandFailure::new(format!("cannot use the certificates in {}", file.display()))
            .why(why)
            .remedy("--ca takes a PEM file with the certificate that signed the node's")
    };
    let pem = std::fs::read(file).map_err(|error| unusable(error.to_string()))?;
    NodeAddress::trusting(url, &pem).map_err(|error| unusable(error.to_string()))
}

/// The address with its port, and the path behind it: without one it is the port of the web, because something that
/// serves more than a node stands there.
fn split(server: &str) -> (String, &str) {
    let (scheme, rest) = server.split_once("://").unwrap_or(("http", server));
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    let port = match (port_of(server), scheme) {
        (Some(_), _) => "",
        (None, "https") => ":443",
        (None, _) => ":80",
    };
    (format!("{scheme}://{authority}{port}"), path)
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

/// A name that nobody else will choose: what is sent twice under it happens once.
pub fn unique_name(prefix: &str) -> Result<String, CommandFailure> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random)
        .map_err(|error| CommandFailure::new("the operating system gives no random numbers").why(error))?;
    Ok(format!("{prefix}{}", hex(&random)))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
