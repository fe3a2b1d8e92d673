//! The live status of an active run: a small file in its folder, for readers in other shells and on other nodes.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_types::nodes::{LIVE_FORMAT, LiveRunStatus};

/// Bytes of such a file: twice the size of [`tarn_types::bounds::MAX_LIVE`] entries of each kind.
const MAX_LIVE_BYTES: u64 = 4 << 20;
/// The time after which an unchanged count is not believed: some five times the interval between two counts.
const STALE: Duration = Duration::from_secs(5);

/// Replaces the file's content atomically. It is not made durable: after a crash nobody believes it.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, live: &LiveRunStatus) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(live)?)?;
    std::fs::rename(&new, path)
}

/// Removes it, if it is there.
pub fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// Reads such a file again and again.
pub struct LiveReader {
    path: PathBuf,
    /// Process and count that were read last, and when first.
    last: Option<(u32, u64, Instant)>,
}

impl LiveReader {
    /// For a file that need not be there.
    pub fn new(path: PathBuf) -> Self {
        Self { path, last: None }
    }

    /// The status of the process `holder` (`None`: not known), and when it was read first. `None` if there is no status, if
    /// it has not changed for 5 s of `now`, or if another process or another version of tarn has written it.
    pub fn look(&mut self, holder: Option<u32>, now: Instant) -> Option<(LiveRunStatus, Instant)> {
        let live = read(&self.path)?;
        if live.format != LIVE_FORMAT || holder.is_some_and(|pid| pid != live.pid) {
            return None;
        }
        let since = match self.last {
            Some((pid, beat, since)) if (pid, beat) == (live.pid, live.beat) => since,
            _ => now,
        };
        self.last = Some((live.pid, live.beat, since));
        (now.saturating_duration_since(since) < STALE).then_some((live, since))
    }
}

fn read(path: &Path) -> Option<LiveRunStatus> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MAX_LIVE_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(pid: u32, beat: u64) -> LiveRunStatus {
        LiveRunStatus {
            format: LIVE_FORMAT,
            pid,
            beat,
            now: beat,
            transfers: Vec::new(),
            steps: Vec::new(),
        }
    }

    #[test]
    fn only_what_its_process_has_just_said_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live");
        let mut reader = LiveReader::new(path.clone());
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(reader.look(Some(7), begun), None);
        write(&path, &live(7, 1)).unwrap();
        assert_eq!(reader.look(Some(7), begun), Some((live(7, 1), begun)));
        // Somebody else's process has the run's lock: this is of one that died.
        assert_eq!(reader.look(Some(8), begun), None);
        assert_eq!(reader.look(Some(7), after(4)), Some((live(7, 1), begun)));
        assert_eq!(reader.look(Some(7), after(5)), None);
        write(&path, &live(7, 2)).unwrap();
        assert_eq!(reader.look(None, after(6)), Some((live(7, 2), after(6))));
        // The same count of another process is something new.
        write(&path, &live(9, 2)).unwrap();
        assert_eq!(reader.look(None, after(20)), Some((live(9, 2), after(20))));
        let strange = LiveRunStatus {
            format: 2,
            ..live(9, 3)
        };
        write(&path, &strange).unwrap();
        assert_eq!(reader.look(None, after(21)), None);
        for garbage in ["", "{}", "{\"format\":1"] {
            std::fs::write(&path, garbage).unwrap();
            assert_eq!(reader.look(None, after(22)), None, "{garbage}");
        }
        remove(&path);
        assert_eq!(reader.look(None, after(23)), None);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
