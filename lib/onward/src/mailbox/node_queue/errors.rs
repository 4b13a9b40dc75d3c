//! What a node's answer says about the call that it answers.

use onward_api::problem::Problem;

use super::super::{ChangeCertainty, MailboxError};
use crate::client::CallError;

/// The error of a call that changes something.
pub fn of_call(error: CallError) -> MailboxError {
    match error {
        CallError::Refused { status, code, detail, .. } => of_refusal(status, &code, &detail),
        CallError::Unreachable { .. } => unavailable(error, ChangeCertainty::No),
        CallError::Unanswered { .. } => unavailable(error, ChangeCertainty::Unknown),
        CallError::Unreadable(_) | CallError::TooMany { .. } => {
            refused(error.to_string(), "use a node and a library of versions that fit")
        }
    }
}

/// The error of a call that only looks.
pub fn of_look(error: CallError) -> MailboxError {
    match of_call(error) {
        MailboxError::Unavailable { why, .. } => MailboxError::Unavailable { why, changed: ChangeCertainty::No },
        other => other,
    }
}

pub fn of_problem(problem: Problem) -> MailboxError {
    of_refusal(problem.status, &problem.code, &problem.detail)
}

fn of_refusal(status: u16, code: &str, detail: &str) -> MailboxError {
    let why = format!("{detail} ({code})");
    match (status, code) {
        (_, "stale_attempt" | "already_ended" | "unknown_attempt" | "unknown_job" | "unknown_workflow") => {
            MailboxError::Stale
        }
        // Somebody else replayed it first.
        (_, "not_a_dead_letter") | (429, _) => unavailable(why, ChangeCertainty::No),
        // A node that stops may have stored it.
        (503, _) => unavailable(why, ChangeCertainty::Unknown),
        (401 | 403, _) => {
            refused(why, "use a token with the scopes `submit` to send, `work` to receive, `read` and `operate`")
        }
        (413, _) => refused(why, "send less, or raise `payload_bytes` of the node"),
        _ => refused(why, "the code says more in docs/http.md"),
    }
}

/// The node answered something else than was asked.
pub fn strange() -> MailboxError {
    unavailable("the node's answer does not fit the call", ChangeCertainty::Unknown)
}

fn unavailable(why: impl ToString, changed: ChangeCertainty) -> MailboxError {
    MailboxError::Unavailable { why: why.to_string(), changed }
}

fn refused(why: String, remedy: &str) -> MailboxError {
    MailboxError::Refused { why, remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Silence;

    #[test]
    fn what_a_node_answers_is_told_as_a_mailbox_tells_it() {
        let of = |status, code: &str| of_refusal(status, code, "no");
        for code in ["stale_attempt", "already_ended", "unknown_attempt", "unknown_job"] {
            assert_eq!(of(409, code), MailboxError::Stale);
        }
        for (status, code, changed) in [
            (503, "no_leader", ChangeCertainty::Unknown),
            (503, "overloaded", ChangeCertainty::Unknown),
            (429, "limited", ChangeCertainty::No),
            (409, "not_a_dead_letter", ChangeCertainty::No),
        ] {
            let error = of(status, code);
            assert!(error.is_passing() && error.changed() == changed, "{error}");
        }
        for (status, code, remedy) in
            [(403, "forbidden", "scopes"), (413, "too_large", "payload_bytes"), (400, "invalid", "docs/http.md")]
        {
            let error = of(status, code);
            assert!(!error.is_passing() && error.to_string().contains(remedy), "{error}");
        }
        let lost = || CallError::Unanswered { authority: "n".into(), why: Silence::Lost("cut".into()) };
        assert_eq!(
            (of_call(lost()).changed(), of_look(lost()).changed()),
            (ChangeCertainty::Unknown, ChangeCertainty::No)
        );
    }
}
