//! Everything that Onward decides, and nothing that it does.

pub mod backoff;
pub mod fence;
pub mod grant;
pub mod health;
pub mod lease;
pub mod pages;
pub mod time;
pub mod wheel;
