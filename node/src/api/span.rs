//! Seconds as they are written, fractions included, and durations.

use core::ops::RangeInclusive;
use core::time::Duration;

use onward_core::job::draft::MAX_SPAN;
use onward_core::time::span_ms;

use super::problem::ProblemResponse;

pub const ANY: RangeInclusive<Duration> = Duration::ZERO..=MAX_SPAN;

/// Numbers that are no span (negative, not finite, out of range) are refused by the name of their field.
pub fn from_seconds(field: &str, seconds: f64, allowed: RangeInclusive<Duration>) -> Result<Duration, ProblemResponse> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(span) if allowed.contains(&span) => Ok(span),
        _ => {
            let (min, max) = (allowed.start().as_secs_f64(), allowed.end().as_secs_f64());
            let detail = format!("`{field}` is {seconds}; it must be a number of seconds from {min} to {max}");
            Err(ProblemResponse::invalid(detail).of_field(field))
        }
    }
}

pub fn if_given(field: &str, seconds: Option<f64>) -> Result<Option<Duration>, ProblemResponse> {
    seconds.map(|seconds| from_seconds(field, seconds, ANY)).transpose()
}

pub fn ms(span: Duration) -> u64 {
    span_ms(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_in_range_are_spans() {
        let hour = Duration::ZERO..=Duration::from_secs(3_600);
        for good in [0.0, -0.0, 0.001, 1.5, 3_600.0] {
            assert!(from_seconds("wait_s", good, hour.clone()).is_ok(), "{good}");
        }
        for bad in [-1.0, -0.001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, 3_600.001] {
            let problem = from_seconds("wait_s", bad, hour.clone()).unwrap_err();
            assert_eq!((&*problem.code, problem.field.as_deref()), ("invalid", Some("wait_s")), "{bad}");
        }
    }
}
