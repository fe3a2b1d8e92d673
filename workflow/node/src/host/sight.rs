//! Whether the nodes of a run see its files as tarn does. A folder to be written gets a file with a word that only this run
//! knows; a path that is only read is compared by its look. Neither needs device numbers, which differ from node to node.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use tarn_types::hash::Hash;
use tarn_types::nodes::{PathAppearance, SharedPath};
use tarn_types::object::is_object;
use tarn_types::workflow::Workflow;

/// Bytes of a word that are read.
const MAX_WORD: u64 = 4 << 10;
/// Names in a folder that are looked at; of one with more none are.
const MAX_NAMES: usize = 4096;
/// Sources that are looked at: of a workflow with more, the first.
const MAX_SOURCES: usize = 4096;
/// A place that does not respond for so long is not waited for: the user gets an error.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The prefix of the names of files with a word.
const PREFIX: &str = ".tarn-seen-";

/// The places that all nodes must see. The files that were written for it are removed when this is dropped.
#[derive(Debug, Default)]
pub struct Sights {
    all: Vec<SharedPath>,
    /// Folders with a word, and its file's name and the word.
    words: BTreeMap<PathBuf, (String, String)>,
}

impl Sights {
    /// The state folder, in which a word is written, and all places of a workflow, if there is one.
    ///
    /// # Errors
    /// When nothing can be written into the state folder, or a place does not answer.
    pub fn new(state: &Path, workflow: Option<&Workflow>) -> io::Result<Self> {
        let (state, workflow) = (state.to_path_buf(), workflow.cloned());
        within(TIMEOUT, move |place| {
            Self::see(&state, workflow.as_ref(), place)
        })
    }

    /// `place` gets the name of each place before it is looked at.
    fn see(state: &Path, workflow: Option<&Workflow>, place: &dyn Fn(String)) -> io::Result<Self> {
        let mut this = Self::default();
        place(format!("the state folder ({})", state.display()));
        let written = this.word("the state folder".into(), state);
        written.map_err(|e| {
            let why = format!(
                "cannot write into the state folder {}: {e}",
                state.display()
            );
            io::Error::new(e.kind(), why)
        })?;
        let Some(workflow) = workflow else {
            return Ok(this);
        };
        // Words first: they change how the folders look.
        let folder = workflow.folder.display();
        place(format!("the workflow's folder ({folder})"));
        this.written("the workflow's folder".into(), &workflow.folder);
        if let Some(external) = workflow.external.as_deref().filter(|e| !is_object(e)) {
            let folder = external.display();
            place(format!("the external store (`external`, {folder})"));
            this.written("the external store (`external`)".into(), external);
        }
        for dataset in &workflow.data {
            if let Some(dest) = &dataset.dest {
                let (name, dest) = (&dataset.name, dest.display());
                place(format!("the dest of dataset `{name}` ({dest})"));
            }
            // It is replaced as a whole, by what is made beside it.
            let beside = dataset
                .dest
                .as_deref()
                .filter(|dest| !is_object(dest))
                .and_then(|dest| match dest.is_symlink() {
                    true => Some(dest.join("..")),
                    false => dest.parent().map(Path::to_path_buf),
                });
            if let Some(beside) = beside {
                let dest = dataset.dest.as_deref().unwrap_or(&beside).display();
                this.written(
                    format!("the dest of dataset `{}` ({dest})", dataset.name),
                    &beside,
                );
            }
        }
        let sources = workflow
            .data
            .iter()
            .filter_map(|d| Some((d, d.source.as_ref()?)));
        for (dataset, source) in sources.take(MAX_SOURCES) {
            let (name, folder) = (&dataset.name, source.display());
            place(format!("the source of dataset `{name}` ({folder})"));
            // One that is missing here is refused elsewhere, if anything reads it.
            if let Ok(look) = look(source) {
                let title = format!("the source of dataset `{}`", dataset.name);
                this.add(title, source, look);
            }
        }
        Ok(this)
    }

    /// The places that the nodes look at.
    pub fn all(&self) -> &[SharedPath] {
        &self.all
    }

    fn add(&mut self, title: String, path: &Path, look: PathAppearance) {
        let path = path.to_path_buf();
        self.all.push(SharedPath { title, path, look });
    }

    /// A folder that is written to, or the one in which it will be made.
    fn written(&mut self, title: String, folder: &Path) {
        let Some(there) = folder.ancestors().find(|a| a.is_dir()) else {
            return;
        };
        if self.words.contains_key(there) || self.word(title.clone(), there).is_ok() {
            return;
        }
        if let Ok(look) = look(there) {
            self.add(title, there, look);
        }
    }

    fn word(&mut self, title: String, folder: &Path) -> io::Result<()> {
        let random = || std::fs::read_to_string("/proc/sys/kernel/random/uuid");
        let name = format!("{PREFIX}{}", random()?.trim());
        let word = random()?.trim().to_owned();
        std::fs::write(folder.join(&name), &word).inspect_err(|_| {
            let _ = std::fs::remove_file(folder.join(&name));
        })?;
        let file = (name.clone(), word.clone());
        self.words.insert(folder.to_path_buf(), file);
        self.add(title, folder, PathAppearance::Word { name, word });
        Ok(())
    }
}

/// Progress of a look.
enum ProbeUpdate<T> {
    Next(String),
    Done(io::Result<T>),
}

/// Does something on a thread of its own that reports what it looks at next, and does not wait longer than `timeout` for a place
/// that does not respond: that thread is left to itself.
fn within<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce(&dyn Fn(String)) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, updates) = channel();
    let thread = std::thread::Builder::new().name("tarn-sight".into());
    thread.spawn(move || {
        // Nobody listens any more when it has taken too long.
        let done = work(&|place| drop(sender.send(ProbeUpdate::Next(place))));
        let _ = sender.send(ProbeUpdate::Done(done));
    })?;
    let mut place = String::new();
    loop {
        match updates.recv_timeout(timeout) {
            Ok(ProbeUpdate::Next(next)) => place = next,
            Ok(ProbeUpdate::Done(done)) => return done,
            Err(RecvTimeoutError::Timeout) => {
                let why = format!(
                    "{place} does not answer for {timeout:?}: its file system hangs; nothing was started, try again when it is back"
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("an error inside tarn"));
            }
        }
    }
}

impl Drop for Sights {
    fn drop(&mut self) {
        for (folder, (name, _)) in &self.words {
            // One that stays is a few bytes that nobody reads.
            let _ = std::fs::remove_file(folder.join(name));
        }
    }
}

/// The look of a file or folder here. It is opened for that, which is when network file systems update it.
fn look(path: &Path) -> io::Result<PathAppearance> {
    let known = std::fs::metadata(path)?;
    if !known.is_file() && !known.is_dir() {
        return Ok(PathAppearance::Other);
    }
    let Ok(file) = File::open(path) else {
        // Not readable for this user: the reader gets that error.
        return Ok(PathAppearance::Hidden);
    };
    let found = file.metadata()?;
    let modified = found.mtime();
    if found.is_file() {
        let length = found.len();
        return Ok(PathAppearance::File { length, modified });
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)?.take(MAX_NAMES + 1) {
        names.push(entry?.file_name());
    }
    let names = (names.len() <= MAX_NAMES).then(|| {
        names.sort_unstable();
        let names: Vec<&[u8]> = names.iter().map(|n| n.as_bytes()).collect();
        // No name holds a slash.
        Hash::of(&names.join(&b'/'))
    });
    Ok(PathAppearance::Folder { modified, names })
}

/// A difference between this node's view of a path and tarn's, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "it does not see {title} as tarn does (at {}): {why}. Every node must see the state folder, the workflow's folder, \
     sources, dests and the external store at the same paths; what one wrote elsewhere would be lost with the job. Put \
     them on a file system that all nodes mount (/tmp is often each node's own, or each job's)",
    path.display()
)]
pub struct SightError {
    title: String,
    path: PathBuf,
    why: String,
}

/// Why a file does not have the word that was written to it.
#[derive(Debug, thiserror::Error)]
enum SeenWordError {
    #[error("`{0}` is no file's name")]
    Name(String),
    #[error("{0} has another content there")]
    Content(String),
    #[error("{name}, which tarn has just written, cannot be read there: {source}")]
    Unreadable { name: String, source: io::Error },
}

/// Compares what this node sees with what tarn has seen.
///
/// # Errors
/// When that differs.
pub fn check(sight: &SharedPath) -> Result<(), SightError> {
    let wrong = |why: String| {
        Err(SightError {
            title: sight.title.clone(),
            path: sight.path.clone(),
            why,
        })
    };
    let found = match &sight.look {
        PathAppearance::Word { name, word } => {
            return match has_word(&sight.path, name, word) {
                Ok(()) => Ok(()),
                Err(why) => wrong(why.to_string()),
            };
        }
        _ => look(&sight.path),
    };
    match found {
        Ok(found) if found == sight.look => Ok(()),
        Ok(found) => wrong(format!(
            "it is {found} there, and {} where tarn runs",
            sight.look
        )),
        Err(e) => wrong(e.to_string()),
    }
}

fn has_word(folder: &Path, name: &str, word: &str) -> Result<(), SeenWordError> {
    if Path::new(name).file_name() != Some(name.as_ref()) {
        return Err(SeenWordError::Name(name.to_owned()));
    }
    let mut found = Vec::new();
    let file = File::open(folder.join(name));
    let read = file.and_then(|f| f.take(MAX_WORD).read_to_end(&mut found));
    match read {
        Ok(_) if found == word.as_bytes() => Ok(()),
        Ok(_) => Err(SeenWordError::Content(name.to_owned())),
        Err(source) => Err(SeenWordError::Unreadable {
            name: name.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Instant, SystemTime};
    use tarn_types::workflow::{Dataset, Keep, OnFailure, VersionPartitioning};

    fn workflow(folder: &Path) -> Workflow {
        let dataset = |name: &str, source: Option<&str>, dest: Option<&str>| Dataset {
            name: name.into(),
            source: source.map(|s| folder.join(s)),
            dest: dest.map(|d| folder.join(d)),
            size: None,
            scatter: None,
            keep: Keep::UntilConsumed,
            copies: 1,
            on_failure: OnFailure::Discard,
            encrypt: false,
            of: None,
            tier: None,
            partition: VersionPartitioning::Whole,
        };
        Workflow {
            name: "w".into(),
            folder: folder.join("flow"),
            external: Some(folder.join("store/not/yet")),
            erase: false,
            partitions: Vec::new(),
            data: vec![
                dataset("raw", Some("in"), None),
                dataset("one", Some("file"), None),
                dataset("all", None, Some("outs/all")),
                dataset("more", None, Some("outs/more")),
            ],
            steps: Vec::new(),
        }
    }

    fn places(folder: &Path) {
        for made in ["state", "flow", "store", "in", "outs"] {
            std::fs::create_dir_all(folder.join(made)).unwrap();
        }
        for file in ["in/a", "in/b", "file"] {
            std::fs::write(folder.join(file), file).unwrap();
        }
    }

    /// The errors of a node that has another folder at the same path.
    fn elsewhere(sights: &Sights, here: &Path, there: &Path) -> Vec<String> {
        let moved = sights.all().iter().map(|s| SharedPath {
            path: there.join(s.path.strip_prefix(here).unwrap()),
            ..s.clone()
        });
        let differ = moved.filter_map(|s| check(&s).err());
        differ.map(|e| e.to_string()).collect()
    }

    #[test]
    fn a_node_with_a_place_of_its_own_is_told_of() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (here, there) = (here.path(), there.path());
        places(here);
        let sights = Sights::new(&here.join("state"), Some(&workflow(here))).unwrap();
        // Two dests in one folder need one word.
        assert_eq!(sights.all().len(), 6);
        assert_eq!(elsewhere(&sights, here, here), Vec::<String>::new());
        // The same names and sizes: files that are written there are of another place all the same.
        places(there);
        let old = SystemTime::now() - Duration::from_secs(3600);
        for source in ["in", "file"] {
            File::open(there.join(source))
                .unwrap()
                .set_modified(old)
                .unwrap();
        }
        let differences = elsewhere(&sights, here, there);
        assert_eq!(differences.len(), 6, "{differences:#?}");
        for title in [
            "state folder",
            "workflow's folder",
            "external store",
            "dest of dataset `all`",
            "source of dataset `raw`",
            "source of dataset `one`",
        ] {
            let named = differences
                .iter()
                .filter(|s| s.contains(title) && s.contains("it does not see the"));
            assert!(named.count() >= 1, "{title}: {differences:#?}");
        }
        assert!(
            differences[0].contains("all nodes mount"),
            "{}",
            differences[0]
        );
        let (state, word) = (here.join("state"), here.join("outs"));
        drop(sights);
        for folder in [state, word] {
            assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_source_that_looks_otherwise_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path();
        places(here);
        let sights = Sights::new(&here.join("state"), Some(&workflow(here))).unwrap();
        let modified = File::open(here.join("in"))
            .unwrap()
            .metadata()
            .unwrap()
            .modified();
        std::fs::write(here.join("in/c"), "").unwrap();
        // Its time alone would not show it.
        File::open(here.join("in"))
            .unwrap()
            .set_modified(modified.unwrap())
            .unwrap();
        std::fs::write(here.join("file"), "longer than it was").unwrap();
        let differences = elsewhere(&sights, here, here);
        assert_eq!(differences.len(), 2, "{differences:#?}");
        assert!(
            differences[1].contains("a file of 18 bytes")
                && differences[1].contains("a file of 4 bytes"),
            "{}",
            differences[1]
        );
        std::fs::remove_file(here.join("file")).unwrap();
        std::fs::create_dir(here.join("file")).unwrap();
        assert!(elsewhere(&sights, here, here)[1].contains("a folder"));
    }

    #[test]
    fn a_place_that_hangs_is_named_and_not_waited_for() {
        let (go, hangs) = channel::<()>();
        let begun = Instant::now();
        let seen = within(Duration::from_millis(200), move |place| {
            for n in 0..3 {
                place(format!("place {n}"));
                std::thread::sleep(Duration::from_millis(100));
            }
            place("the source of dataset `raw` (/store)".into());
            // Until the test ends.
            let _ = hangs.recv();
            Ok(())
        });
        let why = seen.unwrap_err().to_string();
        assert!(why.contains("`raw` (/store) does not answer"), "{why}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        drop(go);
        assert_eq!(within(TIMEOUT, |_| Ok(7)).unwrap(), 7);
    }

    #[test]
    fn a_word_is_only_looked_for_in_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("nonce"), "word").unwrap();
        std::fs::create_dir(dir.path().join("below")).unwrap();
        let seen = |folder: &Path, name: &str, word: &str| {
            let (name, word) = (name.to_owned(), word.to_owned());
            check(&SharedPath {
                title: "it".into(),
                path: folder.into(),
                look: PathAppearance::Word { name, word },
            })
        };
        assert_eq!(seen(dir.path(), "nonce", "word"), Ok(()));
        assert!(seen(&dir.path().join("below"), "../nonce", "word").is_err());
        for (name, word) in [("nonce", "wor"), ("none", "word"), ("", "")] {
            assert!(seen(dir.path(), name, word).is_err(), "{name}");
        }
    }
}
