//! A database that is away while a node starts is waited for: a restart would not bring it back, and whoever restarts the
//! node over and over would only hide what is wrong. What no time will change is refused at once.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use onward_postgres::OpenError;

use crate::auth::TokenTableError;
use crate::engine::may_pass;
use crate::server::StartError;

const TRY_EVERY: Duration = Duration::from_millis(250);

/// Asks again and again while the database is away. Says so, once for each reason.
pub(super) fn wait_while_away<T>(
    is_over: &AtomicBool,
    mut ask: impl FnMut() -> Result<T, StartError>,
) -> Result<T, StartError> {
    let mut said = String::new();
    loop {
        let error = match ask() {
            Err(error) if is_away(&error) && !is_over.load(Ordering::Relaxed) => error,
            known => return known,
        };
        let why = error.to_string();
        if said != why {
            tracing::warn!("this node waits for its database, and starts once that is back: {why}");
            said = why;
        }
        thread::sleep(TRY_EVERY);
    }
}

fn is_away(error: &StartError) -> bool {
    match error {
        StartError::Database { error, .. } => matches!(error, OpenError::Unreachable(_)),
        StartError::Log(error) | StartError::Token(TokenTableError::Database(error)) => may_pass(error),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use onward_log::Error;

    use super::*;

    fn away() -> StartError {
        let url = "postgres://onward@127.0.0.1/jobs".parse().unwrap();
        StartError::Database { url, error: OpenError::Unreachable("nobody listens".into()) }
    }

    #[test]
    fn a_database_that_is_away_is_waited_for_and_one_that_is_wrong_is_not() {
        let is_over = AtomicBool::new(false);
        let unknown = || Error::Unknown { cause: "no answer".into() };
        let mut answers = vec![
            Ok(7),
            Err(StartError::Token(TokenTableError::Database(unknown()))),
            Err(StartError::Log(unknown())),
            Err(away()),
        ];
        let asked = wait_while_away(&is_over, || answers.pop().expect("not more often than there are answers"));
        assert!(matches!(asked, Ok(7)) && answers.is_empty());

        let url = "postgres://onward@127.0.0.1/jobs".parse().unwrap();
        let wrong = StartError::Database { url, error: OpenError::Refused("password".into()) };
        let mut answers = vec![Ok(()), Err(wrong)];
        assert!(wait_while_away(&is_over, || answers.pop().unwrap()).is_err());
        assert_eq!(answers.len(), 1, "it was asked once");
    }

    #[test]
    fn nobody_waits_for_a_node_that_is_told_to_leave() {
        let is_over = AtomicBool::new(true);
        assert!(wait_while_away::<()>(&is_over, || Err(away())).is_err());
    }
}
