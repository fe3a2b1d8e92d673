//! `tarn data verify`: every replica that is seen from here is read again.

use super::held::{LockedVersion, ReplicaCheck};
use super::place;
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::print::{self, message, out};
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

pub(super) fn verify(globals: &Globals, dataset: &str, run: Option<&str>) -> CliResult {
    let held = LockedVersion::find_to_read(globals, dataset)?;
    let mut damaged = 0u32;
    let (all, lack) = held.read_all(run)?;
    for (row, replica) in all {
        let (state, why) = match &replica {
            ReplicaCheck::Whole => ("whole", ""),
            ReplicaCheck::Elsewhere => ("elsewhere", "only a run that has this node reads it"),
            ReplicaCheck::Damaged(why) => ("damaged", why.as_str()),
        };
        damaged += u32::from(matches!(replica, ReplicaCheck::Damaged(_)));
        if globals.json {
            let line = serde_json::json!({
                "schema": 1, "dataset": row.dataset, "version": row.version, "place": place(&row.at),
                "bytes": row.bytes, "path": row.path(), "state": state, "why": why,
            });
            print::json(&line)?;
        } else {
            out!(
                "{state:<10} {:<12} {:>12}  {}{}{}{why}",
                place(&row.at),
                Bytes(row.bytes),
                row.path().display(),
                held.which_version(row),
                if why.is_empty() { "" } else { ": " }
            )?;
        }
    }
    if let (0, Some(lack)) = (damaged, &lack) {
        let text = format!("{}. {}", lack.why, lack.remedy);
        return Err(CliError::new(Exit::WorkflowFailed, text));
    }
    if damaged == 0 {
        return Ok(Exit::Success);
    }
    message!(
        "tarn does not use a damaged replica: `tarn run` takes another one, or makes it again; `tarn data rm {dataset}` removes all"
    );
    let text = format!("{damaged} of the replicas of `{dataset}` are not what was published");
    Err(CliError::new(Exit::WorkflowFailed, text))
}
