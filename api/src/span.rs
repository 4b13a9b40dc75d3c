//! Durations as people write them: `90s`, `2m`, `1h30m`, `250ms`.

use std::time::Duration;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{given}` cannot be used: {problem}; write a duration like 250ms, 90s, 2m or 1h30m")]
pub struct BadSpan {
    given: String,
    problem: &'static str,
}

/// The units, the largest first; they may be combined in this order, each once.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

pub fn parse(given: &str) -> Result<Duration, BadSpan> {
    let bad = |problem| BadSpan { given: given.to_owned(), problem };
    let mut rest = given.trim();
    if rest.is_empty() {
        return Err(bad("it is empty"));
    }
    let mut total_ms = 0_u64;
    let mut allowed = &UNITS[..];
    while !rest.is_empty() {
        let (number, after) = split(rest, |c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = split(after, |c: char| c.is_ascii_alphabetic());
        if number.is_empty() {
            return Err(bad("a number is missing"));
        }
        if unit.is_empty() {
            return Err(bad("the unit is missing"));
        }
        if !UNITS.iter().any(|(name, _)| *name == unit) {
            return Err(bad("the units are d, h, m, s and ms"));
        }
        let at = allowed.iter().position(|(name, _)| *name == unit);
        let at = at.ok_or_else(|| bad("the units go from the largest to the smallest, each once"))?;
        let ms = milliseconds(number, allowed[at].1).ok_or_else(|| bad("the number is not one, or is too large"))?;
        total_ms = total_ms.checked_add(ms).ok_or_else(|| bad("it is too long"))?;
        allowed = &allowed[at + 1..];
        rest = after;
    }
    Ok(Duration::from_millis(total_ms))
}

/// Reads a span as [`parse`] does; a number without a unit is seconds.
pub fn parse_or_seconds(given: &str) -> Result<Duration, BadSpan> {
    let is_bare = !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_bare { parse(&format!("{given}s")) } else { parse(given) }
}

/// A limit on how long something may take: from a millisecond to a year and a day.
pub fn parse_limit(given: &str) -> Result<Duration, BadSpan> {
    let span = parse(given)?;
    let bad = |problem| Err(BadSpan { given: given.to_owned(), problem });
    match span {
        _ if span.is_zero() => bad("a limit is 1ms at least"),
        _ if span > MAX_LIMIT => bad("a limit is 366d at most"),
        _ => Ok(span),
    }
}

const MAX_LIMIT: Duration = Duration::from_secs(366 * 86_400);

/// Whole numbers stay exact; a fraction is rounded to the millisecond.
fn milliseconds(number: &str, unit_ms: u64) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit_ms);
    }
    let ms = number.parse::<f64>().ok()? * unit_ms as f64;
    (ms.is_finite() && ms < 1e15).then(|| ms.round() as u64)
}

fn split(text: &str, part: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !part(c)).unwrap_or(text.len()))
}

/// The span for people: the two largest units that say something.
pub fn human(span: Duration) -> String {
    let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".into();
    }
    if ms < 1_000 {
        return format!("{ms}ms");
    }
    if ms < 10_000 && ms % 1_000 != 0 {
        return format!("{:.1}s", (ms / 100) as f64 / 10.0);
    }
    let mut left = ms;
    let mut parts = Vec::new();
    for (unit, size) in &UNITS[..4] {
        if left >= *size {
            parts.push(format!("{}{unit}", left / size));
            left %= size;
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    parts.join(" ")
}

/// Exact, and [`parse`] reads it back.
pub fn exact(span: Duration) -> String {
    let mut left = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, size) in UNITS {
        if left >= size {
            text += &format!("{}{unit}", left / size);
            left %= size;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_understood() {
        for (text, ms) in [
            ("90s", 90_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1.5s", 1_500),
            ("0.25h", 900_000),
            ("1d", 86_400_000),
            ("1h5s", 3_605_000),
            ("1m500ms", 60_500),
            (" 5s ", 5_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        for (text, problem) in [
            ("", "it is empty"),
            ("90", "the unit is missing"),
            ("s", "a number is missing"),
            ("-5s", "a number is missing"),
            ("5 s", "the unit is missing"),
            ("5w", "the units are d, h, m, s and ms"),
            ("5m1h", "the units go from the largest to the smallest, each once"),
            ("5s5s", "the units go from the largest to the smallest, each once"),
            ("1.2.3s", "the number is not one, or is too large"),
            ("99999999999999999999s", "the number is not one, or is too large"),
            (
                "18446744073709551615ms18446744073709551615ms",
                "the units go from the largest to the smallest, each once",
            ),
        ] {
            assert_eq!(parse(text).map_err(|bad| bad.problem), Err(problem), "{text}");
        }
        let text = parse("5w").unwrap_err().to_string();
        assert!(text.contains("`5w`") && text.contains("1h30m"), "{text}");
    }

    #[test]
    fn a_number_without_a_unit_may_be_seconds() {
        for (text, ms) in [("0", 0), ("120", 120_000), ("1.5", 1_500), ("2m", 120_000), ("250ms", 250)] {
            assert_eq!(parse_or_seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1", "+1", "1x", "1m30", "1 m", "inf", "NaN", "1e9", "1..2", ".", "ä"] {
            assert!(parse_or_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_told_in_at_most_two_units() {
        for (ms, text) in [
            (0, "0s"),
            (250, "250ms"),
            (1_500, "1.5s"),
            (9_999, "9.9s"),
            (90_000, "1m 30s"),
            (5_400_000, "1h 30m"),
            (3_605_000, "1h"),
            (90_061_000, "1d 1h"),
        ] {
            assert_eq!(human(Duration::from_millis(ms)), text, "{ms}");
        }
    }

    #[test]
    fn exact_spans_are_read_back() {
        for ms in [0, 1, 999, 1_001, 61_000, 86_400_000, 90_061_007] {
            let span = Duration::from_millis(ms);
            assert_eq!(parse(&exact(span)), Ok(span));
        }
    }
}
