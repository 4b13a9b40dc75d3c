//! The jobs side of the HTTP API, in process: every route, every way to say no, and that a no changes nothing.

mod access;
mod commands;
mod contents;
mod following;
mod listing;
mod operating;
mod rig;
mod schedules;
mod submitting;
