//! Spans of time as people write them.

use std::time::Duration;

const UNITS: [(&str, f64); 5] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// `120` and `1.5` are seconds; `90s`, `2m`, `1h30m`, `250ms` say their unit.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        if rest.is_empty() && digits == text.len() {
            return Duration::try_from_secs_f64(number).ok();
        }
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (_, seconds) = UNITS.iter().find(|(unit, _)| *unit == &rest[..letters])?;
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = &rest[letters..];
        if rest.is_empty() {
            return Some(total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (text, ms) in [
            ("0", 0),
            ("120", 120_000),
            ("1.5", 1500),
            ("90s", 90_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in
            ["", "s", "-1", "+1", "1x", "1m30", "1 m", "inf", "NaN", "1e9", "1..2", "99999999999999999999999", "ä"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
