//! What an error of SQS says about the call that it answers.

use std::error::Error;
use std::io;

use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use onward_lease::mailbox::{ChangeCertainty, MailboxError};

/// Codes for a receipt that is worth nothing: of a message that is gone, handed out again or not held.
const STALE: &[&str] = &[
    "AWS.SimpleQueueService.MessageNotInflight",
    "InvalidIdFormat",
    "MessageNotInflight",
    "ReceiptHandleIsInvalid",
    "com.amazonaws.sqs#MessageNotInflight",
    "com.amazonaws.sqs#ReceiptHandleIsInvalid",
];
/// Codes for "later".
const LATER: &[&str] = &["RequestThrottled", "ThrottlingException", "Throttling", "OverLimit", "ServiceUnavailable"];

/// The error of a call that changes something.
pub fn of_change<E>(error: SdkError<E>) -> MailboxError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let is_refused_connection = is_connection_refused(&error);
    let unavailable = |error: SdkError<E>, changed| {
        let why = DisplayErrorContext(error).to_string();
        MailboxError::Unavailable { why, changed }
    };
    match &error {
        SdkError::ServiceError(answer) => {
            let code = answer.err().code().unwrap_or_default().to_owned();
            let why = answer.err().message().unwrap_or("SQS gave no reason").to_owned();
            if answer.raw().status().is_server_error() {
                let changed =
                    if LATER.contains(&code.as_str()) { ChangeCertainty::No } else { ChangeCertainty::Unknown };
                return MailboxError::Unavailable { why: format!("{code}: {why}"), changed };
            }
            of_code(&code, &why)
        }
        SdkError::ConstructionFailure(_) => MailboxError::Refused {
            why: DisplayErrorContext(error).to_string(),
            remedy: "look into the settings of the SQS client".into(),
        },
        SdkError::DispatchFailure(_) if is_refused_connection => unavailable(error, ChangeCertainty::No),
        _ => unavailable(error, ChangeCertainty::Unknown),
    }
}

/// The error of a call that only looks.
pub fn of_look<E>(error: SdkError<E>) -> MailboxError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    match of_change(error) {
        MailboxError::Unavailable { why, .. } => MailboxError::Unavailable { why, changed: ChangeCertainty::No },
        other => other,
    }
}

/// An answer of SQS, also about one of a batch. It did nothing.
pub fn of_code(code: &str, why: &str) -> MailboxError {
    if STALE.contains(&code) || (code.contains("InvalidParameterValue") && why.to_lowercase().contains("receipt")) {
        return MailboxError::Stale;
    }
    if LATER.contains(&code) {
        return MailboxError::Unavailable { why: format!("{code}: {why}"), changed: ChangeCertainty::No };
    }
    MailboxError::Refused {
        why: format!("{code}: {why}"),
        remedy: "look into the queue and the permissions of these credentials".into(),
    }
}

fn is_connection_refused(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_what_became_of_a_receipt() {
        for (code, why) in [
            ("ReceiptHandleIsInvalid", "x"),
            (
                "InvalidParameterValue",
                "Value … for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
            ),
        ] {
            assert_eq!(of_code(code, why), MailboxError::Stale);
        }
        assert_eq!(of_code("ThrottlingException", "x").changed(), ChangeCertainty::No);
        assert!(of_code("ThrottlingException", "x").is_passing());
        assert!(matches!(of_code("InvalidParameterValue", "a queue"), MailboxError::Refused { .. }));
    }
}
