//! A connection that ends with the certificate that was shown on it.
//!
//! The handshake asks once whether a certificate is good. A session or a stream may last for weeks, and lives no longer than
//! what it was opened with; so the connection under it ends.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, ErrorKind, IoSlice};

use onward_core::time::Wall;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::clock;

/// A stream that fails once the certificate of the other end is good no more.
#[derive(Debug)]
pub struct Expiring<S> {
    stream: S,
    /// None where no certificate was shown.
    end: Option<Pin<Box<Sleep>>>,
}

impl<S> Expiring<S> {
    /// `chain`: what the other end has shown, its own certificate first, as `stream` found it good.
    pub fn new(stream: S, chain: Option<&[CertificateDer<'_>]>) -> io::Result<Self> {
        let Some(own) = chain.and_then(<[_]>::first) else { return Ok(Self { stream, end: None }) };
        let end = not_after(own).ok_or_else(|| io::Error::other("the end of a certificate cannot be read"))?;
        Ok(Self { stream, end: Some(Box::pin(sleep(end.since(clock::now().wall)))) })
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().map(|end| end.as_mut().poll(context)) {
            Some(Poll::Ready(())) => {
                Err(io::Error::new(ErrorKind::TimedOut, "the certificate of the other end has expired"))
            }
            Some(Poll::Pending) | None => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Expiring<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(context)?;
        Pin::new(&mut this.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Expiring<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(context)?;
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(context)?;
        Pin::new(&mut this.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Of the version, which the first one leaves out.
const VERSION: u8 = 0xa0;

/// The instant up to which a certificate is good (RFC 5280, 4.1).
fn not_after(certificate: &[u8]) -> Option<Wall> {
    let (fields, _) = take(certificate, SEQUENCE)?;
    let (mut fields, _) = take(fields, SEQUENCE)?;
    if let Some((_, rest)) = take(fields, VERSION) {
        fields = rest;
    }
    // Serial number, algorithm and issuer stand before it.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, fields) = take(fields, tag)?;
    }
    let (validity, _) = take(fields, SEQUENCE)?;
    let (_, not_after) = take_time(validity)?;
    take_time(not_after).map(|(at, _)| at)
}

/// The content of the element that comes first, if it has this tag, and what follows it.
fn take(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // As many bytes have the length; no certificate needs more than three.
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let content = rest.split_at_checked(length)?;
    (found == tag).then_some(content)
}

/// `YYMMDDHHMMSSZ` up to 2049, `YYYYMMDDHHMMSSZ` from then on.
fn take_time(bytes: &[u8]) -> Option<(Wall, &[u8])> {
    let (text, rest, digits_of_year) = match take(bytes, UTC_TIME) {
        Some((text, rest)) => (text, rest, 2),
        None => take(bytes, GENERALIZED_TIME).map(|(text, rest)| (text, rest, 4))?,
    };
    let text = core::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, others) = text.split_at_checked(digits_of_year)?;
    if others.len() != 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let year: u64 = year.parse().ok()?;
    let year = match digits_of_year {
        2 if year < 50 => 2_000 + year,
        2 => 1_900 + year,
        _ => year,
    };
    let part = |at: usize| others[at..at + 2].parse::<u64>().ok();
    let days = days_since_1970(year, part(0)?, part(2)?)?;
    let seconds = days * 86_400 + part(4)? * 3_600 + part(6)? * 60 + part(8)?;
    Some((Wall::from_ms(seconds * 1_000), rest))
}

/// By the calendar whose years begin in March, so that the odd day is the last. What was before 1970 is its beginning:
/// long ago either way.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    const TO_1970: u64 = 719_468;
    if !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let year = year.checked_sub(u64::from(month <= 2))?;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some((year * 365 + year / 4 - year / 100 + year / 400 + day_of_year).saturating_sub(TO_1970))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read() {
        let key = KeyPair::generate().unwrap();
        for ((year, month, day), second) in [
            ((1970, 1, 1), 5),
            ((2000, 2, 29), 86_399),
            ((2024, 2, 29), 0),
            ((2026, 12, 31), 86_399),
            ((2049, 12, 31), 86_399),
            ((2050, 1, 1), 0),
            ((2100, 3, 1), 3_723),
            ((4096, 1, 1), 0),
        ] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, month, day) + Duration::from_secs(second);
            let seconds = u64::try_from(params.not_after.unix_timestamp()).unwrap();
            let signed = params.self_signed(&key).unwrap();
            assert_eq!(not_after(signed.der()), Some(Wall::from_ms(seconds * 1_000)), "{year}-{month}-{day}");
            // Nothing that is cut off is read past its end.
            for length in 0..signed.der().len() {
                let _ = not_after(&signed.der()[..length]);
            }
        }
    }
}
