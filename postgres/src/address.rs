//! A database's address: as it is written, and as it is used.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::failure::OpenError;

/// Settings that a session depends on, in the form of `options` when a connection starts. They win over the settings of
/// the role, of the database and of the server.
///
/// - `client_min_messages`: a warning that is not sent cannot be seen.
/// - `client_connection_check_interval`: a request that waits for the seat's lock ends soon after its sender has gone.
/// - `plan_cache_mode`, `enable_…`, `jit`: the statements are few and small; they are planned once, and by their indexes,
///   whatever the statistics of a table that was empty a moment ago say.
const SETTINGS: &[(&str, &str)] = &[
    ("synchronous_commit", "on"),
    ("default_transaction_isolation", "read\\ committed"),
    ("default_transaction_read_only", "off"),
    ("client_min_messages", "warning"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("client_connection_check_interval", "1000"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
];

/// Unacknowledged bytes end a connection after this.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(3);

/// A database's address as it is written, checked, and shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The address with its password, for a connection.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether the text is meant to be the address of a database at all.
    pub fn is_meant(text: &str) -> bool {
        SCHEMES.iter().any(|scheme| text.starts_with(scheme))
    }
}

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// The text in a password's place.
const HIDDEN: &str = "…";

impl FromStr for DatabaseUrl {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        if !Self::is_meant(text) {
            return Err(OpenError::Address("it begins with postgres:// or postgresql://".into()));
        }
        Address::parse(text, ("onward.session", ""))?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, query) = self.0.split_once('?').unwrap_or((&self.0, ""));
        // A password may have any character in it; then more is hidden than need be.
        let (before, after) = match self.0.rfind('@') {
            Some(at) if at < address.len() => address.split_at(at),
            Some(_) => (self.0.as_str(), ""),
            None => ("", address),
        };
        let (scheme, user) = before.split_once("://").unwrap_or(("", before));
        match user.split_once(':') {
            Some((user, _)) => write!(f, "{scheme}://{user}:{HIDDEN}{after}")?,
            None if scheme.is_empty() => write!(f, "{after}")?,
            None => write!(f, "{scheme}://{user}{after}")?,
        }
        if after.is_empty() {
            return Ok(());
        }
        for (number, part) in query.split('&').filter(|part| !part.is_empty()).enumerate() {
            let sign = if number == 0 { '?' } else { '&' };
            match part.split_once('=') {
                Some(("password", _)) => write!(f, "{sign}password={HIDDEN}")?,
                _ => write!(f, "{sign}{part}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address that can be used.
#[derive(Clone)]
pub(crate) struct Address {
    /// Configurations, one per host, in the order given.
    pub(crate) hosts: Vec<Config>,
    /// Encrypted, and checked against this file, or against what browsers trust.
    pub(crate) tls: Option<Option<PathBuf>>,
}

impl Address {
    /// Checks an address, and adds what a session depends on; `mark` is a setting that a session can be known by.
    pub(crate) fn parse(url: &str, mark: (&str, &str)) -> Result<Self, OpenError> {
        let (url, roots) = take_parameter(url, "sslrootcert");
        let (url, mode) = take_parameter(&url, "sslmode");
        let is_encrypted = match mode.as_deref() {
            None | Some("disable") => false,
            // The certificate is always checked in full.
            Some("require" | "verify-full") => true,
            Some(other) => {
                let what =
                    format!("sslmode={other} would encrypt or not, as it comes; give disable, require or verify-full");
                return Err(OpenError::Address(what));
            }
        };
        if roots.is_some() && !is_encrypted {
            return Err(OpenError::Address("sslrootcert is given without sslmode=require".into()));
        }
        let given: Config = url.parse().map_err(|error| OpenError::Address(crate::failure::told(&error)))?;
        let hosts = given.get_hosts();
        if hosts.is_empty() {
            return Err(OpenError::Address("it names no host".into()));
        }
        let ports = given.get_ports();
        if ports.len() > 1 && ports.len() != hosts.len() {
            return Err(OpenError::Address("it has another number of ports than of hosts".into()));
        }
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let ssl = if is_encrypted { SslMode::Require } else { SslMode::Disable };
        let hosts = hosts.iter().enumerate().map(|(at, host)| one(&given, host, port(at), ssl, mark)).collect();
        Ok(Self { hosts, tls: is_encrypted.then(|| roots.map(PathBuf::from)) })
    }
}

/// The options for one of the hosts.
fn one(given: &Config, host: &Host, port: u16, ssl: SslMode, (mark, value): (&str, &str)) -> Config {
    let mut config = Config::new();
    match host {
        Host::Tcp(name) => config.host(name),
        Host::Unix(path) => config.host_path(path),
    };
    config.port(port);
    given.get_user().map(|user| config.user(user));
    given.get_password().map(|password| config.password(password));
    given.get_dbname().map(|name| config.dbname(name));
    let settings = SETTINGS.iter().copied().chain([(mark, value)]).map(|(name, value)| format!(" -c {name}={value}"));
    config.options(given.get_options().unwrap_or_default().to_owned() + &settings.collect::<String>());
    config.application_name(given.get_application_name().unwrap_or("onward"));
    config.ssl_mode(ssl).ssl_negotiation(given.get_ssl_negotiation());
    config.tcp_user_timeout(TCP_USER_TIMEOUT).keepalives_idle(TCP_USER_TIMEOUT);
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config
}

/// Takes a parameter out of the query of a URL.
fn take_parameter(url: &str, name: &str) -> (String, Option<String>) {
    let Some((before, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let is_it = |part: &&str| part.split_once('=').is_some_and(|(found, _)| found == name);
    let value = query.split('&').find(is_it).and_then(|part| part.split_once('=')).map(|(_, value)| value.to_owned());
    let rest: Vec<&str> = query.split('&').filter(|part| !is_it(part)).collect();
    let url = if rest.is_empty() { before.to_owned() } else { format!("{before}?{}", rest.join("&")) };
    (url, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, OpenError> {
        Address::parse(url, ("onward.session", "x"))
    }

    #[test]
    fn each_host_has_its_port_and_every_setting() {
        let address = parse("postgres://me:secret@one:1,two:2/jobs?options=-c%20work_mem=1MB").unwrap();
        let found: Vec<_> = address.hosts.iter().map(|one| (one.get_hosts().to_vec(), one.get_ports()[0])).collect();
        assert_eq!(found, [(vec![Host::Tcp("one".into())], 1), (vec![Host::Tcp("two".into())], 2)]);
        for one in &address.hosts {
            let options = one.get_options().unwrap();
            assert!(options.starts_with("-c work_mem=1MB -c synchronous_commit=on"), "{options}");
            assert!(options.ends_with("-c onward.session=x"), "{options}");
            assert_eq!((one.get_user(), one.get_dbname()), (Some("me"), Some("jobs")));
            assert_eq!(one.get_password(), Some(&b"secret"[..]));
            assert_eq!(one.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        }
        assert_eq!(address.tls, None);
    }

    #[test]
    fn encryption_is_asked_for_by_name() {
        for (query, tls) in [
            ("", None),
            ("?sslmode=disable", None),
            ("?sslmode=require", Some(None)),
            ("?sslmode=verify-full", Some(None)),
            ("?sslrootcert=/ca.pem&sslmode=require", Some(Some(PathBuf::from("/ca.pem")))),
        ] {
            assert_eq!(parse(&format!("postgres://me@host/jobs{query}")).unwrap().tls, tls, "{query}");
        }
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (given, shown) in [
            ("postgres://me@host/jobs", "postgres://me@host/jobs"),
            ("postgresql://host:5433/jobs", "postgresql://host:5433/jobs"),
            (
                "postgres://me:secret@one:1,two:2/jobs?sslmode=require",
                "postgres://me:…@one:1,two:2/jobs?sslmode=require",
            ),
            ("postgres://me:se@cret@host/jobs", "postgres://me:…@host/jobs"),
            (
                "postgres://me@host/jobs?password=secret&sslmode=disable",
                "postgres://me@host/jobs?password=…&sslmode=disable",
            ),
        ] {
            let url: DatabaseUrl = given.parse().unwrap();
            assert_eq!((url.to_string(), format!("{url:?}")), (shown.to_owned(), shown.to_owned()));
            assert_eq!(url.reveal(), given);
        }
        let odd = DatabaseUrl("postgres://me:secret?secret@host/jobs".into()).to_string();
        assert!(!odd.contains("secret"), "{odd}");
        assert!("host=one password=secret".parse::<DatabaseUrl>().is_err());
    }

    #[test]
    fn an_address_that_cannot_be_used_says_why() {
        for (url, why) in [
            ("postgres://", "names no host"),
            ("postgres://me@a:1,b:2/jobs?port=3", "another number of ports"),
            ("postgres://me@host/jobs?sslrootcert=/ca.pem", "without sslmode=require"),
            ("postgres://me@host/jobs?sslmode=prefer", "give disable, require or verify-full"),
            ("mysql://me@host", "cannot be used"),
        ] {
            let error = parse(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
