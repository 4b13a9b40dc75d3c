//! The end of a record: fields that it gained later, each under a tag.
//!
//! ```text
//! tail  = entry, entry, …, 0            (a record that gained nothing ends in the 0 alone)
//! entry = tag · length · value          (tag = 2 × number of the field + 1 if it is critical)
//! ```
//!
//! A field that has its default is not written, and what is not there has its default. A reader that does not know a
//! number passes over the value by its length: an *optional* field is carried along where the record has room for
//! that ([`CarriedFields`]) and is dropped otherwise; a *critical* one is refused, because whoever does not know it would get
//! the record wrong.

use onward_core::carried::CarriedFields;

use super::DecodeError;
use super::bytes::{FieldReader, StoredForm, put_number, put_slice};

const END: u8 = 0;
const CRITICAL: u64 = 1;

/// The number of a field with its class, as it is stored.
macro_rules! tag {
    ($number:literal optional) => {
        $number << 1
    };
    ($number:literal critical) => {
        $number << 1 | 1
    };
}

/// Ends a record: its later fields, and `keep`, what it carries for a newer version.
macro_rules! put_tail {
    ($out:ident; $($number:literal $added:ident: $class:ident;)* $(keep $carried:ident)?) => {{
        $($crate::codec::tail::put_entry(tag!($number $class), $added, $out);)*
        $($out.extend_from_slice(&$carried.0);)?
        $crate::codec::tail::put_end($out);
    }};
}

/// Reads what [`put_tail`] wrote: into these variables, which have their defaults, and gives what is not known.
macro_rules! get_tail {
    ($from:ident $what:expr;) => {
        $from.tail($what, |_, _| Ok(false))?
    };
    ($from:ident $what:expr; $($number:literal $added:ident),+) => {
        $from.tail($what, |number, value| {
            match number {
                $($number => $added = $crate::codec::bytes::StoredForm::get(value)?,)*
                _ => return Ok(false),
            }
            Ok(true)
        })?
    };
}

pub(super) fn put_entry<T: StoredForm + Default + PartialEq>(tag: u64, value: &T, out: &mut Vec<u8>) {
    if *value != T::default() {
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        put_number(tag, out);
        put_slice(&bytes, out);
    }
}

pub(super) fn put_end(out: &mut Vec<u8>) {
    out.push(END);
}

impl FieldReader<'_> {
    /// Gives every field to `known`, which says whether it knows the number; and what was optional and is not known.
    pub(super) fn tail(
        &mut self,
        what: &'static str,
        mut known: impl FnMut(u64, &mut Self) -> Result<bool, DecodeError>,
    ) -> Result<CarriedFields, DecodeError> {
        if !self.format.has_tails() {
            return Ok(CarriedFields::default());
        }
        let mut carried = Vec::new();
        loop {
            let tag = self.number()?;
            if tag == u64::from(END) {
                return Ok(CarriedFields(carried.into()));
            }
            let (number, slice) = (tag >> 1, self.slice()?);
            let mut value = Self { bytes: slice, format: self.format };
            if known(number, &mut value)? {
                value.end()?;
            } else if tag & CRITICAL == CRITICAL {
                return Err(DecodeError::NewerVersion { what, number });
            } else {
                put_number(tag, &mut carried);
                put_slice(slice, &mut carried);
            }
        }
    }
}
