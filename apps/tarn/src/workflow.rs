//! Reading a workflow file, and saying well what is wrong with it.

use crate::error::{CliError, CliResult, ExitWith};
use crate::print::{self, message};
use crate::run::file_content::read_watched;
use crate::run::files::RunFiles;
use anyhow::Context;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use tarn_spec::{FindingCode, Note, Parsed, SbatchScript, SpecError};
use tarn_types::bounds::MAX_WORKFLOW_BYTES;
use tarn_types::codes::Exit;
use tarn_types::id::StepId;

/// Reads, checks and completes a workflow file, or sbatch scripts. Problems are drawn on stderr.
pub(crate) fn load(paths: &[PathBuf]) -> CliResult<Parsed> {
    load_with_files(paths, None).map(|(parsed, _)| parsed)
}

/// The same, with the content of the file and of the scripts that it names when they were read. Scripts run in `folder`, or where
/// tarn was started.
pub(crate) fn load_with_files(
    paths: &[PathBuf],
    folder: Option<&Path>,
) -> CliResult<(Parsed, RunFiles)> {
    let mut texts = Vec::with_capacity(paths.len());
    for path in paths {
        let absolute = std::path::absolute(path)
            .with_context(|| format!("{} is not a usable path", path.display()))
            .exit(Exit::NotFound)?;
        let text = read_bounded(&absolute)?;
        texts.push((absolute, text));
    }
    for (path, _) in &texts {
        is_text(path)?;
    }
    let (mut parsed, files) = match texts.as_slice() {
        [(path, text)] if !text.starts_with("#!") => {
            let folder = path.parent().unwrap_or(Path::new(""));
            let name = paths[0].display().to_string();
            let parsed = tarn_spec::parse(&name, text, folder).map_err(rejected)?;
            (parsed, RunFiles::of(path.clone(), text.as_bytes()))
        }
        texts => of_scripts(texts, folder)?,
    };
    for note in &parsed.notes {
        if !(note.kind() == FindingCode::NoteUnsetVariable && is_set_around(note)) {
            message!("note: {note}");
        }
    }
    let mut files = files;
    for (id, step) in (0u32..).map(StepId).zip(&parsed.workflow.steps) {
        for path in parsed.watched(id) {
            if read_watched(path).is_none() {
                return Err(CliError::new(
                    Exit::InvalidWorkflow,
                    format!(
                        "step `{}` watches {} (`files`), which is not there or cannot be read; correct the path, which is relative to \
                         the folder of the workflow file, or make the file",
                        step.name,
                        path.display()
                    ),
                ));
            }
        }
        files.watch(&step.name, parsed.watched(id));
    }
    let files = RefCell::new(files);
    parsed.finish_codes(&|path| {
        let bytes = files.borrow().read_now(path)?;
        files.borrow_mut().add(path, &bytes);
        Some(bytes)
    });
    Ok((parsed, files.into_inner()))
}

/// Paths of a workflow are kept in files of text.
fn is_text(path: &Path) -> CliResult<()> {
    let Some(named) = path.ancestors().filter(|p| p.to_str().is_none()).last() else {
        return Ok(());
    };
    Err(CliError::new(
        Exit::InvalidWorkflow,
        format!(
            "the path of the workflow, `{}`, cannot be used: the name of `{}` is not UTF-8, and tarn records paths as UTF-8 text; \
             rename that file or folder (`mv`, or `convmv -f latin1 -t utf8`), or copy the workflow to another folder",
            path.as_os_str().as_encoded_bytes().escape_ascii(),
            named.as_os_str().as_encoded_bytes().escape_ascii()
        ),
    ))
}

/// Whether the variable that a note names is set here.
fn is_set_around(note: &Note) -> bool {
    let named = note.message().split('`').nth(1);
    named.is_some_and(|name| is_set_in(name, &|name| std::env::var_os(name)))
}

/// Whether a variable is set in an environment, or all that Slurm sets are: in a job.
pub(crate) fn is_set_in(name: &str, value_of: &dyn Fn(&str) -> Option<OsString>) -> bool {
    let is_set = |name: &str| value_of(name).is_some_and(|value| !value.is_empty());
    is_set(name) || (name.starts_with('S') && is_set("SLURM_JOB_ID"))
}

fn of_scripts(texts: &[(PathBuf, String)], folder: Option<&Path>) -> CliResult<(Parsed, RunFiles)> {
    let folder = match folder {
        Some(folder) => folder.to_path_buf(),
        None => std::env::current_dir().exit(Exit::State)?,
    };
    is_text(&folder)?;
    let names = texts.iter().map(|(path, _)| from_there(&folder, path));
    let names: Vec<String> = names.collect();
    let scripts = texts.iter().zip(&names);
    let scripts: Vec<_> = scripts
        .map(|((_, text), name)| SbatchScript { name, text })
        .collect();
    let parsed = tarn_spec::parse_scripts(&scripts, &folder).map_err(rejected)?;
    let paths = texts.iter().map(|(path, _)| path.clone());
    Ok((parsed, RunFiles::of_scripts(paths.collect())))
}

/// A path from a folder on, both absolute: as it is found there if both are moved to another place together.
fn from_there(folder: &Path, path: &Path) -> String {
    let above = folder.ancestors().enumerate();
    let mut shared = above.filter_map(|(up, above)| Some((up, path.strip_prefix(above).ok()?)));
    let (up, rest) = shared.next().unwrap_or((0, path));
    "../".repeat(up) + &rest.to_string_lossy()
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
pub(crate) fn rejected(rejected: SpecError) -> CliError {
    let count = rejected.problems().len();
    print::drawn(&format!("{:?}", miette::Report::new(rejected)));
    CliError::new(
        Exit::InvalidWorkflow,
        format!("{count} problem(s) in the workflow file; nothing was started"),
    )
}
