//! `tarn ckpt`: the checkpoints of this node, whether they are whole, and the models' results for a machine. It reads: nothing is
//! locked, nothing is written, even while a program writes checkpoints; only `drain` writes, and only to the external store, and
//! `destage`, to the tier.

mod destage;
mod drain;
mod list;
mod model;
mod numbers;
mod show;
mod verify;
mod version_catalog;

use crate::argument::ArgumentError;
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use clap::{Args, Subcommand};
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use tarn_checkpoint_core::{PersistenceLevel, VersionId};
use tarn_ports::PowerFail;
use tarn_types::codes::Exit;

#[derive(Debug, Subcommand)]
pub(crate) enum CkptCommand {
    /// The versions that this node has, and whether they can be restored from it
    Ls {
        /// The program's name [default: all]
        run: Option<OsString>,
        #[command(flatten)]
        place: CheckpointLocation,
        /// The program's folder on the external store
        #[arg(long, value_name = "DIR", env = "TARN_PHX_EXTERNAL")]
        external: Option<PathBuf>,
    },
    /// The objects of a version: keys, sizes, shapes, and where their pieces are
    Show {
        /// The program's name
        run: OsString,
        /// The version, such as 2.7: the seventh of the second start [default: the newest]
        #[arg(value_parser = version)]
        version: Option<VersionId>,
        #[command(flatten)]
        place: CheckpointLocation,
    },
    /// Read every byte and compare it with its checksum
    Verify {
        /// The program's name
        run: OsString,
        /// The version, such as 2.7 [default: all of them]
        #[arg(value_parser = version)]
        version: Option<VersionId>,
        #[command(flatten)]
        place: CheckpointLocation,
    },
    /// Copy a version of a program that has ended to an external store, which outlives this node
    Drain(drain::DrainArgs),
    /// Copy staged data that dead programs left in memory to their arenas on the tier
    Destage(destage::DestageArgs),
    /// Models: the probability of losing a checkpoint, the best interval, the energy, and advice
    Model(Box<model::ModelArgs>),
}

/// Where checkpoints are.
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckpointLocation {
    /// The program's folder on the persistent tier
    #[arg(long, value_name = "DIR", env = "TARN_PHX_TIER")]
    tier: PathBuf,
    /// The program's folder in memory
    #[arg(
        long,
        value_name = "DIR",
        env = "TARN_PHX_MEMORY",
        default_value = "/dev/shm"
    )]
    memory: PathBuf,
}

impl CheckpointLocation {
    /// The message that staged data is not in memory, and what to do.
    fn is_not_in_memory(&self) -> String {
        format!(
            "is not in {}: if the program uses another folder in memory, give that as --memory",
            printable(self.memory.as_os_str().as_bytes())
        )
    }
}

pub(crate) fn ckpt(globals: &Globals, command: &CkptCommand) -> CliResult {
    match command {
        CkptCommand::Ls {
            run,
            place,
            external,
        } => list::ls(globals, place, run.as_deref(), external.as_deref()),
        CkptCommand::Drain(args) => drain::drain(globals, args),
        CkptCommand::Destage(args) => destage::destage(globals, args),
        CkptCommand::Show {
            run,
            version,
            place,
        } => show::show(globals, place, run, *version),
        CkptCommand::Verify {
            run,
            version,
            place,
        } => verify::verify(globals, place, run, *version),
        CkptCommand::Model(args) => model::model(globals, args),
    }
}

fn version(text: &str) -> Result<VersionId, ArgumentError> {
    let parsed = text.split_once('.').and_then(|(generation, number)| {
        Some(VersionId {
            generation: generation.parse().ok()?,
            number: number.parse().ok()?,
        })
    });
    parsed.ok_or_else(|| {
        ArgumentError::new("a version is two numbers, such as 2.7; `tarn ckpt ls` lists them")
    })
}

fn named(id: VersionId) -> String {
    format!("{}.{}", id.generation, id.number)
}

/// The error for a requested version that does not exist.
fn no_version(
    run: &str,
    id: Option<VersionId>,
    there: impl Iterator<Item = VersionId>,
) -> CliError {
    let mut there: Vec<VersionId> = there.collect();
    there.sort_unstable();
    there.dedup();
    let list = match &there[..] {
        [] => "none is stored here".to_owned(),
        some => {
            let names: Vec<String> = some.iter().copied().map(named).collect();
            format!("there are {}", names.join(", "))
        }
    };
    let missing = id.map_or("no version".into(), |id| {
        format!("no version {}", named(id))
    });
    CliError::new(
        Exit::NotFound,
        format!("`{run}` has {missing} here: {list}"),
    )
}

fn word(level: PersistenceLevel) -> &'static str {
    match level {
        PersistenceLevel::Committed => "committed",
        PersistenceLevel::Durable => "durable",
        PersistenceLevel::Replicated => "replicated",
        PersistenceLevel::Flushed => "flushed",
    }
}

/// The point from which a write outlives a power failure, as a word.
fn power_fail(of: PowerFail) -> &'static str {
    match of {
        PowerFail::Lost => "lost",
        PowerFail::Synced => "synced",
        PowerFail::Flushed => "flushed",
        PowerFail::Fenced => "fenced",
    }
}

/// A name as it is printed in a line of a table, whatever its bytes are: nothing in it ends the line or moves the cursor.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let text: Cow<'_, str> = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
    }
    out
}

/// Why a program has no version to list or verify.
fn none_here(run: &version_catalog::RunCheckpoints<'_>, is_readable: bool) -> String {
    use version_catalog::PrintableName;
    let name = run.printable();
    if is_readable {
        format!("`{name}` has not committed a checkpoint on this node yet")
    } else {
        format!("no version of `{name}` on this node can be read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_two_numbers() {
        let id = VersionId {
            generation: 2,
            number: 7,
        };
        assert_eq!(version("2.7"), Ok(id));
        assert_eq!(version(&named(id)), Ok(id));
        for bad in ["", "7", "2.", ".7", "2.7.1", "-1.2", "a.b"] {
            assert!(version(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(printable("dichte ä".as_bytes()), "dichte ä");
        assert_eq!(
            printable(b"a\n\tb\x1b[2J\xff"),
            "a\\n\\tb\\u{1b}[2J\u{fffd}"
        );
    }
}
