//! `tarn partition`: partitions of storage memory, by their names. docs/guide/direct-access.md.

use crate::argument::ArgumentError;
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, message, out};
use clap::Subcommand;
use serde::Serialize;
use std::path::{Path, PathBuf};
use tarn_partitions::{Code, Grant, Grantee, Partition, PartitionDetails, RequestError};
use tarn_sys::users;
use tarn_types::codes::Exit;
use tarn_types::units::{Bytes, parse_size};

#[derive(Debug, Subcommand)]
pub(crate) enum PartitionCommand {
    /// Make a partition of zeros; all of its space is reserved
    Create {
        /// /FOLDER/NAME or ./NAME, used by programs themselves; SPACE/NAME or NODE:SPACE/NAME of tarnd
        name: PathBuf,
        /// Such as `4 GiB`
        #[arg(value_parser = parse_size)]
        bytes: u64,
        /// Others who may use it: user:NAME or group:NAME to read, user:NAME:rw to write too. May be given several times
        #[arg(long = "grant", value_name = "WHO", value_parser = grant)]
        grants: Vec<Grant>,
        /// Bytes that it is written by at least, a power of two of 512 B to 16 KiB, or `mapped` [default: memory is mapped, a disk written by
        /// 4 KiB]
        #[arg(long, value_name = "BYTES|mapped", value_parser = unit)]
        unit: Option<u32>,
    },
    /// Resize a partition that nobody has open
    Resize {
        /// The partition
        name: PathBuf,
        /// Such as `4 GiB`
        #[arg(value_parser = parse_size)]
        bytes: u64,
    },
    /// The partitions of a folder, or of a dataspace or a folder in it
    Ls {
        /// /FOLDER, ./FOLDER, SPACE or SPACE/FOLDER, NODE:SPACE or NODE:SPACE/FOLDER
        folder: PathBuf,
    },
    /// Remove a partition that nobody has open
    Rm {
        /// The partition
        name: PathBuf,
    },
}

pub(crate) fn partition(globals: &Globals, command: &PartitionCommand) -> CliResult {
    match command {
        PartitionCommand::Create {
            name,
            bytes,
            grants,
            unit: None,
        } => Partition::create(name, *bytes, grants.clone()),
        PartitionCommand::Create {
            name,
            bytes,
            grants,
            unit: Some(unit),
        } => Partition::create_units(name, *bytes, *unit, grants.clone()),
        PartitionCommand::Resize { name, bytes } => Partition::resize(name, *bytes),
        PartitionCommand::Rm { name } => Partition::delete(name),
        PartitionCommand::Ls { folder } => return ls(globals, folder),
    }
    .map_err(refused)?;
    Ok(Exit::Success)
}

/// A line of `--json`.
#[derive(Serialize)]
struct PartitionRow<'a> {
    schema: u32,
    name: &'a str,
    bytes: u64,
    unit: u32,
    owner: u32,
    grants: &'a [Grant],
    damaged: Option<&'a str>,
}

fn ls(globals: &Globals, folder: &Path) -> CliResult {
    let all = Partition::list(folder).map_err(refused)?;
    if all.is_empty() && !globals.json {
        message!("no partitions are in {}", folder.display());
    }
    for info in &all {
        if globals.json {
            print::json(&PartitionRow {
                schema: 1,
                name: &info.name,
                bytes: info.size,
                unit: info.unit,
                owner: info.owner,
                grants: &info.grants,
                damaged: info.damaged.as_deref(),
            })?
        } else {
            line(info)?
        }
    }
    Ok(Exit::Success)
}

fn line(info: &PartitionDetails) -> CliResult<()> {
    if let Some(why) = &info.damaged {
        return out!("{:<32} damaged: {why}", info.name);
    }
    let grants = info.grants.iter().map(|grant| {
        let (what, id) = match grant.who {
            Grantee::User(id) => ("user", id),
            Grantee::Group(id) => ("group", id),
        };
        format!(" {what}:{id}{}", if grant.write { ":rw" } else { "" })
    });
    let bytes = Bytes(info.size).to_string();
    let used = match info.unit {
        0 => "mapped".to_owned(),
        unit => format!("by {}", Bytes(unit.into())),
    };
    out!(
        "{:<32} {bytes:>10}  {used:<11} user {}{}",
        info.name,
        info.owner,
        grants.collect::<String>()
    )
}

/// The command's error for a refused partition request.
pub(crate) fn refused(why: RequestError) -> CliError {
    let exit = match why.code {
        Code::Invalid => Exit::Usage,
        Code::NotFound => Exit::NotFound,
        Code::Busy => Exit::Busy,
        Code::NoSpace | Code::Quota => Exit::NoSpace,
        Code::Exists | Code::Corrupt | Code::Lost | Code::TimedOut => Exit::WorkflowFailed,
        Code::Internal => Exit::Internal,
        _ => Exit::State,
    };
    CliError::new(exit, why.text)
}

/// 0 for `mapped`.
fn unit(text: &str) -> Result<u32, ArgumentError> {
    if text == "mapped" {
        return Ok(0);
    }
    let bytes = u32::try_from(parse_size(text)?).ok().filter(|n| *n > 0);
    bytes.ok_or_else(|| ArgumentError::new("give a power of two of 512 B to 16 KiB, or `mapped`"))
}

/// `user:NAME`, `group:NAME`, by name or number, and `:rw` behind it.
fn grant(text: &str) -> Result<Grant, ArgumentError> {
    let (who, write) = match text.strip_suffix(":rw") {
        Some(who) => (who, true),
        None => (text, false),
    };
    let form = "give user:NAME or group:NAME, and :rw behind it where it may be written";
    let named = who.split_once(':');
    let (what, name) = named.ok_or_else(|| ArgumentError::new(form))?;
    let id = |find: fn(&str) -> std::io::Result<Option<u32>>| {
        if let Ok(id) = name.parse() {
            return Ok(id);
        }
        let found = find(name);
        let found = found.map_err(|e| ArgumentError::new(format!("{what} `{name}`: {e}")))?;
        found.ok_or_else(|| ArgumentError::new(format!("there is no {what} `{name}` here")))
    };
    let who = match what {
        "user" => Grantee::User(id(users::user)?),
        "group" => Grantee::Group(id(users::group)?),
        other => {
            let text = format!("`{other}`: give user:NAME or group:NAME");
            return Err(ArgumentError::new(text));
        }
    };
    Ok(Grant { who, write })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_name_users_and_groups() {
        let of = |who, write| Ok(Grant { who, write });
        assert_eq!(grant("user:root"), of(Grantee::User(0), false));
        assert_eq!(grant("group:root:rw"), of(Grantee::Group(0), true));
        assert_eq!(grant("user:1234:rw"), of(Grantee::User(1234), true));
        for bad in [
            "root",
            "user:",
            "all:root",
            "user:no such user",
            "group:1:w",
        ] {
            assert!(grant(bad).is_err(), "{bad}");
        }
    }
}
