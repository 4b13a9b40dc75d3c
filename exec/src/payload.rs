//! The payload of a job of the kind `exec`: the command that it wants.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `{"argv": ["sh", "-c", "…"], "env": {…}, "cwd": "…", "stdin": "…"}`; only `argv` is needed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandPayload {
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum BadPayload {
    #[error("the payload of an exec job is not {{argv, env?, cwd?, stdin?}}: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("`argv` is empty; give the program and its arguments, as in [\"sh\", \"-c\", \"echo hello\"]")]
    NoProgram,
    #[error("{field} contains a NUL byte, which no program can be given; remove it")]
    Nul { field: String },
    #[error("`env` names a variable {name:?}; a name is not empty and has no `=` in it")]
    EnvName { name: String },
}

impl CommandPayload {
    pub fn parse(json: &[u8]) -> Result<Self, BadPayload> {
        let payload: Self = serde_json::from_slice(json)?;
        payload.check()?;
        Ok(payload)
    }

    /// Refuses what the kernel would refuse, because here the text can say which field it is.
    pub fn check(&self) -> Result<(), BadPayload> {
        if self.argv.first().is_none_or(String::is_empty) {
            return Err(BadPayload::NoProgram);
        }
        for (at, arg) in self.argv.iter().enumerate() {
            no_nul(arg, || format!("`argv[{at}]`"))?;
        }
        for (name, value) in &self.env {
            no_nul(name, || format!("the name {name:?} in `env`"))?;
            if name.is_empty() || name.contains('=') {
                return Err(BadPayload::EnvName { name: name.clone() });
            }
            no_nul(value, || format!("`env.{name}`"))?;
        }
        match self.cwd.as_deref().map(|cwd| cwd.as_os_str().as_encoded_bytes().contains(&0)) {
            Some(true) => Err(BadPayload::Nul { field: "`cwd`".to_owned() }),
            _ => Ok(()),
        }
    }
}

fn no_nul(text: &str, field: impl Fn() -> String) -> Result<(), BadPayload> {
    if text.contains('\0') { Err(BadPayload::Nul { field: field() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_payload_is_read_and_written_the_same() {
        let text = r#"{"argv":["a","b"],"env":{"K":"v=w"},"cwd":"/x","stdin":"in\u0000put"}"#;
        let payload = CommandPayload::parse(text.as_bytes()).expect("well formed");
        assert_eq!(payload.argv, ["a", "b"]);
        assert_eq!(payload.env["K"], "v=w");
        assert_eq!(payload.stdin.as_deref(), Some("in\0put"));
        assert_eq!(serde_json::to_string(&payload).expect("json"), text);
        assert_eq!(CommandPayload::parse(br#"{"argv":["a"]}"#).expect("argv is enough").cwd, None);
    }

    #[test]
    fn what_cannot_be_started_is_refused_by_name() {
        for (json, word) in [
            (r#"{}"#, "argv"),
            (r#"{"argv":[]}"#, "`argv` is empty"),
            (r#"{"argv":[""]}"#, "`argv` is empty"),
            (r#"{"argv":["a"],"arg":1}"#, "unknown field `arg`"),
            (r#"{"argv":["a","b\u0000"]}"#, "`argv[1]`"),
            (r#"{"argv":["a"],"env":{"A=B":"x"}}"#, "\"A=B\""),
            (r#"{"argv":["a"],"env":{"":"x"}}"#, "\"\""),
            (r#"{"argv":["a"],"env":{"A":"\u0000"}}"#, "`env.A`"),
            (r#"{"argv":["a"],"env":{"A\u0000":""}}"#, "NUL"),
            (r#"{"argv":["a"],"cwd":"/\u0000"}"#, "`cwd`"),
            (r#"{"argv":"ls"}"#, "argv"),
        ] {
            let text = CommandPayload::parse(json.as_bytes()).expect_err(json).to_string();
            assert!(text.contains(word), "{json}: {text}");
        }
    }
}
