//! The program under load.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::contest::ContestError;

/// A node in a process of its own, which ends with this.
#[derive(Debug)]
pub struct NodeProcess {
    process: Child,
    pub url: String,
}

impl NodeProcess {
    pub fn start(folder: &Path) -> Result<Self, ContestError> {
        Self::start_on(folder, "embedded")
    }

    /// Starts a node with its data where this setting says.
    pub fn start_on(folder: &Path, storage: &str) -> Result<Self, ContestError> {
        let mut command = Command::new(program()?);
        command.args(["--json", "up", "--slots", "0", "--listen", "127.0.0.1:0", "--data"]).arg(folder);
        command.args(["--storage", storage]);
        // Ours alone; the program is measured as its users have it.
        command
            .env_remove(crate::KEEPING)
            .env("ONWARD_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut process = command.spawn()?;
        let mut first = String::new();
        BufReader::new(process.stdout.take().ok_or("its output is not there")?).read_line(&mut first)?;
        let told: serde_json::Value = serde_json::from_str(&first).unwrap_or_default();
        let Some(url) = told["ready"].as_str() else {
            let _ = process.kill();
            let _ = process.wait();
            return Err(format!("the node did not start; it said: {first:?}").into());
        };
        Ok(Self { url: url.to_owned(), process })
    }

    /// Ends it as an operator does, and waits for it. Dropping it instead is a kill.
    pub fn stop(mut self) -> Result<(), ContestError> {
        let pid = i32::try_from(self.process.id())?;
        let pid = rustix::process::Pid::from_raw(pid).ok_or("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.process.wait()?;
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until every job that has ended is in the archive.
    pub async fn rest(&self) -> Result<(), ContestError> {
        let client = onward::Client::connect(&self.url)?;
        loop {
            let status: serde_json::Value = client.get("/status").await?;
            let count = |name: &str| status["manager"][name].as_u64().ok_or("no count of jobs in the status");
            if count("jobs")? == count("open_jobs")? {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program beside this one, made anew where cargo runs us.
pub fn program() -> Result<PathBuf, ContestError> {
    static BUILT: std::sync::OnceLock<Result<PathBuf, String>> = std::sync::OnceLock::new();
    let built = || {
        if let Some(program) = std::env::var_os("ONWARD_PROGRAM") {
            return Ok(PathBuf::from(program));
        }
        if let Some(cargo) = std::env::var_os("CARGO") {
            let build = Command::new(cargo).args(["build", "--release", "--locked", "-p", "onward-cli"]).status();
            if !build.is_ok_and(|status| status.success()) {
                return Err("`cargo build --release -p onward-cli` failed".into());
            }
        }
        let here = std::env::current_exe().map_err(|error| error.to_string())?;
        let program = here.with_file_name("onward");
        let why = || format!("{} is not there; run `cargo build --release` first", program.display());
        program.exists().then_some(program.clone()).ok_or_else(why)
    };
    Ok(BUILT.get_or_init(built).clone()?)
}
