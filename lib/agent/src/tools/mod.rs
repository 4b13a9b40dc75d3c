//! Tools that are safe to give to a model, as far as such tools can be.
//!
//! - [`CommandTool`] runs programs that you name, without your environment, and ends whatever they started.
//! - [`Files`] reads, writes and lists below one folder. The kernel itself refuses paths and links that lead out of it.
//! - [`HttpGet`] fetches public pages. Addresses of your own network are refused, after the name was looked up, on the
//!   connected address, and at every redirect again.

mod command;
mod files;
mod http_get;
mod public_address;

pub use command::CommandTool;
pub use files::Files;
pub use http_get::HttpGet;
