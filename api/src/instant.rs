//! Instants as RFC 3339 in UTC with milliseconds, and back.

use core::fmt;
use core::str::FromStr;

use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;
use jiff::{SignedDuration, Timestamp};
use onward_core::time::Wall;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// An instant of an answer. One after the year 9999 is written as the end of that year.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct At(pub Wall);

/// The error for anything that is no instant from 1970 to 9999.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this is no instant from 1970 to 9999; write it like 2030-01-31T09:30:00Z or in milliseconds since 1970")]
pub struct NoInstant;

/// The first millisecond of 1970, and the last one of 9999, which a [`Timestamp`] cannot hold.
const EPOCH: DateTime = jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0);
const END_MS: u64 = 253_402_300_799_999;
const DAY_S: i32 = 86_400;

impl At {
    pub const fn from_ms(ms: u64) -> Self {
        Self(Wall::from_ms(ms))
    }

    pub const fn as_ms(self) -> u64 {
        self.0.as_ms()
    }

    /// The timestamp to the millisecond; the very end of the year 9999 is a little earlier.
    pub fn timestamp(self) -> Timestamp {
        let ms = i64::try_from(self.as_ms()).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.as_ms().min(END_MS) as i64;
        write!(f, "{:.3}Z", EPOCH.saturating_add(SignedDuration::from_millis(ms)))
    }
}

impl FromStr for At {
    type Err = NoInstant;

    /// RFC 3339, with what ISO 8601 allows besides: `2030-01-31T09:30:00[.fraction](Z|+hh:mm|-hh:mm)`.
    fn from_str(text: &str) -> Result<Self, NoInstant> {
        let pieces = Pieces::parse(text).map_err(|_| NoInstant)?;
        let (time, offset) = pieces.time().zip(pieces.to_numeric_offset()).ok_or(NoInstant)?;
        if pieces.time_zone_annotation().is_some() || offset.seconds().abs() >= DAY_S {
            return Err(NoInstant);
        }
        let local = EPOCH.duration_until(pieces.date().to_datetime(time));
        let ms = (local - SignedDuration::from_secs(offset.seconds().into())).as_millis();
        let known = u64::try_from(ms).ok().filter(|ms| *ms <= END_MS && !local.is_negative());
        known.map(Self::from_ms).ok_or(NoInstant)
    }
}

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for At {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        WrittenInstant::deserialize(deserializer)?.instant().map_err(de::Error::custom)
    }
}

/// An instant as a client wrote it: RFC 3339, or milliseconds since 1970. It is looked at when its field is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum WrittenInstant {
    Text(String),
    Ms(u64),
}

impl WrittenInstant {
    pub fn instant(&self) -> Result<At, NoInstant> {
        match self {
            Self::Text(text) => text.parse(),
            Self::Ms(ms) if *ms <= END_MS => Ok(At::from_ms(*ms)),
            Self::Ms(_) => Err(NoInstant),
        }
    }
}

impl<'de> Deserialize<'de> for WrittenInstant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = WrittenInstant;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an instant: RFC 3339 text, or whole milliseconds since 1970")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WrittenInstant, E> {
                Ok(WrittenInstant::Text(text.into()))
            }

            fn visit_u64<E: de::Error>(self, ms: u64) -> Result<WrittenInstant, E> {
                Ok(WrittenInstant::Ms(ms))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<u64> {
        text.parse::<At>().ok().map(At::as_ms)
    }

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
            assert_eq!(At::from_ms(ms).to_string(), text);
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        assert_eq!(At::from_ms(u64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn offsets_and_fractions_are_understood_and_nonsense_is_not() {
        for good in ["1970-01-01T00:00:01.8Z", "1970-01-01t01:00:01.800999+01:00", "1970-01-01 00:00:01.80z"] {
            assert_eq!(parse(good), Some(1_800), "{good}");
        }
        assert_eq!(parse("1969-12-31T23:00:00-01:00"), None);
        assert_eq!(parse("1970-01-01T00:00:00-01:30"), Some(5_400_000));
        for bad in [
            "",
            "2030",
            "2030-01-01",
            "2030-02-30T00:00:00Z",
            "2030-13-01T00:00:00Z",
            "2030-01-01T24:00:00Z",
            "2030-01-01T00:00:00",
            "2030-01-01T00:00:00.Z",
            "2030-01-01T00:00:00+1:00",
            "2030-01-01T00:00:00+24:00",
            "2030-01-01T00:00:00Z[UTC]",
            "+030-01-01T00:00:00Z",
            "2030-01-01T00:00:0éZ",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "9999-12-31T23:59:59-01:00",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn both_spellings_are_read() {
        for (json, ms) in [("\"1970-01-01T00:00:01Z\"", 1_000), ("1500", 1_500)] {
            assert_eq!(serde_json::from_str::<At>(json).unwrap().as_ms(), ms);
        }
        assert!(serde_json::from_str::<At>("\"yesterday\"").is_err());
        assert!(serde_json::from_str::<At>("-1").is_err());
    }
}
