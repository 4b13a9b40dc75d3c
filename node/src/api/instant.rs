//! Instants as RFC 3339 in UTC with milliseconds, and back.

use core::fmt;

use onward_core::time::Wall;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::problem::Problem;

/// An instant on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At(pub Wall);

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_ms();
        let (days, of_day) = (ms / DAY_MS, ms % DAY_MS);
        let (year, month, day) = civil(days);
        let (hours, minutes, seconds) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1_000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{:03}Z", of_day % 1_000)
    }
}

/// An instant as a client wrote it: RFC 3339, or milliseconds since 1970.
#[derive(Clone, PartialEq, Debug)]
pub enum Written {
    Text(String),
    Ms(u64),
}

impl Written {
    pub fn instant(&self, field: &str) -> Result<Wall, Problem> {
        let known = match self {
            Self::Text(text) => parse(text),
            Self::Ms(ms) => Some(Wall::from_ms(*ms)),
        };
        known.filter(|at| *at <= END).ok_or_else(|| {
            let detail = format!(
                "`{field}` is no instant from 1970 to 9999; write it like 2030-01-31T09:30:00Z or in milliseconds since 1970"
            );
            Problem::invalid(detail).of_field(field)
        })
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an instant: RFC 3339 text, or whole milliseconds since 1970")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Written, E> {
                Ok(Written::Text(text.into()))
            }

            fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Written, E> {
                Ok(Written::Ms(ms))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

const DAY_MS: u64 = 86_400_000;
/// The last millisecond of the year 9999.
const END: Wall = Wall::from_ms(253_402_300_799_999);

/// `2030-01-31T09:30:00[.fraction](Z|+hh:mm|-hh:mm)`, not before 1970.
fn parse(text: &str) -> Option<Wall> {
    let bytes = text.as_bytes();
    if !text.is_ascii() || bytes.len() < 20 || bytes.len() > 40 {
        return None;
    }
    let is = |at: usize, allowed: &[u8]| allowed.contains(&bytes[at]);
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let [year, month, day] = [number(&text[0..4])?, number(&text[5..7])?, number(&text[8..10])?];
    let [hours, minutes, seconds] = [number(&text[11..13])?, number(&text[14..16])?, number(&text[17..19])?];
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let length = match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    // A leap second is the second that follows it.
    if year < 1970 || day == 0 || day > length || hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    let mut rest = &text[19..];
    let mut ms = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        ms = number(&format!("{:0<3}", &fraction[..digits.min(3)])).filter(|_| digits > 0)?;
        rest = &fraction[digits..];
    }
    let local = days(year, month, day) * DAY_MS + ((hours * 60 + minutes) * 60 + seconds) * 1_000 + ms;
    let shift = match rest.as_bytes() {
        [b'Z' | b'z'] => return Some(Wall::from_ms(local)),
        [b'+' | b'-', _, _, b':', _, _] => (number(&rest[1..3])?, number(&rest[4..6])?),
        _ => return None,
    };
    if shift.0 > 23 || shift.1 > 59 {
        return None;
    }
    let shift = (shift.0 * 60 + shift.1) * 60_000;
    let utc = if rest.starts_with('+') { local.checked_sub(shift)? } else { local + shift };
    Some(Wall::from_ms(utc))
}

fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Days since 1970 of a date, and back: years are taken to begin in March, so that leap days come last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_and_read_back() {
        let table = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ];
        for (ms, text) in table {
            assert_eq!(At(Wall::from_ms(ms)).to_string(), text);
            assert_eq!(parse(text), Some(Wall::from_ms(ms)), "{text}");
        }
        for day in (0..2_932_896).step_by(17) {
            let (year, month, date) = civil(day);
            assert_eq!(days(year, month, date), day);
        }
    }

    #[test]
    fn offsets_and_fractions_are_understood_and_nonsense_is_not() {
        let half_past = Some(Wall::from_ms(1_800));
        for good in ["1970-01-01T00:00:01.8Z", "1970-01-01t01:00:01.800999+01:00", "1970-01-01 00:00:01.80z"] {
            assert_eq!(parse(good), half_past, "{good}");
        }
        assert_eq!(parse("1969-12-31T23:00:00-01:00"), None);
        assert_eq!(parse("1970-01-01T00:00:00-01:30"), Some(Wall::from_ms(5_400_000)));
        for bad in [
            "",
            "2030",
            "2030-02-30T00:00:00Z",
            "2030-13-01T00:00:00Z",
            "2030-01-01T24:00:00Z",
            "2030-01-01T00:00:00",
            "2030-01-01T00:00:00.Z",
            "2030-01-01T00:00:00+1:00",
            "2030-01-01T00:00:00+24:00",
            "+030-01-01T00:00:00Z",
            "2030-01-01T00:00:0éZ",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
