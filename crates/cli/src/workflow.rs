//! Reading a workflow file, and saying well what is wrong with it.

use crate::error::{CliError, CliResult, ExitWith};
use crate::print::{self, say};
use crate::run::files::Files;
use anyhow::Context;
use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use tarn_base::bounds::MAX_WORKFLOW_BYTES;
use tarn_base::codes::Exit;
use tarn_flow::{Parsed, Rejected};

/// Bytes of a script that are read to tell whether it has changed: more is no script that somebody wrote.
const MAX_SCRIPT_BYTES: u64 = 16 << 20;

/// Reads, checks and completes a workflow file. Problems are drawn on stderr.
pub(crate) fn load(path: &Path) -> CliResult<Parsed> {
    load_with_files(path).map(|(parsed, _)| parsed)
}

/// The same, with what the file and the scripts that it names held when they were read.
pub(crate) fn load_with_files(path: &Path) -> CliResult<(Parsed, Files)> {
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
        say!("note: {note}");
    }
    let files = RefCell::new(Files::of(absolute, text.as_bytes()));
    parsed.finish_codes(&|path| {
        let bytes = read_script(path)?;
        files.borrow_mut().add(path, &bytes);
        Some(bytes)
    });
    Ok((parsed, files.into_inner()))
}

/// The bytes of a script, if it is a regular file. A large one (data that a command names, or a program) is told
/// by its size and time.
pub(crate) fn read_script(path: &Path) -> Option<Vec<u8>> {
    let meta = std::fs::metadata(path)
        .ok()
        .filter(std::fs::Metadata::is_file)?;
    if meta.len() <= MAX_SCRIPT_BYTES {
        return std::fs::read(path).ok();
    }
    let written = meta
        .modified()
        .ok()?
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?;
    Some(format!("{} bytes of {written:?}", meta.len()).into_bytes())
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
    print::drawn(&format!("{:?}", miette::Report::new(rejected)));
    CliError::new(
        Exit::InvalidWorkflow,
        format!("{count} problem(s) in the workflow file; nothing was started"),
    )
}
