//! `Retry-After`: seconds, or an instant.

use core::time::Duration;
use std::time::SystemTime;

use hyper::HeaderMap;
use hyper::header::{DATE, HeaderName, RETRY_AFTER};

/// Longer waits are taken for this one. It is far above what is waited for here.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The pause that the server asks for. An instant counts from the server's own clock, if it tells that, else from
/// ours.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let after = text(RETRY_AFTER)?;
    if let Ok(seconds) = after.parse::<f64>() {
        let is_span = seconds.is_finite() && seconds >= 0.0;
        return is_span.then(|| Duration::from_secs_f64(seconds.min(LONGEST.as_secs_f64())));
    }
    let at = httpdate::parse_http_date(after).ok()?;
    let now = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
    // An instant that is over need not be waited for.
    Some(at.duration_since(now).unwrap_or_default().min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_instants() {
        // Sun, 06 Nov 1994 08:49:37 GMT.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (after, server, seconds) in [
            ("7", None, Some(7.0)),
            (" 0.5 ", None, Some(0.5)),
            ("1e300", None, Some(86_400.0)),
            ("-1", None, None),
            ("NaN", None, None),
            ("soon", None, None),
            ("Sun, 06 Nov 1994 08:49:50 GMT", None, Some(13.0)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", None, Some(0.0)),
            ("Sunday, 06-Nov-94 08:49:40 GMT", None, Some(3.0)),
            ("Sat, 06 Nov 2094 08:49:37 GMT", None, Some(86_400.0)),
            ("Sun, 06 Nov 1994 08:49:50 GMT", Some("Sun, 06 Nov 1994 08:49:40 GMT"), Some(10.0)),
            ("Sun, 06 Nov 1994 08:49:50 GMT", Some("today"), Some(13.0)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, after.parse().unwrap());
            server.into_iter().for_each(|server| drop(headers.insert(DATE, server.parse().unwrap())));
            let expected = seconds.map(Duration::from_secs_f64);
            assert_eq!(retry_after(&headers, now), expected, "{after} {server:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
