//! The commands of docs/datacenters.md, word for word, and what it says that they print.

use std::path::Path;
use std::process::Command;

use super::support::{in_own_environment, own_loopback};

#[test]
fn the_page_about_datacenters_is_true() {
    let folder = tempfile::tempdir().expect("a folder");
    let page =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace").join("docs/datacenters.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let block = |kind: &str| -> Vec<&str> {
        page.split(&format!("```{kind}\n")).skip(1).map(|rest| rest.split("```").next().expect("a block")).collect()
    };
    // The reader's nodes have these ports; so have ours, on an address of our own.
    let own = own_loopback().replace(":0", "");
    let script = block("sh").concat().replace("127.0.0.1:740", &format!("{own}:740"));
    let script = format!("trap 'kill -9 $(cat *.pid) 2>/dev/null; wait' EXIT\nset -e\n{script}");
    let file = folder.path().join("script.sh");
    std::fs::write(&file, script).expect("a file");
    let binary = Path::new(env!("CARGO_BIN_EXE_onward")).parent().expect("a folder").display().to_string();
    let path = format!("{binary}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = in_own_environment(Command::new("sh"));
    let output = command.arg(&file).current_dir(folder.path()).env("PATH", path).output().expect("sh starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let log = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    // The first block draws the picture.
    let said = block("text")[1..].concat();
    let logs = ["gate.log", "manager-1.log", "manager-2.log"].map(log).concat();
    assert_eq!(text(&output.stdout), said, "{}\n{logs}", text(&output.stderr));
}
