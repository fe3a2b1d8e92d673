//! Checks and their results: `tarn doctor`, `tarn slurm install --check`.

use crate::error::CliResult;
use crate::globals::Globals;
use crate::print::{self, out};
use serde::Serialize;

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct CheckFinding {
    /// The name of the check.
    pub(crate) what: String,
    /// Whether it is there.
    pub(crate) there: bool,
    /// The detail that was found, or the consequence of its absence.
    pub(crate) detail: String,
}

pub(crate) fn finding(what: &str, there: bool, detail: impl Into<String>) -> CheckFinding {
    CheckFinding {
        what: what.into(),
        there,
        detail: detail.into(),
    }
}

/// The finding of a check: the detail, or why the thing is not there.
pub(crate) fn found(what: &str, result: CliResult<String>) -> CheckFinding {
    match result {
        Ok(detail) => finding(what, true, detail),
        Err(why) => finding(what, false, why.to_string()),
    }
}

pub(crate) fn show(globals: &Globals, all: &[CheckFinding]) -> CliResult<()> {
    if globals.json {
        return print::json(&serde_json::json!({"schema": 1, "findings": all}));
    }
    for f in all {
        let there = if f.there { "yes" } else { "no" };
        out!("{there:<4} {:<16} {}", f.what, f.detail)?;
    }
    Ok(())
}
