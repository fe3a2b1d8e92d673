//! The stores of a node: their values of `--store`, and each one's data in `.tarn-site`. docs/internals/site.md, "The store on a
//! node".

use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tarn_journal::RunLock;
use tarn_journal::lines::sync_folder;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Epoch, MAX_STORES, NodeStoreReport, Part, StoreCapacity};
use tarn_types::layout::ERASE;
use tarn_types::units::parse_size;

/// The file that identifies a store.
const MARK: &str = ".tarn-site";
/// Beside a size: data in this store is lost with power.
const VOLATILE: &str = "volatile";

/// A value of `--store`: one of a node's stores, or its only one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreSpec {
    /// Empty: it has none.
    name: String,
    root: PathBuf,
    bytes: u64,
    is_volatile: bool,
}

/// A store of this node.
#[derive(Debug)]
struct One {
    wanted: StoreSpec,
    /// Its file system is not mounted.
    is_away: bool,
}

/// The stores of this node, fast to slow.
pub(super) struct NodeStores {
    all: Vec<One>,
    _locks: Vec<RunLock>,
}

/// The content of the file that identifies a store.
#[derive(Debug, Default, PartialEq, Eq)]
struct StoreMarker {
    epoch: Epoch,
    /// Its name; none of one without.
    name: Option<String>,
    /// The node's other stores.
    others: BTreeSet<String>,
}

/// Reads `[NAME=]PATH:SIZE[,volatile]`.
pub(crate) fn wanted(text: &str) -> anyhow::Result<StoreSpec> {
    let (name, rest) = match text.split_once('=') {
        Some((name, rest)) if !text.starts_with('/') => (name, rest),
        _ => ("", text),
    };
    let is_word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let is_name = name.len() <= 32 && !name.starts_with(['-', '.']) && name.bytes().all(is_word);
    if !is_name || name.is_empty() && rest.len() != text.len() {
        bail!(
            "`{name}` cannot be the name of a store: up to 32 letters, digits, `_`, `-`, `.`, not `-` or `.` first"
        );
    }
    let (path, about) = rest
        .rsplit_once(':')
        .context("give PATH:SIZE, such as /scm/tarn:400GiB, or NAME=PATH:SIZE")?;
    let (size, is_volatile) = match about.split_once(',') {
        Some((size, VOLATILE)) => (size, true),
        Some((_, other)) => bail!("`{other}`: only `{VOLATILE}` may follow a store"),
        None => (about, false),
    };
    let root = PathBuf::from(path);
    if !root.is_absolute() {
        bail!("{} is not absolute", root.display());
    }
    Ok(StoreSpec {
        name: name.to_owned(),
        root,
        bytes: parse_size(size)?,
        is_volatile,
    })
}

/// Whether these can be the stores of one node; `--volatile` is for an only one.
pub(crate) fn check(mut all: Vec<StoreSpec>, is_volatile: bool) -> anyhow::Result<Vec<StoreSpec>> {
    if let [one] = &mut all[..] {
        one.is_volatile |= is_volatile;
        return Ok(all);
    }
    if is_volatile {
        bail!(
            "`--volatile` is for one store; with several, add it to each: NAME=PATH:SIZE,{VOLATILE}"
        );
    }
    if all.len() > MAX_STORES {
        bail!("{} stores: at most {MAX_STORES}", all.len());
    }
    let mut names = BTreeSet::new();
    for store in &all {
        if store.name.is_empty() {
            bail!(
                "{}: of several stores each has a name: NAME=PATH:SIZE",
                store.root.display()
            );
        }
        if !names.insert(&store.name) {
            bail!("two stores are called `{}`", store.name);
        }
    }
    Ok(all)
}

impl NodeStores {
    /// Makes their folders, and takes them; with `erase`, removed data is overwritten first. A store that the others know, and
    /// that does not know itself, is not mounted: nothing is written there.
    pub(super) fn open(wanted: Vec<StoreSpec>, erase: bool) -> anyhow::Result<Self> {
        let marks: Vec<Option<StoreMarker>> = wanted
            .iter()
            .map(|store| StoreMarker::read(&store.root))
            .collect::<anyhow::Result<_>>()?;
        let known = marks.iter().flatten().flat_map(|mark| &mark.others);
        let known: BTreeSet<String> = known.cloned().collect();
        let mut all: Vec<One> = Vec::new();
        for (mut store, mark) in wanted.into_iter().zip(&marks) {
            let marked = mark.as_ref().and_then(|mark| mark.name.as_ref());
            if let Some(marked) =
                marked.filter(|marked| **marked != store.name && !store.name.is_empty())
            {
                bail!(
                    "the store at {} is `{marked}`, not `{}`: are file systems mounted in each other's places? If it is to be called so from now on, remove the line `store {marked}` from {MARK} in it",
                    store.root.display(),
                    store.name
                );
            }
            // Data in a volatile store is gone, wherever that is.
            let is_away = mark.is_none() && known.contains(&store.name) && !store.is_volatile;
            match is_away {
                true => tracing::error!(
                    store = store.name,
                    at = %store.root.display(),
                    "this store is not mounted: the data in it is not available. Mount it, and restart tarnd. If it is another, empty file system, or is lost, start tarnd once without it: the data that was there is then given up"
                ),
                false => store.root = prepare(&store.root)?,
            }
            let overlaps = |other: &&One| {
                !is_away
                    && !other.is_away
                    && (store.root.starts_with(&other.wanted.root)
                        || other.wanted.root.starts_with(&store.root))
            };
            if let Some(other) = all.iter().find(overlaps) {
                bail!(
                    "store `{}` is inside store `{}`, or contains it: give each a separate folder",
                    store.name,
                    other.wanted.name
                );
            }
            all.push(One {
                wanted: store,
                is_away,
            });
        }
        let mut locks = Vec::new();
        for one in all.iter().filter(|one| !one.is_away) {
            let root = &one.wanted.root;
            locks.push(RunLock::take(&root.join(".tarn-site.lock"))?);
            if erase {
                let mark = root.join(ERASE);
                std::fs::write(&mark, b"")
                    .with_context(|| format!("cannot write {}", mark.display()))?;
            }
        }
        let stores = Self { all, _locks: locks };
        let epoch = marks.iter().flatten().map(|mark| mark.epoch).max();
        // So that each knows of the others before anything is stored there.
        if stores.all.len() > 1 {
            stores
                .keep_epoch(epoch.unwrap_or(0))
                .context("the stores cannot be marked")?;
        }
        Ok(stores)
    }

    fn present(&self) -> impl Iterator<Item = &StoreSpec> {
        self.all
            .iter()
            .filter(|one| !one.is_away)
            .map(|one| &one.wanted)
    }

    /// Name and root of those that are there, fast to slow.
    pub(super) fn places(&self) -> Vec<(String, PathBuf)> {
        let place = |store: &StoreSpec| (store.name.clone(), store.root.clone());
        self.present().map(place).collect()
    }

    /// The roots of those that are there.
    pub(super) fn roots(&self) -> impl Iterator<Item = &Path> {
        self.present().map(|store| store.root.as_path())
    }

    /// The path of a store; one without a name is the first.
    pub(super) fn root_of(&self, name: &str) -> Result<&Path, RequestError> {
        let found = self
            .present()
            .find(|store| name.is_empty() || store.name == name);
        found
            .map(|store| store.root.as_path())
            .ok_or_else(|| no_such(name))
    }

    /// The highest term whose orders were taken here.
    pub(super) fn epoch(&self) -> anyhow::Result<Epoch> {
        let mut highest = 0;
        for root in self.roots() {
            highest = StoreMarker::read(root)?
                .map_or(0, |mark| mark.epoch)
                .max(highest);
        }
        Ok(highest)
    }

    /// Keeps a term, durably.
    pub(super) fn keep_epoch(&self, epoch: Epoch) -> std::io::Result<()> {
        for store in self.present() {
            let others = self.all.iter().map(|one| &one.wanted.name);
            let others = others.filter(|name| **name != store.name).cloned();
            let mark = StoreMarker {
                epoch,
                name: Some(store.name.clone()).filter(|name| !name.is_empty()),
                others: others.collect(),
            };
            mark.write(&store.root)?;
        }
        Ok(())
    }

    /// The report to the controller: the first, and all if they have names.
    pub(super) fn capacity_report(&self) -> (StoreCapacity, Vec<NodeStoreReport>) {
        let capacity = |one: &One| {
            let about = rustix::fs::statvfs(&one.wanted.root)
                .ok()
                .filter(|_| !one.is_away);
            StoreCapacity {
                root: one.wanted.root.clone(),
                bytes: one.wanted.bytes,
                free: about.map_or(0, |a| a.f_bavail.saturating_mul(a.f_frsize)),
                persistent: !one.wanted.is_volatile,
            }
        };
        let first = self
            .all
            .iter()
            .find(|one| !one.is_away)
            .or(self.all.first());
        let first = first.map(capacity).unwrap_or_else(|| StoreCapacity {
            root: PathBuf::new(),
            bytes: 0,
            free: 0,
            persistent: false,
        });
        let named = self.all.iter().filter(|one| !one.wanted.name.is_empty());
        let store = |one: &One| NodeStoreReport {
            name: one.wanted.name.clone(),
            capacity: capacity(one),
            is_away: one.is_away,
        };
        (first, named.map(store).collect())
    }
}

/// The root of a store, of those that a worker knows; one without a name is the first.
pub(super) fn root_in<'a>(
    places: &'a [(String, PathBuf)],
    name: &str,
) -> Result<&'a Path, RequestError> {
    let found = places
        .iter()
        .find(|(own, _)| name.is_empty() || own == name);
    found
        .map(|(_, root)| root.as_path())
        .ok_or_else(|| no_such(name))
}

fn no_such(name: &str) -> RequestError {
    let text = format!(
        "this node has no store `{}`, or it is not mounted",
        name.escape_debug()
    );
    RequestError::new(Code::Invalid, text)
}

/// The roots that have a part.
pub(super) fn having<'a>(roots: impl Iterator<Item = &'a Path>, part: &Part) -> Option<&'a Path> {
    let folder = part.folder()?;
    let mut roots = roots;
    roots.find(|root| std::fs::symlink_metadata(root.join(&folder)).is_ok())
}

impl StoreMarker {
    /// `None` where there is none.
    fn read(root: &Path) -> anyhow::Result<Option<Self>> {
        let path = root.join(MARK);
        match std::fs::read_to_string(&path) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(None)
            }
            other => {
                let text = other.with_context(|| format!("cannot read {}", path.display()))?;
                let mark = Self::parse(&text).with_context(|| {
                    format!("{} is of another version of tarnd, or damaged: if it is damaged, remove it when only one controller runs", path.display())
                })?;
                Ok(Some(mark))
            }
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let is_named = match lines.next()? {
            "tarn-site 1" => false,
            "tarn-site 2" => true,
            _ => return None,
        };
        let mut mark = Self {
            epoch: lines.next()?.strip_prefix("epoch ")?.trim().parse().ok()?,
            ..Self::default()
        };
        for line in lines {
            match line.split_once(' ')? {
                ("store", name) if is_named => mark.name = Some(name.to_owned()),
                ("beside", name) if is_named => drop(mark.others.insert(name.to_owned())),
                _ => return None,
            }
        }
        Some(mark)
    }

    fn write(&self, root: &Path) -> std::io::Result<()> {
        let version = if self.name.is_some() { 2 } else { 1 };
        let mut text = format!("tarn-site {version}\nepoch {}\n", self.epoch);
        if let Some(name) = &self.name {
            text += &format!("store {name}\n");
            text.extend(self.others.iter().map(|other| format!("beside {other}\n")));
        }
        let fresh = root.join(format!("{MARK}.new"));
        let mut file = std::fs::File::create(&fresh)?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, root.join(MARK))?;
        sync_folder(root)
    }
}

/// Makes a store's folder, which is root's. Users reach their own below it by the whole path only.
fn prepare(root: &Path) -> anyhow::Result<PathBuf> {
    tarn_sys::folder::may_make(&std::path::absolute(root)?)?;
    folder_of_root(root, 0o711)?;
    let root = root.canonicalize()?;
    let text = root.to_str().unwrap_or("\n");
    if text.contains(['\n', '\t']) {
        bail!(
            "{} cannot be written into a job's file: give the store a plain name",
            root.display()
        );
    }
    Ok(root)
}

/// Makes a folder that is root's.
pub(super) fn folder_of_root(path: &Path, mode: u32) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path);
    made.with_context(|| format!("cannot make {}", path.display()))?;
    let about = std::fs::symlink_metadata(path)?;
    if !about.is_dir() || about.uid() != 0 {
        bail!(
            "{} is not a folder of root: others could change the data in it",
            path.display()
        );
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_said_with_a_name_or_without() {
        let one = |name: &str, root: &str, is_volatile| StoreSpec {
            name: name.into(),
            root: root.into(),
            bytes: 4 << 30,
            is_volatile,
        };
        assert_eq!(
            wanted("/scm/tarn:4GiB").unwrap(),
            one("", "/scm/tarn", false)
        );
        assert_eq!(
            wanted("/a=b/tarn:4GiB").unwrap(),
            one("", "/a=b/tarn", false)
        );
        assert_eq!(
            wanted("pmem=/scm/tarn:4 GiB").unwrap(),
            one("pmem", "/scm/tarn", false)
        );
        assert_eq!(
            wanted("d-1=/x:y:4GiB,volatile").unwrap(),
            one("d-1", "/x:y", true)
        );
        for bad in [
            "scm:4GiB",
            "pmem=scm:4GiB",
            "=/scm:4GiB",
            "-x=/scm:4GiB",
            "a b=/scm:4GiB",
            "x=/scm",
            "x=/scm:4GiB,fast",
            "x=/scm:much",
        ] {
            assert!(wanted(bad).is_err(), "{bad}");
        }
        let stores = |all: &[&str]| all.iter().map(|s| wanted(s).unwrap()).collect::<Vec<_>>();
        assert!(check(stores(&["/a:1GiB"]), true).unwrap()[0].is_volatile);
        assert!(check(stores(&["a=/a:1GiB", "b=/b:1GiB"]), false).is_ok());
        for (all, volatile, expected) in [
            (vec!["a=/a:1GiB", "b=/b:1GiB"], true, "add it to each"),
            (vec!["a=/a:1GiB", "/b:1GiB"], false, "each has a name"),
            (vec!["a=/a:1GiB", "a=/b:1GiB"], false, "two stores"),
            (vec!["a=/a:1GiB"; 9], false, "at most 8"),
        ] {
            let why = check(stores(&all), volatile).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(StoreMarker::read(folder.path()).unwrap(), None);
        let lone = StoreMarker {
            epoch: 7,
            ..StoreMarker::default()
        };
        let named = StoreMarker {
            epoch: 8,
            name: Some("pmem".into()),
            others: ["dram".to_owned(), "nvme".to_owned()].into(),
        };
        for mark in [lone, named] {
            mark.write(folder.path()).unwrap();
            assert_eq!(StoreMarker::read(folder.path()).unwrap(), Some(mark));
        }
        for bad in [
            "",
            "tarn-site 3\nepoch 1\n",
            "tarn-site 1\nepoch x\n",
            "tarn-site 1\nepoch 1\nstore a\n",
            "tarn-site 2\nepoch 1\nroot a\n",
        ] {
            std::fs::write(folder.path().join(MARK), bad).unwrap();
            assert!(StoreMarker::read(folder.path()).is_err(), "{bad:?}");
        }
    }
}
