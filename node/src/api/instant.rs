//! Instants of requests, with their fields named where they are none.

use onward_api::instant::WrittenInstant;
use onward_core::time::Wall;

use super::problem::ProblemResponse;

pub fn from_written(field: &str, written: &WrittenInstant) -> Result<Wall, ProblemResponse> {
    written.instant().map(|at| at.0).map_err(|_| {
        let detail = format!(
            "`{field}` is no instant from 1970 to 9999; write it like 2030-01-31T09:30:00Z or in milliseconds since 1970"
        );
        ProblemResponse::invalid(detail).of_field(field)
    })
}
