//! The guard as a program of its own. The binary `onward` is one too, by its hidden subcommand.

use std::process::ExitCode;

fn main() -> ExitCode {
    onward_exec::guard::main(std::env::args_os().skip(1))
}
