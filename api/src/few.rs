//! A list that stops keeping what it reads once it is too long, so that a million entries cost no memory.

use core::fmt;
use core::marker::PhantomData;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A list that had more entries than it may have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{field}` has {seen} entries; it may have {max} at most")]
pub struct TooMany {
    pub field: String,
    pub seen: usize,
    pub max: usize,
}

/// A list of which at most `MAX` entries are kept when it is read. Taking them out refuses a list that had more, by the
/// name of its field. One that is made here is written whole, and refused by its reader.
#[derive(Clone, PartialEq, Debug)]
pub struct Few<T, const MAX: usize> {
    kept: Vec<T>,
    seen: usize,
}

impl<T, const MAX: usize> Default for Few<T, MAX> {
    fn default() -> Self {
        Self { kept: Vec::new(), seen: 0 }
    }
}

impl<T, const MAX: usize> From<Vec<T>> for Few<T, MAX> {
    fn from(kept: Vec<T>) -> Self {
        Self { seen: kept.len(), kept }
    }
}

impl<T, const MAX: usize> Few<T, MAX> {
    pub fn push(&mut self, entry: T) {
        self.kept.push(entry);
        self.seen += 1;
    }

    pub fn take(self, field: &str) -> Result<Vec<T>, TooMany> {
        if self.seen <= MAX {
            return Ok(self.kept);
        }
        Err(TooMany { field: field.to_owned(), seen: self.seen, max: MAX })
    }
}

impl<T: Serialize, const MAX: usize> Serialize for Few<T, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.kept.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Few<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX} entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T, MAX>, A::Error> {
                let mut few = Few::default();
                while few.seen < MAX {
                    let Some(entry) = list.next_element()? else { return Ok(few) };
                    few.push(entry);
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    few.seen += 1;
                }
                Ok(few)
            }
        }

        deserializer.deserialize_seq(List(PhantomData))
    }
}

/// Pairs as an object, likewise bounded, in the order in which they were written.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FewPairs<const MAX: usize>(Few<(String, String), MAX>);

impl<const MAX: usize> FewPairs<MAX> {
    /// A name that is there already gets another value.
    pub fn set(&mut self, name: String, value: String) {
        match self.0.kept.iter_mut().find(|(known, _)| *known == name) {
            Some(pair) => pair.1 = value,
            None => self.0.push((name, value)),
        }
    }

    pub fn take(self, field: &str) -> Result<Vec<(String, String)>, TooMany> {
        self.0.take(field)
    }
}

impl<const MAX: usize> Serialize for FewPairs<MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.kept.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for FewPairs<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map<const MAX: usize>;

        impl<'de, const MAX: usize> Visitor<'de> for Map<MAX> {
            type Value = FewPairs<MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {MAX} texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FewPairs<MAX>, A::Error> {
                let mut few = Few::default();
                while few.seen < MAX {
                    let Some(pair) = map.next_entry()? else { return Ok(FewPairs(few)) };
                    few.push(pair);
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    few.seen += 1;
                }
                Ok(FewPairs(few))
            }
        }

        deserializer.deserialize_map(Map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_counted_and_not_kept() {
        let few: Few<u8, 3> = serde_json::from_str("[1,2,3]").unwrap();
        assert_eq!(few.take("tags").unwrap(), [1, 2, 3]);
        let few: Few<u8, 3> = serde_json::from_str("[1,2,3,{},[]]").unwrap();
        assert_eq!(few.kept.len(), 3);
        let error = few.take("tags").unwrap_err();
        assert_eq!(error.to_string(), "`tags` has 5 entries; it may have 3 at most");
        let pairs: FewPairs<1> = serde_json::from_str(r#"{"b":"1"}"#).unwrap();
        assert_eq!(pairs.take("headers").unwrap(), [("b".to_owned(), "1".to_owned())]);
        assert!(serde_json::from_str::<FewPairs<1>>(r#"{"b":"1","a":"2"}"#).unwrap().take("headers").is_err());
    }

    #[test]
    fn what_is_made_here_is_written_as_it_is_read() {
        let few: Few<u8, 3> = vec![1, 2].into();
        assert_eq!(serde_json::to_string(&few).unwrap(), "[1,2]");
        let mut pairs = FewPairs::<3>::default();
        for (name, value) in [("b", "1"), ("a", "2"), ("b", "3")] {
            pairs.set(name.into(), value.into());
        }
        assert_eq!(serde_json::to_string(&pairs).unwrap(), r#"{"b":"3","a":"2"}"#);
    }
}
