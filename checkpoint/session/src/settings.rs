//! The settings of a session: each is from the program, else from the environment.

use crate::environment::{may_begin, path, text};
use rustix::thread::CpuSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode, ExternalStore, StagingShare};
use tarn_dirty_pages::Tracker;
use tarn_media::{Device, ExternalFolder, Folder, Profile};
use tarn_types::units::parse_rate;

/// The folder that all runs of a user have in memory begins with this.
pub(crate) const MEMORY: &str = "tarn-phx-";

/// The tracker of the pages that the program writes; with `mprotect` it must be that.
pub(crate) fn tracker(mprotect: bool) -> Result<Option<Tracker>, CheckpointError> {
    if !mprotect {
        return Ok(Tracker::probe().ok());
    }
    let tracker = Tracker::by_mprotect();
    Ok(Some(tracker.map_err(|e| {
        CheckpointError::new(CheckpointErrorCode::Unsupported, e.to_string())
    })?))
}

/// The profile of a slower tier, if one is to be emulated.
pub(crate) fn profile_of(given: Option<String>) -> Result<Profile, CheckpointError> {
    given.map_or_else(
        || Ok(Profile::none()),
        |p| Profile::named(&p).map_err(|e| invalid(e.to_string())),
    )
}

/// The part that is staged where nothing else is requested. A tier in memory is as fast as memory.
pub(crate) fn staging_of(slow: bool, tier: &Path) -> StagingShare {
    if !slow && tarn_sys::memory::in_memory(tier) {
        StagingShare::None
    } else {
        StagingShare::Half
    }
}

/// The program's name: as it is given, or from the environment.
pub(crate) fn name_of(given: Option<String>) -> Result<String, CheckpointError> {
    let name = given.or_else(|| text("TARN_PHX_RUN"));
    let name = name.unwrap_or_else(|| "phx".into());
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(invalid(format!(
            "the run's name is {name:?}; it has 1 to 200 letters, digits, '.', '_' and '-', and begins with no '.'"
        )));
    }
    Ok(name)
}

/// The folders on the persistent tier and in memory; each is there, or may be made.
pub(crate) fn folders(
    tier: Option<PathBuf>,
    memory: Option<PathBuf>,
) -> Result<(PathBuf, PathBuf), CheckpointError> {
    let tier = tier_of(tier)?;
    let memory = memory.or_else(|| path("TARN_PHX_MEMORY"));
    let memory = memory.unwrap_or_else(|| "/dev/shm".into());
    may_begin(&tier, "the persistent tier (`tier`, or TARN_PHX_TIER)")?;
    may_begin(
        &memory,
        "the folder of memory (`memory`, or TARN_PHX_MEMORY)",
    )?;
    Ok((tier, memory))
}

/// The folder on the persistent tier: as it is given, or from the environment.
pub(crate) fn tier_of(given: Option<PathBuf>) -> Result<PathBuf, CheckpointError> {
    given.or_else(|| path("TARN_PHX_TIER")).ok_or_else(|| {
        invalid("no persistent tier: set `tier`, or TARN_PHX_TIER, to a folder on it")
    })
}

/// The store that versions are flushed to, and which versions.
pub(crate) fn external_store(
    folder: Option<PathBuf>,
    every: Option<u64>,
    rate: Option<u64>,
    run: &str,
) -> Result<Option<ExternalStore>, CheckpointError> {
    let every = match (every, text("TARN_PHX_FLUSH_EVERY")) {
        (Some(every), _) => every,
        (None, None) => 0,
        (None, Some(text)) => text.parse().map_err(|_| {
            let text =
                format!("TARN_PHX_FLUSH_EVERY is {text:?}: give a number of versions, 0 for none");
            invalid(text)
        })?,
    };
    let rate = match (rate, text("TARN_PHX_FLUSH_RATE")) {
        (Some(rate), _) => rate,
        (None, None) => 0,
        (None, Some(text)) => {
            parse_rate(&text).map_err(|e| invalid(format!("TARN_PHX_FLUSH_RATE: {e}")))?
        }
    };
    let Some(folder) = folder else {
        return match every {
            0 => Ok(None),
            _ => Err(invalid(format!(
                "every {every}. version is to be flushed, and there is no external store: set `external`, or TARN_PHX_EXTERNAL, to a folder on it"
            ))),
        };
    };
    let store = ExternalFolder::new(&folder, Path::new(run)).map_err(|e| {
        match CheckpointError::from(e) {
            CheckpointError {
                code: CheckpointErrorCode::NotFound,
                text,
            } => invalid(format!("{text}; is it mounted on this node?")),
            other => other,
        }
    })?;
    Ok(Some(ExternalStore {
        store: Arc::new(store),
        every,
        rate,
    }))
}

pub(crate) fn invalid(text: impl Into<String>) -> CheckpointError {
    CheckpointError::new(CheckpointErrorCode::Invalid, text)
}

pub(crate) fn random() -> Result<u128, CheckpointError> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let got =
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += got.map_err(|e| {
            CheckpointError::new(CheckpointErrorCode::Io, format!("no random numbers: {e}"))
        })?;
    }
    Ok(u128::from_le_bytes(bytes))
}

/// The thread stays on these processors; where it may not, it goes where it is sent.
pub(crate) fn stay_on(processors: &[usize]) {
    if !processors.is_empty() {
        let mut set = CpuSet::new();
        processors.iter().for_each(|p| set.set(*p));
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// A key: `hex:` and its 64 hexadecimal digits, or a file that holds them, for its owner alone.
pub(crate) fn key(given: &Path) -> Result<[u8; 32], CheckpointError> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    if let Some(text) = given.as_os_str().as_bytes().strip_prefix(b"hex:") {
        let text = String::from_utf8_lossy(text);
        return digits(&text)
            .ok_or_else(|| invalid("the key after hex: is not 64 hexadecimal digits"));
    }
    let bad = |why: String| invalid(format!("the key in {}: {why}", given.display()));
    let meta = std::fs::metadata(given).map_err(|e| bad(e.to_string()))?;
    if meta.mode() & 0o077 != 0 {
        return Err(bad("others can read it: chmod 600".into()));
    }
    let text = std::fs::read_to_string(given).map_err(|e| bad(e.to_string()))?;
    digits(text.trim()).ok_or_else(|| bad("it is not 64 hexadecimal digits".into()))
}

fn digits(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| Some(c.to_digit(16)? as u8)).collect();
    let digits = digits.filter(|d| d.len() == 64)?;
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(key)
}

/// The folder of a run in memory: below the one of this user.
pub(crate) fn memory_of(
    folder: &Path,
    name: &str,
    plain: Arc<Device>,
) -> Result<PathBuf, CheckpointError> {
    let user = rustix::process::geteuid().as_raw();
    let memory = folder.join(format!("{MEMORY}{user}"));
    // A user who may write to it could replace the run's folder by another.
    Folder::new(&memory, plain)?;
    Ok(memory.join(name))
}
