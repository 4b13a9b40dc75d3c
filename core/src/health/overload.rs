//! Overload.

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub enum OverloadLevel {
    #[default]
    Normal,
    Busy,
    Stressed,
    Overloaded,
}
