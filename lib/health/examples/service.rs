//! The example of `docs/health.md`; a test holds them to be the same.
use std::path::PathBuf;
use std::time::Duration;

use onward_health::{Budget, Loop, Outcome, Supervisor, Turn};

/// Sends what lies in the folder `due`. Errors are simply returned: the supervisor counts them, waits, and goes on.
async fn send_invoices(turn: Turn, folder: PathBuf) -> Result<Outcome, std::io::Error> {
    let mut sent = 0;
    let mut due = tokio::fs::read_dir(folder.join("due")).await?;
    while let Some(invoice) = due.next_entry().await? {
        tokio::fs::rename(invoice.path(), folder.join("sent").join(invoice.file_name())).await?;
        turn.progress(1); // a forward step: a long turn stays fresh by it
        sent += 1;
    }
    // The folder was really looked into, so finding nothing is a success as well.
    Ok(if sent == 0 { Outcome::Idle } else { Outcome::Progress(sent) })
}

#[tokio::main]
pub async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::var("INVOICES")?);
    let service = Supervisor::new("billing")
        .probes(&std::env::var("PROBES").unwrap_or("0.0.0.0:8081".into()))
        .ready_file(folder.join("ready"))
        .systemd();
    service.add(
        Loop::new("invoices", move |turn| send_invoices(turn, folder.clone()))
            .every(Duration::from_millis(250))
            .critical() // the probes depend on it
            .freshness(Duration::from_secs(60)) // how long one success lasts
            .budget(Budget::Consecutive(3)) // failures that are tolerated
            .backoff(Duration::from_millis(250), Duration::from_secs(1)),
    );
    service.run().await?; // until SIGTERM or SIGINT; the turn under way is ended
    Ok(())
}
