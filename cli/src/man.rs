//! `onward man`: a page for each command, in a folder that `man` reads.

use std::path::Path;

use anyhow::Result;
use clap::CommandFactory as _;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::CommandFailure;
use crate::screen::Screen;

/// Writes `onward.1`, `onward-submit.1` and so on, and says how many there are.
pub fn write(out: &Path, screen: &Screen) -> Result<u8> {
    let cannot = |error| CommandFailure::new(format!("cannot write manual pages to {}", out.display())).why(error);
    std::fs::create_dir_all(out).map_err(cannot)?;
    let mut command = Cli::command();
    command.build();
    let pages = write_pages(command, out).map_err(cannot)?;
    screen.line(format!("wrote {pages} manual pages to {}", out.display()))?;
    Ok(0)
}

fn write_pages(command: clap::Command, out: &Path) -> std::io::Result<usize> {
    let mut pages = 1;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages += write_pages(inner.clone(), out)?;
    }
    Man::new(command).manual("Onward").generate_to(out)?;
    Ok(pages)
}
