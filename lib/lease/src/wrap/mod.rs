//! Work that beats by being done: each wrapper speaks because something came, never because time passed.

mod blocking;
mod command;
mod process_tree;
mod reader;
mod stream;
mod tally;

pub use command::CommandOutput;
pub use process_tree::ProcessTree;
pub use reader::BeatingReader;
pub use stream::Items;

#[cfg(test)]
pub(crate) mod tests;
