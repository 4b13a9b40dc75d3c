//! The publisher that rows go to.

use core::future::Future;
use core::pin::Pin;

use crate::Row;

/// Something that rows are published to: a broker, a queue, an HTTP endpoint.
///
/// A row is given at least once, with the same `dedup` every time: after a crash it is given again though it had arrived.
///
/// ```
/// use onward_outbox::{PublishError, Publisher, Row};
///
/// struct Printer;
///
/// impl Publisher for Printer {
///     async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
///         rows.iter().map(|row| Ok(println!("{} {:?}", row.topic, row.key))).collect()
///     }
/// }
/// ```
pub trait Publisher: Send + Sync + 'static {
    /// Publishes rows, and says of each, in their order, what became of it. `Ok` means that the receiver has it durably.
    ///
    /// The answer decides who is blamed: [`Unavailable`](PublishError::Unavailable) is no fault of the row, which is
    /// given back uncounted while the outbox backs off; [`Refused`](PublishError::Refused) counts, and parks the row in
    /// the end. A call may be dropped when the claim on its rows comes to its end.
    fn publish(&self, rows: &[Row]) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send;

    /// Whether one call may be given several rows of one key.
    ///
    /// It may where a row is never published after an earlier row of its key in the same call has failed; such a row is an
    /// error too, of either kind. `false`, the default, is always safe: then rows of one key come in one call after the
    /// other.
    fn keeps_order(&self) -> bool {
        false
    }
}

/// The reason why a row was not published.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PublishError {
    /// The publisher cannot take any row just now; nobody's fault.
    #[error("the publisher is unavailable: {0}")]
    Unavailable(String),
    /// This row cannot be taken, and others can.
    #[error("the row was refused: {0}")]
    Refused(String),
}

pub(crate) type Answers = Vec<Result<(), PublishError>>;

/// [`Publisher`] as an object.
pub(crate) trait AnyPublisher: Send + Sync {
    fn publish<'a>(&'a self, rows: &'a [Row]) -> Pin<Box<dyn Future<Output = Answers> + Send + 'a>>;
    fn keeps_order(&self) -> bool;
}

impl<P: Publisher> AnyPublisher for P {
    fn publish<'a>(&'a self, rows: &'a [Row]) -> Pin<Box<dyn Future<Output = Answers> + Send + 'a>> {
        Box::pin(Publisher::publish(self, rows))
    }

    fn keeps_order(&self) -> bool {
        Publisher::keeps_order(self)
    }
}
