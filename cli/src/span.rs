//! Durations as people write and read them.

pub use onward_api::span::{exact, human, parse, parse_limit};

/// Seconds as JSON: a whole number where it is one.
pub fn seconds(span: std::time::Duration) -> serde_json::Value {
    if span.subsec_nanos() == 0 { span.as_secs().into() } else { span.as_secs_f64().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn seconds_stay_whole_where_they_are() {
        assert_eq!(seconds(Duration::from_secs(90)).to_string(), "90");
        assert_eq!(seconds(Duration::from_millis(250)).to_string(), "0.25");
    }
}
