//! Fields that a newer version stored with a record, and this one cannot read.

/// Fields of a record that a newer version may do without: carried along unread, and stored again with the record, so
/// that going back to an older version for a day does not lose them. Nearly always empty, which takes no memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CarriedFields(pub Box<[u8]>);
