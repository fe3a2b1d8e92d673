//! The command of a step: its shell, and the file of a script that names its interpreter itself.

use crate::storage::store::{io_failure, make_folder};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tarn_ports::CapabilityError;
use tarn_types::event::RunError;
use tarn_types::shell::{BASH, Command, PLAIN};
use tarn_types::workflow::{Step, Workflow};

/// The name, beside the datasets, of the folder with the file of a script; no dataset can have it. The step's scratch folder is the step's.
pub(crate) const COMMAND: &str = ".command";
/// The folders of programs when the environment has no `PATH`.
const USUAL: &str = "/usr/local/bin:/usr/bin:/bin";

/// Sets for each step the shell that runs it. It is decided once, where the run begins, so that all nodes of it agree.
pub fn with_shells(workflow: &mut Workflow, env: &[(OsString, OsString)]) {
    let shell = match find(OsStr::new("bash"), env) {
        Some(_) => BASH,
        None => PLAIN,
    };
    for step in &mut workflow.steps {
        step.shell.get_or_insert_with(|| shell.to_owned());
    }
}

/// The words that start a step's command. `show` gives the path at which the step sees a folder of its work folder.
pub(crate) fn make(
    step: &Step,
    work: &Path,
    show: impl FnOnce(PathBuf, &str) -> PathBuf,
) -> Result<Vec<OsString>, RunError> {
    let shell = step.shell.as_deref().unwrap_or(PLAIN);
    let Command { argv, file } = Command::new(&step.run, step.prelude.as_deref(), shell);
    let mut argv: Vec<OsString> = argv.into_iter().map(OsString::from).collect();
    if let Some(text) = file {
        let folder = work.join("command");
        make_folder(&folder)?;
        let path = folder.join(&step.name);
        std::fs::write(&path, text).map_err(|e| io_failure("write", &path, &e))?;
        argv.push(show(folder, COMMAND).join(&step.name).into());
    }
    Ok(argv)
}

/// The words that have the machine's own shell run a text.
pub(crate) fn plain_shell(text: &str) -> Vec<OsString> {
    ["/bin/sh", "-c", text].map(OsString::from).to_vec()
}

/// The file of a program, or why there is none here.
pub(crate) fn program(
    name: &OsStr,
    env: &[(OsString, OsString)],
) -> Result<PathBuf, CapabilityError> {
    find(name, env).ok_or_else(|| {
        CapabilityError::new(format_args!(
            "its command is run by `{}`, and there is no such program on its node (in the folders of its PATH): install it there, or \
             name another in the workflow file, such as `shell = \"{PLAIN}\"`",
            name.display()
        ))
    })
}

/// A program by its path, or in the folders of `PATH`.
fn find(name: &OsStr, env: &[(OsString, OsString)]) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        // A relative one is looked for where the command runs.
        let path = PathBuf::from(name);
        return (path.is_relative() || path.exists()).then_some(path);
    }
    let path = env.iter().find(|(n, _)| n == "PATH");
    let path = path.map_or(OsStr::new(USUAL), |(_, path)| path);
    let is_program = |path: &PathBuf| {
        let meta = std::fs::metadata(path);
        meta.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(is_program)
}
