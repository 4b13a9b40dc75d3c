//! What a node keeps in files beside log and archive: what attempts print, and tokens. Changes to them fail at random.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use onward_core::ids::Claim;
use onward_log::changes::faults::AtRandom;
use onward_node::auth::{Scope, Scopes, TokenFile, Tokens, read_or_make_token};
use onward_node::engine::Engine;
use onward_node::outputs::{
    KEEP_BYTES, OutputFolder, OutputRules, OutputStats, OutputStore, OutputTail, OutputWriteError, Outputs,
    UnwrittenOutput,
};
use onward_proto::worker::Output;
use tempfile::{TempDir, tempdir};
use tokio::task::spawn_blocking;

use crate::world::{Draw, Stop, answered};

/// What waits of one attempt, or is in its file, is cut to its end when it is longer.
const CUT_BYTES: usize = 2 * KEEP_BYTES;

/// Clones are the same files.
#[derive(Clone)]
pub struct Files(Arc<SharedFiles>);

struct SharedFiles {
    folder: TempDir,
    faults: AtRandom,
    known: Mutex<KnownFile>,
}

#[derive(Default)]
struct KnownFile {
    /// Of the node that runs.
    outputs: Option<Outputs>,
    /// All that was accepted of what an attempt has printed.
    printed: BTreeMap<Claim, Vec<u8>>,
    /// How it was found with files that are whole again, after which nobody prints any more.
    kept: Option<BTreeMap<Claim, Option<OutputTail>>>,
    tokens: BTreeMap<String, Token>,
    own: Option<String>,
}

/// What was said about a token.
enum Token {
    /// It may have been made, but nobody has its text.
    PerhapsMade,
    Made {
        text: String,
        scopes: Scopes,
    },
    PerhapsRevoked,
    Revoked {
        text: Option<String>,
    },
}

/// A folder of output in which changes fail.
struct Failing(OutputFolder, AtRandom);

impl OutputStore for Failing {
    fn scan(&mut self, stats: &OutputStats) -> io::Result<()> {
        self.1.within(|| self.0.scan(stats))
    }

    fn write(&mut self, claim: &Claim, printed: &UnwrittenOutput, now_ms: u64) -> Result<(), OutputWriteError> {
        self.1.within(|| self.0.write(claim, printed, now_ms))
    }

    fn read(&self, claim: &Claim) -> io::Result<Option<OutputTail>> {
        self.0.read(claim)
    }

    fn sweep(&mut self, now_ms: u64, stats: &OutputStats) -> io::Result<()> {
        self.1.within(|| self.0.sweep(now_ms, stats))
    }
}

impl Files {
    pub fn new(seed: u64) -> Self {
        let (folder, faults) = (tempdir().unwrap(), AtRandom::new(seed));
        Self(Arc::new(SharedFiles { folder, faults, known: Mutex::default() }))
    }

    pub fn faults(&self) -> &AtRandom {
        &self.0.faults
    }

    fn folder(&self) -> &Path {
        self.0.folder.path()
    }

    fn known(&self) -> MutexGuard<'_, KnownFile> {
        self.0.known.lock().unwrap()
    }

    /// A node begins.
    pub fn start(&self) {
        let folder = OutputFolder::new(self.folder().join("output"), OutputRules::default());
        let outputs = Outputs::start(Box::new(Failing(folder, self.faults().clone()))).unwrap();
        self.known().outputs = Some(outputs);
    }

    pub fn stop(&self) {
        let outputs = self.known().outputs.take();
        outputs.expect("it runs").stop();
    }

    fn outputs(&self) -> Outputs {
        self.known().outputs.clone().expect("it runs")
    }

    /// Of one attempt, one at a time.
    pub async fn print(&self, engine: &Engine, claim: Claim, data: &[u8]) -> Result<(), Stop> {
        let output = Output { claim, skipped: 0, data: data.to_vec().into() };
        let outputs = self.outputs();
        answered(outputs.offer_with_receipt(engine, output)).await?;
        self.known().printed.entry(claim).or_default().extend_from_slice(data);
        Ok(())
    }

    /// The node's own token, asked for until it is there.
    pub fn make_own_token(&self) -> Result<(), Stop> {
        let made = self.faults().within(|| read_or_make_token(self.folder())).map_err(|_| Stop::Refused)?;
        match &self.known().own {
            Some(own) if *own != made => Err(Stop::Wrong("the node's own token is another now".to_owned())),
            _ => Ok(()),
        }?;
        self.known().own = Some(made);
        Ok(())
    }

    /// One is made or revoked. `name` is one that nobody used before.
    pub async fn change_tokens(&self, name: String, draw: &mut Draw) -> Result<(), Stop> {
        let (roll, files) = (draw.below(1 << 20), self.clone());
        let changed = spawn_blocking(move || {
            let revoked = {
                let known = files.known();
                let names: Vec<&String> = known.tokens.keys().collect();
                (roll % 2 == 0 && !names.is_empty()).then(|| names[roll as usize / 2 % names.len()].clone())
            };
            match revoked {
                Some(name) => files.revoke(name),
                None => {
                    files.add(name, Scope::ALL.into_iter().filter(|scope| roll >> *scope as u64 & 4 != 0).collect())
                }
            }
            // Whatever was left unfinished is in nobody's way.
            TokenFile::open(files.folder()).map(drop).map_err(|error| Stop::Wrong(format!("half a file: {error}")))
        });
        changed.await.expect("it does not panic")
    }

    fn add(&self, name: String, scopes: Scopes) {
        let made = self.faults().within(|| TokenFile::add(self.folder(), &name, scopes.iter()));
        let token = made.map_or(Token::PerhapsMade, |made| Token::Made { text: made.text, scopes });
        self.known().tokens.insert(name, token);
    }

    fn revoke(&self, name: String) {
        let revoked = self.faults().within(|| TokenFile::revoke(self.folder(), &name));
        let mut known = self.known();
        let token = known.tokens.get_mut(&name).expect("it was chosen among them");
        match (&*token, revoked) {
            (Token::Revoked { .. }, _) => {}
            (Token::Made { text, .. }, Ok(_)) => *token = Token::Revoked { text: Some(text.clone()) },
            (_, Ok(_)) => *token = Token::Revoked { text: None },
            (Token::Made { .. }, Err(_)) => *token = Token::PerhapsRevoked,
            (_, Err(_)) => {}
        }
    }

    /// With a disk that is whole again: of this attempt the end is kept, and how much is missing before it is known. What
    /// it printed last was printed since the disk is whole.
    pub async fn check_end(&self, claim: Claim) -> Result<(), String> {
        let kept = self.read(claim).await?.ok_or("nothing is kept of what was printed last")?;
        let known = self.known();
        let printed = &known.printed[&claim];
        if kept.skipped + kept.data.len() as u64 != printed.len() as u64 || !printed.ends_with(&kept.data) {
            let found = (kept.skipped, kept.data.len(), printed.len());
            return Err(format!("output is no end of what was printed: {found:?} bytes"));
        }
        Ok(())
    }

    async fn read(&self, claim: Claim) -> Result<Option<OutputTail>, String> {
        self.outputs().read(claim).await.map_err(|error| format!("output cannot be read: {error}"))
    }

    /// With a disk that is whole again: what is kept is true to the byte, and what is not was said to be lost.
    pub async fn compare(&self) -> Result<(), String> {
        let printed = self.known().printed.clone();
        let (mut found, mut lost, mut is_whole) = (BTreeMap::new(), 0, true);
        for (claim, all) in &printed {
            let kept = self.read(*claim).await?;
            let (skipped, data) = kept.as_ref().map_or((0, &[][..]), |kept| (kept.skipped as usize, &kept.data[..]));
            let end = skipped + data.len();
            if all.get(skipped..end) != Some(data) {
                return Err(format!("output of {claim:?} is another: {skipped}..{end} of {}", all.len()));
            }
            // Of a long one something may have been pushed out by newer output, before that was lost.
            lost += if all.len() > CUT_BYTES { 0 } else { (all.len() - end) as u64 };
            is_whole &= end == all.len() && data.len() >= all.len().min(KEEP_BYTES);
            found.insert(*claim, kept);
        }
        let before = self.known().kept.take();
        if before.as_ref().is_some_and(|before| *before != found) {
            return Err("output was kept, and is another after a restart".to_owned());
        }
        // A node that was started since has said nothing.
        let dropped = self.outputs().stats().dropped_bytes.get();
        if before.is_none() && (lost > dropped || !is_whole && dropped == 0) {
            return Err(format!("{lost} bytes of output are lost, of which {dropped} were said to be"));
        }
        self.known().kept = Some(found);
        self.check_tokens()
    }

    fn check_tokens(&self) -> Result<(), String> {
        let tokens = TokenFile::open(self.folder()).map_err(|error| error.to_string())?;
        let names: Vec<String> = TokenFile::list(self.folder()).unwrap().into_iter().map(|token| token.name).collect();
        let known = self.known();
        for (name, token) in &known.tokens {
            let count = names.iter().filter(|found| *found == name).count();
            let is_right = match token {
                Token::PerhapsMade | Token::PerhapsRevoked => count <= 1,
                Token::Made { text, scopes } => {
                    count == 1 && tokens.find(text).is_some_and(|shown| shown.scopes == *scopes)
                }
                Token::Revoked { text } => count == 0 && text.as_ref().is_none_or(|text| tokens.find(text).is_none()),
            };
            if !is_right {
                return Err(format!("token {name} is there {count} times, and was acknowledged to be otherwise"));
            }
        }
        if let Some(name) = names.iter().find(|name| *name != "local" && !known.tokens.contains_key(*name)) {
            return Err(format!("nobody has made token {name}"));
        }
        match &known.own {
            Some(own) => {
                let again = read_or_make_token(self.folder()).map_err(|error| error.to_string())?;
                let is_good = again == *own && tokens.find(own).is_some_and(|shown| shown.scopes == Scopes::ALL);
                if is_good { Ok(()) } else { Err("the node's own token is no longer good".to_owned()) }
            }
            None => Ok(()),
        }
    }
}
