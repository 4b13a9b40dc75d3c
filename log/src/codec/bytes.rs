//! The smallest parts of the format: bytes, numbers, text, and lists of whatever has a stored form.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) use crate::row::put_number;
use crate::row::take_number;

use super::{DecodeError, Format};

/// Something with a stored form. What `put` writes, `get` reads.
pub(super) trait StoredForm: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError>;
}

/// The bytes that are left to read.
#[derive(Debug)]
pub(super) struct FieldReader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) format: Format,
}

const CUT_OFF: DecodeError = DecodeError::Corrupt("the row ends too early");

/// A count is only believed this far before the items themselves have been seen.
const BELIEVED: usize = 1024;

impl<'a> FieldReader<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, DecodeError> {
        let (&byte, rest) = self.bytes.split_first().ok_or(CUT_OFF)?;
        self.bytes = rest;
        Ok(byte)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.bytes.split_first_chunk().ok_or(CUT_OFF)?;
        self.bytes = rest;
        Ok(*array)
    }

    pub(super) fn number(&mut self) -> Result<u64, DecodeError> {
        take_number(&mut self.bytes)
    }

    pub(super) fn slice(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.number()?).map_err(|_| CUT_OFF)?;
        let (slice, rest) = self.bytes.split_at_checked(length).ok_or(CUT_OFF)?;
        self.bytes = rest;
        Ok(slice)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, DecodeError> {
        core::str::from_utf8(self.slice()?).map_err(|_| DecodeError::Corrupt("text that is not UTF-8"))
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(DecodeError::Corrupt("more bytes than there should be")) }
    }

    /// The error for a number that stands for nothing here: damage, or an entry of a newer version.
    pub(super) fn unknown(&self, what: &'static str, number: u64) -> DecodeError {
        if self.format.has_tails() { DecodeError::NewerVersion { what, number } } else { DecodeError::Corrupt(what) }
    }

    pub(super) fn list<T: StoredForm>(&mut self) -> Result<Vec<T>, DecodeError> {
        let count = self.number()?;
        self.items(count)
    }

    /// A list whose length is known already.
    pub(super) fn items<T: StoredForm>(&mut self, count: u64) -> Result<Vec<T>, DecodeError> {
        let mut list = Vec::with_capacity(usize::try_from(count).unwrap_or(usize::MAX).min(BELIEVED));
        for _ in 0..count {
            list.push(T::get(self)?);
        }
        Ok(list)
    }
}

pub(super) fn put_slice(slice: &[u8], out: &mut Vec<u8>) {
    put_number(slice.len() as u64, out);
    out.extend_from_slice(slice);
}

pub(super) fn put_list<T: StoredForm>(list: &[T], out: &mut Vec<u8>) {
    put_number(list.len() as u64, out);
    list.iter().for_each(|item| item.put(out));
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl StoredForm for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_number(u64::from(*self), out);
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                from.number()?.try_into().map_err(|_| DecodeError::Corrupt("a number that is too large for its field"))
            }
        }
    )*};
}

number!(u16, u32, u64);

impl StoredForm for i8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(from.byte()? as i8)
    }
}

impl StoredForm for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        match from.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Corrupt("neither true nor false")),
        }
    }
}

/// Stored as its bits: a value that is not a number stays the one that it was.
impl StoredForm for f64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bits().to_le_bytes());
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::from_bits(u64::from_le_bytes(from.array()?)))
    }
}

/// Exact: whole seconds, then nanoseconds.
impl StoredForm for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(self.as_secs(), out);
        put_number(u64::from(self.subsec_nanos()), out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (secs, nanos) = (from.number()?, u32::get(from)?);
        // More would carry over into the seconds, and might overflow them.
        if nanos >= 1_000_000_000 {
            return Err(DecodeError::Corrupt("more nanoseconds than make a second"));
        }
        Ok(Self::new(secs, nanos))
    }
}

macro_rules! text {
    ($($type:ty),*) => {$(
        impl StoredForm for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_slice(self.as_bytes(), out);
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                Ok(from.text()?.into())
            }
        }
    )*};
}

text!(Arc<str>, Box<str>);

impl StoredForm for Arc<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_slice(self, out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let slice = from.slice()?;
        // All that are empty share one.
        Ok(if slice.is_empty() { Self::default() } else { slice.into() })
    }
}

impl<T: StoredForm> StoredForm for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        from.list()
    }
}

impl<T: StoredForm> StoredForm for VecDeque<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(self.len() as u64, out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(from.list()?.into())
    }
}

impl<T: StoredForm> StoredForm for Box<[T]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(from.list()?.into_boxed_slice())
    }
}

macro_rules! pointer {
    ($($pointer:ident),*) => {$(
        impl<T: StoredForm> StoredForm for $pointer<T> {
            fn put(&self, out: &mut Vec<u8>) {
                T::put(self, out);
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                Ok($pointer::new(T::get(from)?))
            }
        }
    )*};
}

pointer!(Box, Arc);

impl<T: StoredForm> StoredForm for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl<T: StoredForm, E: StoredForm> StoredForm for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::get(from)? { Ok(T::get(from)?) } else { Err(E::get(from)?) })
    }
}

impl<A: StoredForm, B: StoredForm> StoredForm for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &[u8]) -> FieldReader<'_> {
        FieldReader { bytes, format: Format::Two }
    }

    #[test]
    fn numbers_take_the_bytes_that_they_need_and_no_more_than_64_bits() {
        for (number, length) in [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (u64::MAX, 10)] {
            let mut out = Vec::new();
            put_number(number, &mut out);
            assert_eq!(out.len(), length, "{number}");
            let mut reader = reader(&out);
            assert_eq!(reader.number(), Ok(number));
            assert!(reader.end().is_ok());
        }
        let above = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(reader(&above).number(), Err(DecodeError::Corrupt("a number above 64 bits")));
        assert_eq!(reader(&[0x80; 11]).number(), Err(DecodeError::Corrupt("a number above 64 bits")));
    }

    #[test]
    fn fields_refuse_what_does_not_fit_them() {
        assert!(u16::get(&mut reader(&[0xff, 0xff, 0x03])).is_ok());
        assert!(u16::get(&mut reader(&[0x80, 0x80, 0x04])).is_err(), "65536");
        assert!(bool::get(&mut reader(&[2])).is_err());
        assert!(Box::<str>::get(&mut reader(&[1, 0xff])).is_err(), "not UTF-8");
        let mut nanos = vec![1];
        put_number(1_000_000_000, &mut nanos);
        assert!(Duration::get(&mut reader(&nanos)).is_err());
    }

    #[test]
    fn a_count_without_items_takes_no_memory() {
        let mut out = Vec::new();
        put_number(u64::MAX, &mut out);
        assert_eq!(reader(&out).list::<u64>(), Err(CUT_OFF));
        assert_eq!(reader(&out).slice(), Err(CUT_OFF));
    }
}
