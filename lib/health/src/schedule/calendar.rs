//! Due instants from an expression and a zone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use onward_core::schedule::Timing;
use onward_core::time::{Wall, span_ms};

/// The shortest time between two instants of an interval. What is to happen more often is a loop.
pub const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// An expression longer than this is refused.
const MAX_EXPRESSION_BYTES: usize = 256;
/// The number of gaps that are compared to find the longest: more than two weeks of a daily schedule.
const GAPS_LOOKED_AT: usize = 16;

/// The reason why a schedule is refused. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TimingError {
    #[error(
        "cron expression \"{expression}\": {why}; write five fields (minute, hour, day of month, month, day of week), such as \"0 6 * * *\""
    )]
    Expression { expression: String, why: String },
    #[error(
        "no zone is called \"{zone}\"; use a name of the IANA time zone database, such as \"Europe/Berlin\" or \"UTC\""
    )]
    UnknownZone { zone: String },
    #[error("cron expression \"{expression}\" is never due; look at its day of month, month and year")]
    NeverDue { expression: String },
    #[error("an interval of {0:?} is too short; use at least {SHORTEST_INTERVAL:?}, or a loop")]
    TooShort(Duration),
}

/// The due instants of a schedule, ready to be asked for.
#[derive(Clone)]
pub struct Calendar(Kind);

#[derive(Clone)]
enum Kind {
    Cron { cron: Box<Cron>, zone: TimeZone },
    Every { ms: u64 },
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Cron { cron, zone } => write!(f, "cron {} in {}", cron.as_str(), zone.iana_name().unwrap_or("UTC")),
            Kind::Every { ms } => write!(f, "every {ms} ms"),
        }
    }
}

impl Calendar {
    pub fn new(timing: &Timing) -> Result<Self, TimingError> {
        match timing {
            Timing::Cron { expression, zone } => Self::cron(expression, zone),
            Timing::Every(interval) => Self::every(*interval),
        }
    }

    /// Five fields, or six with seconds in front, or seven with a year behind; and words such as `@daily`.
    pub fn cron(expression: &str, zone: &str) -> Result<Self, TimingError> {
        let refuse = |why: String| TimingError::Expression { expression: shortened(expression), why };
        if expression.len() > MAX_EXPRESSION_BYTES {
            return Err(refuse(format!("longer than {MAX_EXPRESSION_BYTES} bytes")));
        }
        let cron = Cron::from_str(expression).map_err(|error| refuse(error.to_string()))?;
        let zone = TimeZone::get(zone).map_err(|_| TimingError::UnknownZone { zone: shortened(zone) })?;
        let calendar = Self(Kind::Cron { cron: Box::new(cron), zone });
        if calendar.after(Wall::ZERO).next().is_none() {
            return Err(TimingError::NeverDue { expression: shortened(expression) });
        }
        Ok(calendar)
    }

    /// Every multiple of the interval since 1970, so that every process and every restart agree.
    pub fn every(interval: Duration) -> Result<Self, TimingError> {
        if interval < SHORTEST_INTERVAL {
            return Err(TimingError::TooShort(interval));
        }
        Ok(Self(Kind::Every { ms: span_ms(interval) }))
    }

    /// The due instants later than this, in order, each later than the one before.
    pub fn after(&self, after: Wall) -> CalendarInstants<'_> {
        CalendarInstants { calendar: self, last: after }
    }

    /// The longest time from one due instant to the next among the next few. None if there are not two of them.
    pub fn longest_gap(&self, after: Wall) -> Option<Duration> {
        let instants: Vec<Wall> = self.after(after).take(GAPS_LOOKED_AT + 1).collect();
        instants.windows(2).map(|pair| pair[1].since(pair[0])).max()
    }

    fn next(&self, after: Wall) -> Option<Wall> {
        match &self.0 {
            Kind::Every { ms } => Some(Wall::from_ms((after.as_ms() / ms).checked_add(1)?.checked_mul(*ms)?)),
            Kind::Cron { cron, zone } => {
                let mut from = zoned(after, zone)?;
                // In a gap two times of one expression may come to the same instant, which is due once.
                for _ in 0..2 {
                    from = cron.find_next_occurrence(&from, false).ok()?;
                    let found = wall(&from)?;
                    if found > after {
                        return Some(found);
                    }
                }
                None
            }
        }
    }
}

/// Due instants, in order.
#[derive(Clone, Debug)]
pub struct CalendarInstants<'a> {
    calendar: &'a Calendar,
    last: Wall,
}

impl Iterator for CalendarInstants<'_> {
    type Item = Wall;

    fn next(&mut self) -> Option<Wall> {
        self.last = self.calendar.next(self.last)?;
        Some(self.last)
    }
}

fn zoned(at: Wall, zone: &TimeZone) -> Option<Zoned> {
    let ms = i64::try_from(at.as_ms()).ok()?;
    Some(Timestamp::from_millisecond(ms).ok()?.to_zoned(zone.clone()))
}

fn wall(at: &Zoned) -> Option<Wall> {
    u64::try_from(at.timestamp().as_millisecond()).ok().map(Wall::from_ms)
}

/// The text of a user, shortened for an error.
fn shortened(text: &str) -> String {
    text.chars().take(MAX_EXPRESSION_BYTES).collect()
}

#[cfg(test)]
mod tests;
