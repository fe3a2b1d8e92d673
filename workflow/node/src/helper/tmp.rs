//! The folders that all programs of a machine share by name, `/tmp`, `/var/tmp` and `/dev/shm`: a step has its own. docs/internals/local-world.md, "Folders of
//! everybody".

use crate::fds::reached;
use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tarn_sys::namespace;
use tarn_types::workflow::Step;

/// The folder in a step's work folder that has these folders.
pub(crate) const WITHIN: &str = "tmp";
/// The name of each there and in images of the step, which no dataset can have; and the folder that it replaces.
const FOLDERS: [(&str, &str); 2] = [(".tmp", "/tmp"), (".var-tmp", "/var/tmp")];
/// The folder of memory that programs share.
const SHARED_MEMORY: &str = "/dev/shm";
/// The mode of a folder in which anybody may write, and only the owner of a file may remove it.
const OPEN: u32 = 0o1777;
/// Variables that name a folder for a program's own files, which is not to be shared, or one where somebody happens to be.
const FOR_OWN: [&str; 6] = ["TMPDIR", "TMP", "TEMP", "TEMPDIR", "PWD", "OLDPWD"];
/// The folder of the sockets of displays.
const DISPLAYS: &str = "/tmp/.X11-unix";

/// The private paths of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepPrivatePaths {
    /// The name of each private folder, and the folder that it replaces.
    folders: Vec<(String, PathBuf)>,
    /// The folder that has them.
    within: PathBuf,
    /// The path at which private memory replaces shared memory.
    memory: Option<PathBuf>,
    /// Paths that stay visible.
    seen: BTreeSet<PathBuf>,
}

/// The folders of everybody.
fn roots() -> impl Iterator<Item = PathBuf> {
    let folders = FOLDERS.iter().map(|(_, at)| *at);
    folders.chain([SHARED_MEMORY]).filter_map(real)
}

/// Without links; none where it is not there, or was removed under whoever is in it, as Slurm does with a job's own `/tmp` on the
/// nodes that are left when another one fails: nothing can be mounted there.
fn real(at: &str) -> Option<PathBuf> {
    let at = std::fs::canonicalize(at).ok()?;
    let meta = std::fs::metadata(&at).ok()?;
    (meta.is_dir() && meta.nlink() > 0).then_some(at)
}

/// Whether a path is below a folder of everybody.
fn is_below(path: &Path) -> bool {
    roots().any(|root| path != root && path.starts_with(root))
}

impl StepPrivatePaths {
    /// Folders in `within`, for a step that keeps seeing `named`. Without `memory` the shared one stays. A folder of everybody
    /// that the workflow itself has named stays too.
    pub(crate) fn new(within: &Path, memory: bool, named: Vec<PathBuf>) -> Self {
        let mut own = Self {
            folders: Vec::new(),
            within: within.to_path_buf(),
            memory: None,
            seen: BTreeSet::new(),
        };
        own.sees(named);
        // One may be a link to another.
        let mut known = BTreeSet::new();
        let mut is_free = |at: &PathBuf| known.insert(at.clone()) && !own.seen.contains(at);
        for (name, at) in FOLDERS {
            if let Some(at) = real(at).filter(&mut is_free) {
                own.folders.push((name.to_owned(), at));
            }
        }
        own.memory = real(SHARED_MEMORY).filter(|at| is_free(at) && memory);
        own
    }

    /// Keeps the paths visible that its environment and its commands name.
    pub(crate) fn sees_what_it_names(&mut self, step: &Step, env: &[(OsString, OsString)]) {
        self.sees(of_environment(env));
        self.sees(programs(step));
    }

    fn sees(&mut self, paths: Vec<PathBuf>) {
        // A link may lead to such a folder from elsewhere.
        let real: Vec<PathBuf> = paths.iter().filter_map(|p| p.canonicalize().ok()).collect();
        self.seen.extend(paths.into_iter().chain(real));
    }

    /// Makes the folders, in a folder that may be `within` as this process finds it.
    pub(crate) fn make(&self, within: &Path) -> io::Result<()> {
        let mut names = self.folders.iter().map(|(name, _)| name);
        names.try_for_each(|name| std::fs::create_dir_all(within.join(name)))
    }

    /// The names of its folders in images, and their paths.
    pub(crate) fn in_images(&self) -> impl Iterator<Item = (String, PathBuf)> {
        let names = self.folders.iter().map(|(name, _)| name);
        names.map(|name| (name.clone(), self.within.join(name)))
    }

    /// Puts them in the place of those of everybody, in the mount namespace of the step.
    fn mount(&self) -> io::Result<()> {
        let hidden = self.folders.iter().map(|(_, at)| at);
        let hidden: Vec<&PathBuf> = hidden.chain(&self.memory).collect();
        let is_hidden = |path: &&PathBuf| hidden.iter().any(|at| path.starts_with(at));
        // A path in a visible folder is visible with it.
        let is_first = |path: &&PathBuf| {
            let mut above = path.ancestors().skip(1);
            above.all(|above| !self.seen.contains(above))
        };
        let seen = self.seen.iter().filter(is_hidden).filter(is_first);
        // All of it is opened first: the next mount may hide its path.
        let reach = |path: &Path| openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        // The step would not see a path either that does not exist or that this user cannot reach.
        let opened = seen.filter_map(|path| Some((path, reach(path).ok()?)));
        let opened: Vec<(&PathBuf, OwnedFd)> = opened.collect();
        let within = reach(&self.within)?;
        let folders = self.folders.iter();
        let folders = folders.map(|(name, at)| Ok((at, reach(&self.within.join(name))?)));
        for (at, folder) in folders.collect::<io::Result<Vec<(&PathBuf, OwnedFd)>>>()? {
            namespace::bind(&reached(&folder), at)?;
            open(at)?;
        }
        // In the work folder there is no need for them any more.
        namespace::unmount(&reached(&within))?;
        if let Some(at) = &self.memory {
            let size = statvfs(at)?;
            namespace::mount_memory(at, size.f_blocks.saturating_mul(size.f_frsize))?;
            open(at)?;
        }
        opened
            .iter()
            .try_for_each(|(path, there)| show(path, there))
    }
}

fn open(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(OPEN))
}

/// Shows an open file at a path where nothing is. A removed one cannot be shown, nor would it be there without.
fn show(path: &Path, there: &OwnedFd) -> io::Result<()> {
    let from = reached(there);
    let is_gone = || std::fs::metadata(&from).is_ok_and(|meta| meta.nlink() == 0);
    if is_gone() {
        return Ok(());
    }
    if std::fs::metadata(&from)?.is_dir() {
        std::fs::create_dir_all(path)?;
    } else {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::File::create(path)?;
    }
    match namespace::bind(&from, path) {
        Err(_) if is_gone() => Ok(()),
        Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
        Ok(()) => Ok(()),
    }
}

/// The paths that the environment names: search paths, sockets of agents, files of credentials.
fn of_environment(env: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let named = env
        .iter()
        .filter(|(name, _)| !FOR_OWN.iter().any(|own| name == *own));
    let words = named.flat_map(|(_, value)| {
        let is_between = |b: &u8| matches!(b, b':' | b',' | b';' | b'=') || b.is_ascii_whitespace();
        value.as_bytes().split(is_between)
    });
    let mut found: Vec<PathBuf> = words
        .filter(|word| word.starts_with(b"/"))
        .map(|word| PathBuf::from(OsStr::from_bytes(word)))
        .filter(|path| is_below(path))
        .collect();
    if env.iter().any(|(name, _)| name == "DISPLAY") {
        found.push(DISPLAYS.into());
    }
    found
}

/// The folders of the programs that its text names; of one directly in a folder of everybody, it alone.
fn programs(step: &Step) -> Vec<PathBuf> {
    let texts = [Some(&step.run), step.prelude.as_ref(), step.shell.as_ref()];
    let words = texts.into_iter().flatten().flat_map(|text| words(text));
    let is_program = |path: &PathBuf| {
        let meta = std::fs::metadata(path);
        meta.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    words
        .map(PathBuf::from)
        .filter(is_program)
        .map(folder_of)
        .collect()
}

/// The folder of a program, which may need what is beside it; itself where that is a folder of everybody.
pub(crate) fn folder_of(program: PathBuf) -> PathBuf {
    match program.parent() {
        Some(folder) if !roots().any(|root| root == folder) => folder.to_path_buf(),
        _ => program,
    }
}

/// The paths below a folder of everybody that a text names.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_between = |c: char| c.is_whitespace() || "'\"`;|&()<>=:,[]{}!#".contains(c);
    let words = text.split(is_between);
    words.filter(|word| word.starts_with('/') && is_below(Path::new(word)))
}

/// Mounts the step's own folders, if it has some, in the place of those of everybody.
pub(crate) fn begin(own: Option<&StepPrivatePaths>) -> io::Result<()> {
    let Some(own) = own else {
        return Ok(());
    };
    own.mount().map_err(|e| {
        let why = format!(
            "the step cannot have a private /tmp ({e}); `tmp = \"shared\"` in the workflow file lets it use that of the machine"
        );
        io::Error::new(e.kind(), why)
    })
}

/// The user's own files in the shared memory that programs find by name: the device that `tarn verbs` shows.
pub(crate) fn by_name() -> Vec<PathBuf> {
    let own = format!("tarn-verbs-{}", rustix::process::geteuid().as_raw());
    let all = std::fs::read_dir(SHARED_MEMORY)
        .into_iter()
        .flatten()
        .flatten();
    let is_own = |name: &OsStr| name.as_bytes().starts_with(own.as_bytes());
    all.filter(|entry| is_own(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_before_it_is_shown_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let reach = |path: &Path| openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let (file, folder) = (dir.path().join("file"), dir.path().join("folder"));
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir(&folder).unwrap();
        let there = [&file, &folder].map(|path| reach(path).unwrap());
        std::fs::remove_file(&file).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        for (path, there) in [&file, &folder].into_iter().zip(&there) {
            show(path, there).unwrap();
            assert!(!path.exists());
        }
    }
}
