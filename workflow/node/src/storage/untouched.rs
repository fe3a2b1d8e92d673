//! Whether somebody has changed a replica since it was published, or read as a whole: the clock of its file system shows it,
//! however alike a file looks that is there now.
//!
//! A mark: the fraction of a second in the time of the replica's folder. It is 0 where the data was synced before; else it stands
//! for this boot of the machine, as a power cut may take data that was not synced. A change of the folder's entries sets another
//! time. All else in it has changed (ctime) no later than the folder, which changes last: by the rename that publishes it, or by
//! the mark. A replica without that is read again before it is used, which is all that a mark that was not set costs.

use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, UTIME_OMIT, chmod, utimensat};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;
use tarn_types::hash::Hash;

/// Seconds and nanoseconds.
type ChangeTimestamp = (i64, i64);

/// Which changes are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeScope {
    /// Of entries, and of files.
    All,
    /// Of entries: links to files may have come and gone, which is a change of theirs.
    Entries,
}

/// How long a mark holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkValidity {
    /// Until somebody changes the replica: its data was synced, or is synced before anybody may use it.
    Always,
    /// In this boot of the machine.
    ThisBoot,
}

impl MarkValidity {
    /// Nanoseconds, in a folder's time. None where the kernel does not name the boot: no mark holds.
    fn fraction(self) -> Option<i64> {
        let id = match self {
            Self::Always => return Some(0),
            Self::ThisBoot => std::fs::read("/proc/sys/kernel/random/boot_id").ok()?,
        };
        let hash = Hash::of(&id).0 % 999_999_999;
        Some(1 + i64::try_from(hash).ok()?)
    }
}

/// Sets the mark of a replica. One that has a mark keeps its time, as a process that reads it meanwhile takes another time for a
/// change; only the change time (ctime) of the folder is newer.
///
/// # Errors
/// When the time of its folder cannot be set.
pub fn mark(root: &Path, holds: MarkValidity) -> io::Result<()> {
    let Some(fraction) = holds.fraction() else {
        return Ok(());
    };
    let about = root.symlink_metadata()?;
    if about.mtime_nsec() == fraction {
        return Ok(chmod(root, Mode::from_raw_mode(about.mode() & 0o7777))?);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: i64::try_from(seconds).unwrap_or(0),
            tv_nsec: fraction,
        },
    };
    Ok(utimensat(CWD, root, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Whether nothing of a replica has changed since it was marked, and its mark still holds. One that cannot be looked at has
/// changed.
pub fn is_untouched(root: &Path, holds: MarkValidity, changes: ChangeScope) -> bool {
    let look = || -> io::Result<bool> {
        let about = root.symlink_metadata()?;
        let marked = (about.ctime(), about.ctime_nsec());
        Ok(holds.fraction() == Some(about.mtime_nsec())
            && newest(root, changes)?.is_none_or(|at| at <= marked))
    };
    look().unwrap_or(false)
}

/// Has a replica read, and marks it if it is good and nobody has changed it meanwhile. Whether it is good.
pub fn read_and_mark(root: &Path, holds: MarkValidity, read: impl FnOnce() -> bool) -> bool {
    let state = || {
        let own = root.symlink_metadata().ok()?;
        let newest = newest(root, ChangeScope::All).ok()?;
        Some((own.ctime(), own.ctime_nsec(), newest))
    };
    let before = state();
    let is_good = read();
    if is_good && before.is_some() && before == state() {
        // Without it, it is read again.
        let _ = mark(root, holds);
    }
    is_good
}

/// After links to its files have gone, that alone is no change. For who has made them.
pub(crate) fn links_gone(root: &Path) {
    if is_untouched(root, MarkValidity::ThisBoot, ChangeScope::Entries) {
        let _ = mark(root, MarkValidity::ThisBoot);
    }
}

/// When something below a folder has changed last.
fn newest(root: &Path, changes: ChangeScope) -> io::Result<Option<ChangeTimestamp>> {
    let mut newest = None;
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let is_folder = entry.file_type()?.is_dir();
            if is_folder || changes == ChangeScope::All {
                let about = entry.metadata()?;
                newest = newest.max(Some((about.ctime(), about.ctime_nsec())));
            }
            if is_folder {
                folders.push(entry.path());
            }
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const THIS: MarkValidity = MarkValidity::ThisBoot;

    fn replica() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("r");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("f"), "one").unwrap();
        fs::write(root.join("a/b/g"), "two").unwrap();
        mark(&root, THIS).unwrap();
        (dir, root)
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

    #[test]
    fn each_change_is_seen_though_it_hides() {
        let changes: [fn(&Path, &Path); 6] = [
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
            |root, _| {
                let file = root.join("a/b/g");
                let time = file.metadata().unwrap().modified().unwrap();
                fs::write(&file, "six").unwrap();
                let file = fs::File::options().write(true).open(&file).unwrap();
                file.set_modified(time).unwrap();
            },
            |root, _| fs::remove_file(root.join("f")).unwrap(),
            |root, _| fs::write(root.join("a/new"), "").unwrap(),
            |root, aside| fs::rename(root.join("a"), aside.join("a")).unwrap(),
        ];
        for (number, change) in changes.iter().enumerate() {
            let (dir, root) = replica();
            assert!(is_untouched(&root, THIS, ChangeScope::All), "{number}");
            tick(dir.path());
            change(&root, dir.path());
            assert!(!is_untouched(&root, THIS, ChangeScope::All), "{number}");
            assert!(read_and_mark(&root, THIS, || true));
            assert!(is_untouched(&root, THIS, ChangeScope::All), "{number}");
        }
    }

    #[test]
    fn a_mark_of_another_boot_or_of_another_kind_is_none() {
        let (_dir, root) = replica();
        assert!(!is_untouched(&root, MarkValidity::Always, ChangeScope::All));
        mark(&root, MarkValidity::Always).unwrap();
        assert!(is_untouched(&root, MarkValidity::Always, ChangeScope::All));
        assert!(!is_untouched(&root, THIS, ChangeScope::All));
        assert_ne!(THIS.fraction(), MarkValidity::Always.fraction());
        assert_eq!(THIS.fraction(), THIS.fraction());
    }

    /// A process that copies the replica meanwhile looks at that time.
    #[test]
    fn a_mark_that_is_set_again_leaves_the_time_of_the_folder() {
        let (dir, root) = replica();
        let times = || {
            let about = root.metadata().unwrap();
            let changed = (about.ctime(), about.ctime_nsec());
            (about.modified().unwrap(), about.mode(), changed)
        };
        let (modified, mode, changed) = times();
        tick(dir.path());
        links_gone(&root);
        let (modified_now, mode_now, changed_now) = times();
        assert_eq!((modified, mode), (modified_now, mode_now));
        assert!(changed < changed_now);
    }

    #[test]
    fn links_are_no_change_of_entries_and_a_bad_replica_is_not_marked() {
        let (dir, root) = replica();
        tick(dir.path());
        fs::hard_link(root.join("f"), dir.path().join("link")).unwrap();
        fs::remove_file(dir.path().join("link")).unwrap();
        assert!(
            !is_untouched(&root, THIS, ChangeScope::All)
                && is_untouched(&root, THIS, ChangeScope::Entries)
        );
        assert!(!read_and_mark(&root, THIS, || false));
        assert!(!is_untouched(&root, THIS, ChangeScope::All));
        links_gone(&root);
        assert!(is_untouched(&root, THIS, ChangeScope::All));
        tick(dir.path());
        let changes = || {
            fs::write(root.join("f"), "new").unwrap();
            true
        };
        assert!(read_and_mark(&root, THIS, changes));
        assert!(
            !is_untouched(&root, THIS, ChangeScope::All),
            "it was read while it changed"
        );
    }
}
