//! An error as a user reads it: what, why, what to do.

use std::fmt;

#[derive(Debug)]
pub struct Failure {
    what: String,
    why: Option<String>,
    remedy: Option<String>,
    code: u8,
}

impl Failure {
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), why: None, remedy: None, code: 1 }
    }

    pub fn why(mut self, why: impl fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
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

    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
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

impl std::error::Error for Failure {}
