//! A list that stops keeping what it reads once it is too long, so that a million entries cost no memory.

use core::fmt;
use core::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::problem::Problem;

/// At most `MAX` entries are kept. Taking them out refuses a list that had more, by the name of its field.
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

impl<T, const MAX: usize> Few<T, MAX> {
    pub fn take(self, field: &str) -> Result<Vec<T>, Problem> {
        if self.seen <= MAX {
            return Ok(self.kept);
        }
        let detail = format!("`{field}` has {} entries; it may have {MAX} at most", self.seen);
        Err(Problem::invalid(detail).of_field(field))
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
                    few.kept.push(entry);
                    few.seen += 1;
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
    pub fn take(self, field: &str) -> Result<Vec<(String, String)>, Problem> {
        self.0.take(field)
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
                    few.kept.push(pair);
                    few.seen += 1;
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
        let problem = few.take("tags").unwrap_err();
        assert_eq!(problem.detail, "`tags` has 5 entries; it may have 3 at most");
        assert_eq!(problem.field.as_deref(), Some("tags"));
        let pairs: FewPairs<1> = serde_json::from_str(r#"{"b":"1"}"#).unwrap();
        assert_eq!(pairs.take("headers").unwrap(), [("b".to_owned(), "1".to_owned())]);
        assert!(serde_json::from_str::<FewPairs<1>>(r#"{"b":"1","a":"2"}"#).unwrap().take("headers").is_err());
    }
}
