//! Which jobs are meant, and which part of a list.

use core::fmt;
use core::time::Duration;

use super::escaped;

/// A filter for jobs; fields that are not given match all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobFilter {
    /// A state's word.
    pub state: Option<String>,
    pub kind: Option<String>,
    pub queue: Option<String>,
    pub tag: Option<String>,
    /// Only jobs with an attempt that has made no forward step for this long, and did not announce a silence.
    pub not_moving: Option<Duration>,
    /// Only jobs that were submitted within this time.
    pub since: Option<Duration>,
}

/// Shown as part of a query: `&kind=k&since_s=3600`.
impl fmt::Display for JobFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [("state", &self.state), ("kind", &self.kind), ("queue", &self.queue), ("tag", &self.tag)];
        for (name, value) in words {
            value.as_ref().map_or(Ok(()), |value| write!(f, "&{name}={}", escaped(value)))?;
        }
        for (name, span) in [("not_moving_s", self.not_moving), ("since_s", self.since)] {
            span.map_or(Ok(()), |span| write!(f, "&{name}={}", span.as_secs_f64()))?;
        }
        Ok(())
    }
}

/// A page of a list: its length at most, and its beginning, after the page that gave the cursor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// 1 to 1000.
    pub limit: usize,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: 100, cursor: None }
    }
}

impl Page {
    pub fn after(&self, cursor: String) -> Self {
        Self { cursor: Some(cursor), ..*self }
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit={}", self.limit)?;
        self.cursor.as_ref().map_or(Ok(()), |cursor| write!(f, "&cursor={}", escaped(cursor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_part_of_a_query() {
        let which = JobFilter {
            kind: Some("a b".into()),
            since: Some(Duration::from_secs(3_600)),
            not_moving: Some(Duration::from_millis(250)),
            ..JobFilter::default()
        };
        let page = Page::default().after("x/y".into());
        assert_eq!(format!("?{page}{which}"), "?limit=100&cursor=x%2Fy&kind=a%20b&not_moving_s=0.25&since_s=3600");
    }
}
