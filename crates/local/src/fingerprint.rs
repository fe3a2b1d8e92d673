//! Whether a replica is still what was published. Its *fingerprint* tells: a hash of what the file system says of each of its entries,
//! kept outside of the replica. A replica without a fingerprint, or with another one, is read before it is used.
//!
//! The fingerprint has the time of each file's last change (ctime), which no program can set. Links change that time too, so whoever
//! makes or removes links to a replica's files takes its fingerprint again, under a lock: [`change_links`].

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tarn_base::hash::{Hash, Hasher};
use tarn_base::layout::TierDir;
use tarn_sys::beneath::write_in_place;
use tarn_sys::lock::Lock;

/// What a file with a fingerprint begins with: its format.
const MAGIC: &[u8; 8] = b"tarnfpr1";
/// How long others may have the lock. Whoever does not get it leaves a fingerprint that does not fit, which costs one read.
const PATIENCE: Duration = Duration::from_secs(5);
/// On a file system whose times are whole seconds, a file that was changed so recently can change again without a trace.
const SETTLED: i64 = 2;

/// A replica, and where its fingerprint is kept.
#[derive(Debug, Clone)]
pub struct Replica {
    tree: PathBuf,
    file: PathBuf,
    lock: PathBuf,
}

impl Replica {
    /// A replica whose fingerprint is in `file`. `lock`: the folder that is locked while links come and go.
    pub fn new(tree: PathBuf, file: PathBuf, lock: PathBuf) -> Self {
        Self { tree, file, lock }
    }

    /// A replica among all fingerprints of a folder, by its name.
    pub(crate) fn among(tree: PathBuf, folder: PathBuf) -> Self {
        let name = tree.file_name().unwrap_or_default();
        Self {
            file: folder.join(name),
            tree,
            lock: folder,
        }
    }

    /// A replica on a tier, `<node>/parts/<key>`: of this workflow or of another one.
    pub(crate) fn on_tier(tree: PathBuf) -> Self {
        let node = tree.ancestors().nth(2).unwrap_or(&tree);
        let folder = TierDir(node.to_owned()).fingerprints();
        Self::among(tree, folder)
    }

    /// Takes the fingerprint of what has just been published.
    ///
    /// # Errors
    /// When the replica cannot be looked at, or the fingerprint not be written.
    pub fn publish(&self) -> io::Result<()> {
        self.keep(Fingerprint::of(&self.tree)?)
    }

    /// Whether nothing of it has changed since its fingerprint was taken. What cannot be looked at has.
    pub fn is_untouched(&self) -> bool {
        // Somebody may be making links to it at this moment.
        self.fits() || self.locked().is_ok_and(|_lock| self.fits())
    }

    /// Has it read; if it is good, and nobody has changed it meanwhile, that is its fingerprint from now on. Whether it is good.
    pub fn read(&self, read: impl FnOnce() -> bool) -> bool {
        let before = Fingerprint::of(&self.tree).ok();
        let is_good = read();
        if is_good
            && let Some(before) = before
            && let Ok(_lock) = self.locked()
            && Fingerprint::of(&self.tree).is_ok_and(|now| now == before)
        {
            // Without it, it is read again.
            let _ = self.keep(before);
        }
        is_good
    }

    fn fits(&self) -> bool {
        let kept = self.kept();
        kept.is_some() && Fingerprint::of(&self.tree).is_ok_and(|now| Some(now.hash) == kept)
    }

    fn kept(&self) -> Option<Hash> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, &self.file, flags, Mode::empty()).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::with_capacity(32);
        file.take(32).read_to_end(&mut bytes).ok()?;
        let hash = bytes.strip_prefix(MAGIC)?;
        Some(Hash(u128::from_le_bytes(hash.try_into().ok()?)))
    }

    /// Torn by a crash, it fits nothing.
    fn keep(&self, fingerprint: Fingerprint) -> io::Result<()> {
        if !fingerprint.is_settled(SystemTime::now()) {
            return match std::fs::remove_file(&self.file) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
        }
        make_lock_folder(&self.lock)?;
        let hash = fingerprint.hash.0.to_le_bytes();
        write_in_place(&self.file, &[&MAGIC[..], &hash].concat())
    }

    fn locked(&self) -> io::Result<Lock<File>> {
        Ok(Lock::wait(self.lock_folder()?, PATIENCE)?)
    }

    fn lock_folder(&self) -> io::Result<File> {
        make_lock_folder(&self.lock)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(CWD, &self.lock, flags, Mode::empty())?.into())
    }
}

fn make_lock_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Makes or removes links to files of replicas, or both. Those that nobody has changed until then keep a fingerprint that fits.
pub fn change_links<T>(replicas: &[Replica], change: impl FnOnce() -> T) -> T {
    // Each folder once, and in one order, as others take them.
    let mut folders = BTreeMap::new();
    for replica in replicas {
        if let Ok(folder) = replica.lock_folder()
            && let Ok(about) = fstat(&folder)
        {
            folders.insert((about.st_dev, about.st_ino), folder);
        }
    }
    let locks = folders.into_values().map(|f| Lock::wait(f, PATIENCE));
    let locks: Result<Vec<_>, _> = locks.collect();
    let untouched: Vec<&Replica> = match &locks {
        Ok(_) => replicas.iter().filter(|r| r.fits()).collect(),
        Err(_) => Vec::new(),
    };
    let done = change();
    for replica in untouched {
        // Without it, the replica is read again.
        let _ = replica.publish();
    }
    done
}

/// What the file system says of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    hash: Hash,
    /// When a file in it changed last: seconds and nanoseconds.
    newest: Option<(i64, i64)>,
}

impl Fingerprint {
    fn of(tree: &Path) -> io::Result<Self> {
        let (mut hasher, mut newest) = (Hasher::new(), None);
        let top = tree.symlink_metadata()?;
        hasher.number(top.ino()).number(top.mode().into());
        let mut folders = vec![tree.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let mut entries = std::fs::read_dir(&folder)?.collect::<io::Result<Vec<_>>>()?;
            entries.sort_by_key(std::fs::DirEntry::file_name);
            hasher.number(entries.len() as u64);
            for entry in entries {
                let about = entry.metadata()?;
                hasher.field(entry.file_name().as_bytes());
                hasher.number(about.ino()).number(about.mode().into());
                if about.is_dir() {
                    // All that matters of it is in its entries.
                    folders.push(entry.path());
                    continue;
                }
                let changed = (about.ctime(), about.ctime_nsec());
                hasher.number(about.size());
                hasher.number(changed.0.cast_unsigned());
                hasher.number(changed.1.cast_unsigned());
                newest = newest.max(Some(changed));
            }
        }
        Ok(Self {
            hash: hasher.finish(),
            newest,
        })
    }

    /// Whether every later change of a file gives it another time.
    fn is_settled(&self, now: SystemTime) -> bool {
        let Some((seconds, 0)) = self.newest else {
            return true;
        };
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs().cast_signed());
        now.saturating_sub(seconds) >= SETTLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;

    fn replica() -> (tempfile::TempDir, PathBuf, Replica) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("node/parts/k");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("f"), "one").unwrap();
        fs::write(root.join("a/b/g"), "two").unwrap();
        let replica = Replica::on_tier(root.clone());
        replica.publish().unwrap();
        (dir, root, replica)
    }

    /// The clocks of file systems tick every few milliseconds.
    fn tick(folder: &Path) {
        let at = |n: u32| {
            let file = folder.join(format!("tick{n}"));
            fs::write(&file, "").unwrap();
            let about = file.metadata().unwrap();
            (about.ctime(), about.ctime_nsec())
        };
        let first = at(0);
        while at(1) == first {}
    }

    /// Of the same size and time as before.
    fn write_unseen(file: &Path) {
        let time = file.metadata().unwrap().modified().unwrap();
        fs::write(file, "six").unwrap();
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_modified(time).unwrap();
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// As `cp -a` does it.
    fn copy(from: &Path, to: &Path) {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let (about, to) = (entry.metadata().unwrap(), to.join(entry.file_name()));
            match about.is_dir() {
                true => copy(&entry.path(), &to),
                false => drop(fs::copy(entry.path(), &to).unwrap()),
            }
            let made = fs::File::open(&to).unwrap();
            made.set_modified(about.modified().unwrap()).unwrap();
        }
        let time = from.metadata().unwrap().modified().unwrap();
        fs::File::open(to).unwrap().set_modified(time).unwrap();
    }

    #[test]
    fn each_change_is_seen_though_it_hides() {
        let changes: [fn(&Path, &Path); 9] = [
            |root, aside| {
                fs::write(aside.join("n"), "six").unwrap();
                let time = root.join("f").metadata().unwrap().modified().unwrap();
                let file = fs::File::options()
                    .write(true)
                    .open(aside.join("n"))
                    .unwrap();
                file.set_modified(time).unwrap();
                fs::rename(aside.join("n"), root.join("f")).unwrap();
            },
            |root, aside| {
                fs::write(aside.join("n"), "six").unwrap();
                fs::rename(aside.join("n"), root.join("a/b/g")).unwrap();
            },
            |root, _| write_unseen(&root.join("a/b/g")),
            |root, _| fs::remove_file(root.join("f")).unwrap(),
            |root, _| fs::write(root.join("a/new"), "").unwrap(),
            |root, aside| fs::rename(root.join("a"), aside.join("a")).unwrap(),
            // The folder itself has changed last.
            |root, _| {
                write_unseen(&root.join("f"));
                set_mode(root, 0o700);
                set_mode(root, 0o755);
            },
            |root, aside| {
                let copied = aside.join("copy");
                copy(root, &copied);
                write_unseen(&copied.join("f"));
                fs::rename(root, aside.join("before")).unwrap();
                fs::rename(&copied, root).unwrap();
            },
            |root, _| set_mode(&root.join("a/b/g"), 0o400),
        ];
        for (number, change) in changes.iter().enumerate() {
            let (dir, root, replica) = replica();
            assert!(replica.is_untouched(), "{number}");
            tick(dir.path());
            change(&root, dir.path());
            assert!(!replica.is_untouched(), "{number}");
            assert!(replica.read(|| true));
            assert!(replica.is_untouched(), "{number}");
        }
    }

    #[test]
    fn links_that_are_told_of_are_no_change_and_hide_none() {
        let (dir, root, replica) = replica();
        let all = [replica.clone()];
        let view = dir.path().join("view");
        tick(dir.path());
        change_links(&all, || fs::hard_link(root.join("f"), &view).unwrap());
        assert!(replica.is_untouched());
        tick(dir.path());
        change_links(&all, || fs::remove_file(&view).unwrap());
        assert!(replica.is_untouched());
        change_links(&all, || fs::hard_link(root.join("f"), &view).unwrap());
        // While the view is there, in place and through it.
        for file in [root.join("f"), view.clone()] {
            tick(dir.path());
            write_unseen(&file);
            assert!(!replica.is_untouched());
            change_links(&all, || ());
            assert!(!replica.is_untouched());
            assert!(replica.read(|| true) && replica.is_untouched());
        }
        tick(dir.path());
        write_unseen(&view);
        change_links(&all, || fs::remove_file(&view).unwrap());
        assert!(!replica.is_untouched());
    }

    #[test]
    fn a_view_that_is_being_made_is_waited_for() {
        let (dir, root, replica) = replica();
        tick(dir.path());
        let (made, is_made) = mpsc::channel();
        let view = dir.path().join("view");
        std::thread::scope(|s| {
            let (replica, view, root) = (&replica, &view, &root);
            s.spawn(move || {
                change_links(std::slice::from_ref(replica), || {
                    fs::hard_link(root.join("f"), view).unwrap();
                    made.send(()).unwrap();
                });
            });
            is_made.recv().unwrap();
            assert!(replica.is_untouched());
        });
    }

    #[test]
    fn a_bad_replica_and_one_that_changes_meanwhile_have_no_fingerprint_that_fits() {
        let (dir, root, replica) = replica();
        tick(dir.path());
        write_unseen(&root.join("f"));
        assert!(!replica.read(|| false) && !replica.is_untouched());
        let changes = || {
            tick(dir.path());
            fs::write(root.join("f"), "new").unwrap();
            true
        };
        assert!(replica.read(changes));
        assert!(!replica.is_untouched(), "it was read while it changed");
    }

    #[test]
    fn what_is_missing_torn_or_no_file_fits_nothing() {
        let (_dir, _, replica) = replica();
        let whole = fs::read(&replica.file).unwrap();
        for length in 0..whole.len() {
            fs::write(&replica.file, &whole[..length]).unwrap();
            assert!(!replica.is_untouched(), "{length}");
        }
        let mut torn = whole.clone();
        torn[12..].fill(0);
        fs::write(&replica.file, torn).unwrap();
        assert!(!replica.is_untouched());
        fs::write(&replica.file, &whole).unwrap();
        assert!(replica.is_untouched());
        fs::remove_file(&replica.file).unwrap();
        assert!(!replica.is_untouched());
        fs::create_dir(&replica.file).unwrap();
        assert!(!replica.is_untouched() && replica.read(|| true));
    }

    #[test]
    fn times_in_whole_seconds_are_relied_on_when_they_are_old_enough() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let of = |newest| Fingerprint {
            hash: Hash(0),
            newest,
        };
        let whole = of(Some((100, 0)));
        let settled: Vec<u64> = (98..=104).filter(|s| whole.is_settled(at(*s))).collect();
        assert_eq!(settled, [102, 103, 104]);
        assert!(of(Some((100, 1))).is_settled(at(100)) && of(None).is_settled(at(0)));
    }
}
