//! What this machine can do at best, whoever asks it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::runs::median;

/// The size of a record, about what a job with a small payload takes in a log.
const RECORD: usize = 200;
/// The size that the file has before: a sync then carries data alone.
const FILE: usize = 16 << 20;
const PING: usize = 128;

/// The number of times a second of each.
#[derive(Clone, Copy, Debug)]
pub struct MachineLimits {
    /// A record written and synced.
    pub sync: f64,
    /// Records, when 64 share a sync.
    pub records: f64,
    /// A message of 128 bytes to another process and back, over loopback TCP.
    pub round_trip: f64,
}

impl MachineLimits {
    pub fn measure(time: Duration) -> std::io::Result<Self> {
        let sync = syncs(RECORD, time)?;
        let records = 64.0 * syncs(64 * RECORD, time)?;
        let mut echo = Echo::start()?;
        Ok(Self { sync, records, round_trip: echo.round_trips(time)? })
    }

    /// The median of each.
    pub fn median(all: [Self; 3]) -> Self {
        let of = |what: fn(&Self) -> f64| median(all.iter().map(what).collect()).0;
        Self { sync: of(|one| one.sync), records: of(|one| one.records), round_trip: of(|one| one.round_trip) }
    }

    /// The most that one who waits for each answer can get: a commit and a round trip for each.
    pub fn one_in_flight(&self) -> f64 {
        1.0 / (1.0 / self.sync + 1.0 / self.round_trip)
    }
}

fn syncs(bytes: usize, time: Duration) -> std::io::Result<f64> {
    let folder = tempfile::tempdir()?;
    let file = File::create(folder.path().join("sync"))?;
    file.write_all_at(&vec![0; FILE], 0)?;
    file.sync_all()?;
    let data = vec![b'x'; bytes];
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let at = (count * bytes) % (FILE - bytes);
        file.write_all_at(&data, at as u64)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// This program once more, echoing what it is sent.
struct Echo {
    process: Child,
    stream: TcpStream,
}

impl Echo {
    fn start() -> std::io::Result<Self> {
        let program = std::env::current_exe()?;
        let mut process = Command::new(program).arg("--echo").stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut address)?;
        let stream = TcpStream::connect(address.trim())?;
        stream.set_nodelay(true)?;
        Ok(Self { process, stream })
    }

    fn round_trips(&mut self, time: Duration) -> std::io::Result<f64> {
        let mut buffer = [0; PING];
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < time {
            self.stream.write_all(&buffer)?;
            self.stream.read_exact(&mut buffer)?;
            count += 1;
        }
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Echoes one connection until it closes, for `--echo`.
pub fn echo() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; PING];
    while stream.read_exact(&mut buffer).is_ok() {
        stream.write_all(&buffer)?;
    }
    Ok(())
}
