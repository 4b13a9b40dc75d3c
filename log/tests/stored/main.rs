//! What is stored: every engine, the journal, blobs, the archive, backups, and the bytes themselves.

#[path = "../archive/model.rs"]
mod model;
#[path = "../samples/mod.rs"]
mod samples;
#[path = "../storage/mod.rs"]
mod storage;

mod archive;
mod backup;
mod blobs;
mod codec;
mod conformance;
mod damage;
mod faults;
mod formats;
mod gate_codec;
mod journal;
