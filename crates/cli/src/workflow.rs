//! Reading a workflow file, and saying well what is wrong with it.

use crate::error::{CliError, CliResult, ExitWith};
use anyhow::Context;
use std::io::Read;
use std::path::{Path, PathBuf};
use tarn_base::bounds::MAX_WORKFLOW_BYTES;
use tarn_base::codes::Exit;
use tarn_flow::{Parsed, Rejected};

/// Reads, checks and completes a workflow file. Problems are drawn on stderr.
pub(crate) fn load(path: &Path) -> CliResult<Parsed> {
    let absolute = std::path::absolute(path)
        .with_context(|| format!("{} is not a usable path", path.display()))
        .exit(Exit::NotFound)?;
    let text = read_bounded(&absolute)?;
    let folder = absolute
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf);
    let mut parsed =
        tarn_flow::parse(&path.display().to_string(), &text, &folder).map_err(rejected)?;
    for note in &parsed.notes {
        eprintln!("note: {note}");
    }
    parsed.finish_codes(&|script| std::fs::read(script).ok());
    Ok(parsed)
}

fn read_bounded(path: &Path) -> CliResult<String> {
    let open = || -> anyhow::Result<String> {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        file.take(MAX_WORKFLOW_BYTES as u64 + 1)
            .read_to_string(&mut text)?;
        anyhow::ensure!(
            text.len() <= MAX_WORKFLOW_BYTES,
            "it is larger than {MAX_WORKFLOW_BYTES} bytes"
        );
        Ok(text)
    };
    open()
        .with_context(|| format!("cannot read the workflow file {}", path.display()))
        .exit(Exit::NotFound)
}

/// Draws every problem on stderr; the error itself only counts them.
pub(crate) fn rejected(rejected: Rejected) -> CliError {
    let count = rejected.problems().len();
    eprintln!("{:?}", miette::Report::new(rejected));
    CliError::new(
        Exit::InvalidWorkflow,
        format!("{count} problem(s) in the workflow file; nothing was started"),
    )
}
