//! An error as a user reads it: what, why, what to do.

use std::fmt;

use serde_json::{Value, json};

#[derive(Debug)]
pub struct CommandFailure {
    what: String,
    why: Option<String>,
    remedy: Option<String>,
    code: u8,
    /// The node's word for its refusal.
    refusal: Option<Box<str>>,
    field: Option<Box<str>>,
    may_pass: bool,
}

impl CommandFailure {
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), why: None, remedy: None, code: 1, refusal: None, field: None, may_pass: false }
    }

    pub fn why(mut self, why: impl fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
    }

    /// Adds a further reason.
    pub fn and_why(self, more: &str) -> Self {
        let why = self.why.as_ref().map_or_else(|| more.to_owned(), |why| format!("{why}\n{more}"));
        self.why(why)
    }

    /// What the user can do about it.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The command line itself is wrong: exit code 2.
    pub fn usage(mut self) -> Self {
        self.code = 2;
        self
    }

    /// Notes that the node has refused it, with this code.
    pub fn refused(mut self, code: &str) -> Self {
        self.refusal = Some(code.into());
        self
    }

    /// The field of the request that is at fault.
    pub fn of_field(mut self, field: Option<&str>) -> Self {
        self.field = field.map(Into::into);
        self
    }

    /// The same may succeed a little later, with nothing done about it.
    pub fn passing(mut self) -> Self {
        self.may_pass = true;
        self
    }

    pub fn may_pass(&self) -> bool {
        self.may_pass
    }

    /// The index of the job of a batch that is at fault: `jobs[3].kind` is 3.
    pub fn job_at_fault(&self) -> Option<usize> {
        self.field.as_deref()?.strip_prefix("jobs[")?.split(']').next()?.parse().ok()
    }

    /// The node was there, and said no.
    pub fn was_refused(&self) -> bool {
        self.refusal.is_some()
    }

    pub fn is_refusal(&self, code: &str) -> bool {
        self.refusal.as_deref() == Some(code)
    }

    /// The failure in a few words.
    pub fn what(&self) -> &str {
        &self.what
    }

    pub fn code(&self) -> u8 {
        self.code
    }

    /// The failure for programs.
    pub fn json(&self) -> Value {
        json!({ "error": self.what, "why": self.why, "try": self.remedy, "code": self.refusal })
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if let Some(why) = &self.why {
            write!(f, "\n  why: {}", why.replace('\n', "\n       "))?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "\n  try: {}", remedy.replace('\n', "\n       "))?;
        }
        Ok(())
    }
}

impl std::error::Error for CommandFailure {}
