//! Files that appear whole or not at all, whenever the program ends.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Writes a file that is not there yet. It has its name once `fill` has written it and it is synced.
///
/// # Errors
/// `AlreadyExists`, the system's error, or that of `fill`: nothing of the file is there then.
pub fn create(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let folder = folder_of(path);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match open(folder, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => {
            let mut file = File::from(file);
            fill(&mut file)?;
            file.sync_all()?;
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
        }
        // Network file systems have no files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => hidden(path, fill)?,
        Err(e) => return Err(e.into()),
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.inspect_err(|_| drop(fs::remove_file(path)))
}

/// Replaces a file, or makes it: a reader sees the old one or the new one, whole, also while others replace it. Rights stay as they
/// are, and a link still leads to the file, there yet or not; a new one has `mode`, if that is given. An existing object that is no
/// regular file, such as a pipe, is written to.
///
/// # Errors
/// The system's error: the old file is unchanged then.
pub fn replace(path: &Path, bytes: &[u8], mode: Option<u32>) -> Result<()> {
    let path = followed(path)?;
    let old = fs::metadata(&path).ok();
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return fs::write(&path, bytes);
    }
    let mode = old.as_ref().map(|old| old.mode() & 0o7777).or(mode);
    let fill = |file: &mut File| {
        if let Some(old) = old.as_ref().filter(|_| geteuid().is_root()) {
            fchown(&*file, Some(old.uid()), Some(old.gid()))?;
        }
        if let Some(mode) = mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.write_all(bytes)?;
        file.sync_all()
    };
    let folder = folder_of(&path);
    let rights = Mode::from_raw_mode(if mode.is_some() { 0o600 } else { 0o666 });
    for _ in 0..TRIES {
        let part = named(folder, rights, &path, fill)?;
        match fs::rename(&part, &path) {
            Ok(()) => return File::open(folder)?.sync_all(),
            // Another one that replaces it has put this in its place, or removed it.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => {
                let _ = fs::remove_file(&part);
                return Err(e);
            }
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}

/// How often a file is written again that others replace at the same time.
const TRIES: u32 = 100;
/// Links that lead to each other: more are refused, as the kernel does.
const MAX_LINKS: u32 = 40;

/// The target of a path, whether there is a file or not.
fn followed(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(to) => path = folder_of(&path).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(Errno::LOOP.into())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Makes a whole file in the folder, which is to take the place of `path`: written without a name, then linked to a name that the
/// next such file of this path has too, so that a killed process's file is removed. A planted object of this name is removed too.
fn named(
    folder: &Path,
    rights: Mode,
    path: &Path,
    fill: impl Fn(&mut File) -> Result<()>,
) -> Result<PathBuf> {
    let part = folder.join(part_of(path));
    match open(
        folder,
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        rights,
    ) {
        Ok(file) => {
            let mut file = File::from(file);
            fill(&mut file)?;
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            let link = |to: &Path| linkat(CWD, &unnamed, CWD, to, AtFlags::SYMLINK_FOLLOW);
            for _ in 0..TRIES {
                match link(&part) {
                    Err(Errno::EXIST) => match fs::remove_file(&part) {
                        Err(e) if e.kind() != ErrorKind::NotFound => break,
                        _ => {}
                    },
                    made => return made.map(|()| part).map_err(Into::into),
                }
            }
            let part = unique(folder)?;
            link(&part)?;
            Ok(part)
        }
        // Network file systems have no files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let part = unique(folder)?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY;
            let mut file = File::from(open(&part, flags | OFlags::CLOEXEC, rights)?);
            fill(&mut file).inspect_err(|_| drop(fs::remove_file(&part)))?;
            Ok(part)
        }
        Err(e) => Err(e.into()),
    }
}

/// The name of the file that is to take a file's place, however long the file's is.
fn part_of(path: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    path.file_name().hash(&mut hasher);
    format!(".tarn-{:016x}", hasher.finish())
}

/// A name that nobody can have taken.
fn unique(folder: &Path) -> Result<PathBuf> {
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty())?;
    Ok(folder.join(format!(".tarn-{:016x}", u64::from_le_bytes(number))))
}

/// The same by a name of its own, which stays if the program is killed.
fn hidden(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished: PathBuf = path.with_file_name(format!(".{name}.{}.tarn", std::process::id()));
    let mut file = File::create_new(&unfinished)?;
    let written = fill(&mut file)
        .and_then(|()| file.sync_all())
        // Not over one that is there.
        .and_then(|()| fs::hard_link(&unfinished, path));
    let gone = fs::remove_file(&unfinished);
    written?;
    gone.inspect_err(|_| drop(fs::remove_file(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        type Way = fn(&Path, &dyn Fn(&mut File) -> Result<()>) -> Result<()>;
        let ways: [Way; 2] = [
            |path, fill| create(path, fill),
            |path, fill| hidden(path, fill),
        ];
        for way in ways {
            let broken = |file: &mut File| {
                file.write_all(b"half")?;
                Err(ErrorKind::Other.into())
            };
            way(&path, &broken).unwrap_err();
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
            way(&path, &|file| file.write_all(b"whole")).unwrap();
            let again = way(&path, &|file| file.write_all(b"other")).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&path).unwrap(), b"whole");
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn what_is_replaced_keeps_its_rights_and_links_lead_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        replace(&path, b"one", Some(0o604)).unwrap();
        assert_eq!(mode(), 0o604);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        replace(&link, b"two", None).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"two".to_vec(), 0o640));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        replace(Path::new("/dev/null"), b"three", None).unwrap();
        replace(folder.path(), b"four", None).unwrap_err();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    }

    /// An object that others have put under the name of the new file is neither waited for nor written to.
    #[test]
    fn what_is_planted_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        let part = folder.path().join(part_of(&path));
        fs::write(&other, b"mine").unwrap();
        let mkfifo = || {
            let made = std::process::Command::new("mkfifo").arg(&part).status();
            assert!(made.unwrap().success());
        };
        let plants: [&dyn Fn(); 4] = [
            &mkfifo,
            &|| fs::hard_link(&other, &part).unwrap(),
            &|| std::os::unix::fs::symlink("other", &part).unwrap(),
            &|| fs::create_dir(&part).unwrap(),
        ];
        for (n, plant) in plants.into_iter().enumerate() {
            plant();
            let text = n.to_string();
            replace(&path, text.as_bytes(), None).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::read(&other).unwrap(), b"mine");
        }
        fs::remove_dir(&part).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    }

    #[test]
    fn of_many_that_replace_it_at_once_each_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(250));
        let texts: Vec<Vec<u8>> = (0..4u8).map(|n| vec![b'a' + n; 1 << 16]).collect();
        std::thread::scope(|scope| {
            for text in &texts {
                let path = &path;
                scope.spawn(move || (0..50).for_each(|_| replace(path, text, None).unwrap()));
            }
            for _ in 0..200 {
                let read = fs::read(&path).unwrap_or_else(|_| texts[0].clone());
                assert!(texts.contains(&read));
            }
        });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn a_link_that_leads_nowhere_yet_leads_to_the_file_then() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("link"), folder.path().join("file"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        replace(&link, b"text", None).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"text");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        std::os::unix::fs::symlink("around", folder.path().join("around")).unwrap();
        replace(&folder.path().join("around"), b"text", None).unwrap_err();
    }
}
