//! Turns the `.proto` files into Rust. The compiler is a crate: nobody needs `protoc`.

use std::error::Error;

const FILES: [&str; 4] =
    ["onward/v1/common.proto", "onward/v1/worker.proto", "onward/v1/jobs.proto", "onward/v1/gate.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(FILES, ["proto"])?;
    // Payloads are slices of the frame that they came in, not copies.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
