//! The settings of a node: defaults, then the file, then the environment, then flags; each with its origin.
//! Raw settings become [`Rules`] by being checked, and whatever is wrong is said at once.

mod fields;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use onward_core::settings::{Rules, Settings};
use serde_json::json;

use crate::args::ConfigArgs;
use crate::failure::CommandFailure;
use crate::folder;
use crate::screen::Screen;
use crate::table::Column;
pub use fields::NodeSettings;
use fields::{NAMES, RawSettings};

/// Checked settings, and where each came from.
#[derive(Debug)]
pub struct Effective {
    pub rules: Rules,
    pub node: NodeSettings,
    pub listed: Vec<Setting>,
}

/// A setting as it is in effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub value: String,
    pub origin: Origin,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Default,
    File(PathBuf),
    Env(String),
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag => write!(f, "flag"),
        }
    }
}

/// All errors of the settings. Nothing was started with them.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: std::io::Error },
    #[error("{} is not TOML: {why}", path.display())]
    NotToml { path: PathBuf, why: String },
    #[error("{}", .0.join("\n"))]
    Wrong(Vec<String>),
}

impl From<ConfigError> for CommandFailure {
    fn from(error: ConfigError) -> Self {
        let remedy =
            "durations are written like 90s or 1h30m; `onward config` shows every setting with its value and origin";
        Self::new("the settings cannot be used").why(error).remedy(remedy).usage()
    }
}

/// `config` is the file to read; else `onward.toml` in the data folder, if it is there. `flags` are names with values.
pub fn load(
    config: Option<&Path>,
    flags: &[(String, String)],
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Effective, ConfigError> {
    let given: Vec<(&'static str, String, Origin)> = NAMES.iter().filter_map(|name| from_env(name, &env)).collect();
    let data = flags.iter().rfind(|(name, _)| name == "data").map(|(_, value)| value.clone());
    let data = data.or_else(|| given.iter().find(|(name, ..)| *name == "data").map(|(_, value, _)| value.clone()));
    let data = data.map_or_else(|| folder::default_data(&env), PathBuf::from);
    let mut loading = Loading {
        raw: RawSettings { rules: Settings::default(), node: NodeSettings::new(data.clone()) },
        origins: BTreeMap::new(),
        wrong: Vec::new(),
    };
    loading.file(config, &data)?;
    for (name, value, origin) in given {
        loading.put(name, &value, origin);
    }
    for (name, value) in flags {
        loading.put(name, value, Origin::Flag);
    }
    loading.checked()
}

/// `lease.initial` is `ONWARD_LEASE_INITIAL`.
fn from_env(name: &'static str, env: impl Fn(&str) -> Option<OsString>) -> Option<(&'static str, String, Origin)> {
    let variable = format!("ONWARD_{}", name.to_uppercase().replace('.', "_"));
    let value = env(&variable).filter(|value| !value.is_empty())?;
    Some((name, value.to_string_lossy().into_owned(), Origin::Env(variable)))
}

struct Loading {
    raw: RawSettings,
    origins: BTreeMap<String, Origin>,
    wrong: Vec<String>,
}

impl Loading {
    fn file(&mut self, config: Option<&Path>, data: &Path) -> Result<(), ConfigError> {
        let path = config.map_or_else(|| data.join("onward.toml"), Path::to_owned);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if config.is_none() && error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(why) => return Err(ConfigError::Unreadable { path, why }),
            Ok(text) => text,
        };
        let table = text.parse::<toml::Table>();
        let table = table.map_err(|error| ConfigError::NotToml { path: path.clone(), why: error.to_string() })?;
        self.table("", &table, &path);
        Ok(())
    }

    fn table(&mut self, prefix: &str, table: &toml::Table, path: &Path) {
        for (key, value) in table {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            let text = match value {
                toml::Value::Table(table) => {
                    self.table(&name, table, path);
                    continue;
                }
                toml::Value::String(text) => text.clone(),
                toml::Value::Array(items) => items
                    .iter()
                    .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
                    .collect::<Vec<_>>()
                    .join(","),
                other => other.to_string(),
            };
            self.put(&name, &text, Origin::File(path.to_owned()));
        }
    }

    fn put(&mut self, name: &str, value: &str, origin: Origin) {
        let Some(mut field) = self.raw.field(name) else {
            let like = nearest(name).map(|like| format!("; did you mean `{like}`?")).unwrap_or_default();
            self.wrong.push(format!("`{name}` ({origin}) is not a setting{like}"));
            return;
        };
        match field.set(value) {
            Ok(()) => {
                self.origins.insert(name.to_owned(), origin);
            }
            Err(allowed) if field.may_be_secret() => {
                self.wrong.push(format!("`{name}` ({origin}) cannot be used; it must be {allowed}"));
            }
            Err(allowed) => self.wrong.push(format!("`{name}` is `{value}` ({origin}); it must be {allowed}")),
        }
    }

    fn checked(mut self) -> Result<Effective, ConfigError> {
        let node = self.raw.node.clone();
        if node.tls_cert.is_some() != node.tls_key.is_some() {
            self.wrong.push("`tls.cert` and `tls.key` go together; give both or neither".into());
        }
        if node.tls_ca.is_some() && node.tls_cert.is_none() {
            self.wrong.push("`tls.ca` needs `tls.cert` and `tls.key`: `onward certs node` makes all three".into());
        }
        let listed = self.listed();
        let mut bad = node.check();
        let rules = self.raw.rules.check().map_err(|more| bad.extend(more));
        let told = bad.iter().map(|bad| match self.origins.get(bad.field) {
            Some(origin) => format!("{bad} ({origin})"),
            None => bad.to_string(),
        });
        self.wrong.extend(told);
        match rules {
            Ok(rules) if self.wrong.is_empty() => Ok(Effective { rules, node, listed }),
            _ => Err(ConfigError::Wrong(self.wrong)),
        }
    }

    fn listed(&mut self) -> Vec<Setting> {
        let value = |raw: &mut RawSettings, name| raw.field(name).expect("every listed name has a field").text();
        let origin = |name: &str| self.origins.get(name).cloned().unwrap_or(Origin::Default);
        NAMES.iter().map(|name| Setting { name, value: value(&mut self.raw, name), origin: origin(name) }).collect()
    }
}

/// The name that was probably meant.
fn nearest(name: &str) -> Option<&'static str> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let same_end = NAMES.iter().find(|known| last(known) == last(name)).copied();
    let distance = |known: &&&str| strsim::damerau_levenshtein(name, known);
    let close = NAMES.iter().min_by_key(distance).filter(|known| distance(known) <= 3).copied();
    close.or(same_end)
}

/// Names and values of `--set NAME=VALUE`.
pub fn set(given: &[String]) -> Result<Vec<(String, String)>, CommandFailure> {
    let pair = |text: &String| {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            CommandFailure::new(format!("`--set {text}` has no value"))
                .remedy("write it like --set lease.initial=2m")
                .usage()
        })?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    given.iter().map(pair).collect()
}

pub fn run(args: &ConfigArgs, data: Option<PathBuf>, screen: &Screen) -> Result<u8> {
    let mut flags = set(&args.set)?;
    let env = |name: &str| std::env::var_os(name);
    if let Some(data) = data.filter(|data| env("ONWARD_DATA").is_none_or(|given| given != *data)) {
        flags.push(("data".into(), data.to_string_lossy().into_owned()));
    }
    let effective = load(args.config.as_deref(), &flags, env).map_err(CommandFailure::from)?;
    let shown = effective.listed.into_iter().filter(|setting| !args.changed || setting.origin != Origin::Default);
    if screen.json {
        let one = |one: Setting| json!({ "name": one.name, "value": one.value, "origin": one.origin.to_string() });
        screen.json(&json!({ "settings": shown.map(one).collect::<Vec<_>>() }))?;
    } else {
        let row = |one: Setting| vec![one.name.to_owned(), one.value, one.origin.to_string()];
        let columns = [Column::whole("setting"), Column::whole("value"), Column::cut("origin")];
        screen.table(&columns, shown.map(row).collect())?;
    }
    Ok(0)
}

#[cfg(test)]
mod complete;
#[cfg(test)]
mod tests;
