//! Brings the data that dead programs with checkpoints left in memory to their tiers: `--checkpoints`. A thread that does nothing
//! else handles one arena at a time; where nothing has changed since, it looks at names and sizes alone. It ends with the process
//! at any point: the next thread finds the old data, or the data that it had published.

use std::path::{Path, PathBuf};
use std::time::Duration;
use tarn_checkpoint::destage::{DestageOutcome, DestagedArena, Destager};

/// From one look to the next.
const EVERY: Duration = Duration::from_secs(2);

/// A tier that is looked after.
struct DestageTier {
    path: PathBuf,
    memory: PathBuf,
    destager: Destager,
    /// Whether it was, the last time.
    readable: bool,
}

/// Begins, if there are tiers to look after.
pub(crate) fn start(tiers: &[(PathBuf, PathBuf)]) -> std::io::Result<()> {
    let tiers = tiers.iter().map(|(path, memory)| DestageTier {
        path: path.clone(),
        memory: memory.clone(),
        destager: Destager::new(path, memory),
        readable: true,
    });
    let mut all: Vec<DestageTier> = tiers.collect();
    if all.is_empty() {
        return Ok(());
    }
    let thread = std::thread::Builder::new().name("destage".into());
    let look = move || loop {
        all.iter_mut().for_each(look);
        std::thread::sleep(EVERY);
    };
    thread.spawn(look).map(drop)
}

fn look(tier: &mut DestageTier) {
    let runs = tier.destager.runs();
    let was = std::mem::replace(&mut tier.readable, runs.is_ok());
    if let (Err(e), true) = (&runs, was) {
        tracing::warn!("a tier of checkpoints cannot be read: {e}");
    }
    let Ok(runs) = runs else {
        return;
    };
    for run in runs {
        let mut log = |left| log_destaged(&tier.path, &tier.memory, left);
        // Those of other users are theirs.
        if let Err(why) = tier.destager.run(&run, &mut log) {
            tracing::debug!(run = %run.display(), "{why}");
        }
    }
}

fn log_destaged(tier: &Path, memory: &Path, left: DestagedArena) {
    let (path, rank) = (left.path.display(), left.rank);
    match left.what {
        DestageOutcome::Brought(versions) => {
            for (id, bytes) in versions {
                tracing::info!(
                    rank,
                    bytes,
                    "{path}: version {id} was in memory, and is on the tier now"
                );
            }
        }
        DestageOutcome::Lacking(ids) => {
            let (tier, memory) = (tier.display(), memory.display());
            for id in ids {
                tracing::warn!(
                    rank,
                    "{path}: the staged data of version {id} is damaged, or is not in {memory}: if the program uses another folder in memory, give that too, as --checkpoints {tier}:FOLDER"
                );
            }
        }
        DestageOutcome::Failed(fault) => tracing::warn!(rank, "{path}: {fault}"),
        DestageOutcome::Running(_) | DestageOutcome::Busy => {}
    }
}
