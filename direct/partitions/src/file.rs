//! The file of a partition.

use crate::error::{code, refused};
use crate::{Code, RequestError};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, fdatasync, flock, fstat, fsync, ftruncate,
    linkat, openat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_media::{Units, Using, clear_slots, reserve, unit_of};
use tarn_ports::MediumError;
use tarn_queue::header::{DATA, HEAD, Header, MAX_SIZE, MAX_UNIT, MIN_UNIT, PAGE, is_unit};
use tarn_sys::lock::hold_alone;
use tarn_types::grant::{Grant, MAX_GRANTS};

/// The suffix of a partition's file, after its name.
pub const SUFFIX: &str = ".partition";
/// The byte of the file whose lock is the header's: a process that changes the header has that, or has the partition alone.
const HEADER: Range<u64> = 0..1;
/// How long that is waited for: it is held for as long as space takes to be had.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a program that opens a partition waits for one that gives it another size: no longer than that takes.
const RESIZING: Duration = Duration::from_secs(1);
/// Between two looks at it.
const BETWEEN: Duration = Duration::from_millis(1);

/// The place of a partition: an open folder and the name in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartitionLocation<'a> {
    pub(crate) folder: &'a OwnedFd,
    /// The folder's path, for messages.
    pub(crate) path: &'a Path,
    pub(crate) name: &'a str,
}

impl PartitionLocation<'_> {
    /// The file's name in its folder.
    fn file_name(&self) -> String {
        format!("{}{SUFFIX}", self.name)
    }

    /// The file, for messages.
    pub(crate) fn file(&self) -> PathBuf {
        self.path.join(self.file_name())
    }
}

/// The other processes that may have a partition open during an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherOpeners {
    /// It is only looked at: nobody is kept from anything.
    Unasked,
    /// Any.
    Allowed,
    /// Nobody.
    None,
}

/// The properties of a new partition.
pub(crate) struct New<'a> {
    /// Bytes that it is written by; 0: it is mapped. None: as its medium is.
    pub(crate) unit: Option<u32>,
    pub(crate) grants: Vec<Grant>,
    /// The first bytes of its data, before zeros.
    pub(crate) first: &'a [u8],
}

impl New<'_> {
    /// Refuses what no partition of this size can be.
    fn check(&self, size: u64) -> Result<(), RequestError> {
        let text = if self.unit.is_some_and(|unit| unit != 0 && !is_unit(unit)) {
            format!(
                "a unit is a power of two of {MIN_UNIT} to {MAX_UNIT} bytes, or 0 where the partition is to be mapped"
            )
        } else {
            whole(size, 0)?;
            if self.grants.len() > MAX_GRANTS {
                format!("an access list has at most {MAX_GRANTS} lines")
            } else if self.first.len() as u64 > size {
                format!("{} bytes are more than {size}", self.first.len())
            } else {
                return Ok(());
            }
        };
        Err(RequestError::new(Code::Invalid, text))
    }
}

/// Makes a partition. It has its name once it is whole.
pub(crate) fn make(
    at: &PartitionLocation<'_>,
    size: u64,
    owner: u32,
    how: New<'_>,
) -> Result<(), RequestError> {
    how.check(size)?;
    let path = at.file();
    // Before its space is reserved for nothing.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if openat(at.folder, at.file_name(), flags, Mode::empty()).is_ok() {
        return Err(exists(&path));
    }
    // Without a name: if the program is killed, the unfinished file is gone with it.
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = openat(at.folder, ".", flags, Mode::RUSR | Mode::WUSR);
    let file = file.map_err(refused("make a partition in", at.path))?;
    fill(&file, &path, size, owner, how)?;
    publish(&file, at)
}

/// Reserves the space of a new partition, and writes what it begins with.
fn fill(
    file: &OwnedFd,
    path: &Path,
    size: u64,
    owner: u32,
    how: New<'_>,
) -> Result<(), RequestError> {
    ftruncate(file, DATA).map_err(refused("make", path))?;
    let unit = match how.unit {
        Some(0) => 0,
        wanted => unit_of(file, path, wanted).map_err(unusable)?,
    };
    let size = whole(size, unit)?;
    // Slots are before the data.
    let from = match unit {
        0 => DATA,
        _ => 0,
    };
    reserve(file, from, DATA + size).map_err(refused("reserve the space of", path))?;
    if unit > 0 {
        clear_slots(file, path).map_err(unusable)?;
    }
    // The header's sync is this one's, too.
    write_all(file, how.first, DATA).map_err(refused("write", path))?;
    let mut identity = [0; 16];
    rustix::rand::getrandom(&mut identity, rustix::rand::GetRandomFlags::empty())
        .map_err(refused("name", path))?;
    let header = Header {
        identity: u128::from_le_bytes(identity),
        number: 0,
        size,
        unit,
        owner,
        grants: how.grants,
    };
    write(file, &header, path).map(drop)
}

/// Gives a whole partition its name, durably.
fn publish(file: &OwnedFd, at: &PartitionLocation<'_>) -> Result<(), RequestError> {
    let path = at.file();
    let unnamed = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(file));
    let named = linkat(
        rustix::fs::CWD,
        unnamed,
        at.folder,
        at.file_name(),
        AtFlags::SYMLINK_FOLLOW,
    );
    named.map_err(|e| match e {
        Errno::EXIST => exists(&path),
        e => refused("name", &path)(e),
    })?;
    fsync(at.folder).map_err(|e| {
        // It was not made, so that it can be made again.
        let _ = unlinkat(at.folder, at.file_name(), AtFlags::empty());
        refused("sync", at.path)(e)
    })
}

fn exists(path: &Path) -> RequestError {
    let text = format!(
        "{} is there already: delete it first, or take another name",
        path.display()
    );
    RequestError::new(Code::Exists, text)
}

/// Bytes of a partition, up to whole pages and units.
fn whole(size: u64, unit: u32) -> Result<u64, RequestError> {
    match size {
        1..=MAX_SIZE => Ok(size.next_multiple_of(PAGE.max(unit.into()))),
        _ => {
            let text = format!("a partition has 1 to {MAX_SIZE} bytes, not {size}");
            Err(RequestError::new(Code::Invalid, text))
        }
    }
}

/// Opens a partition that is there, and holds its lock, if it is to, for as long as the file is open.
pub(crate) fn open(
    at: &PartitionLocation<'_>,
    writable: bool,
    others: OtherOpeners,
) -> Result<(OwnedFd, Header), RequestError> {
    let path = at.file();
    let access = match writable {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    };
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(at.folder, at.file_name(), flags, Mode::empty());
    let file = file.map_err(refused("open", &path))?;
    let lock = match others {
        OtherOpeners::Unasked => None,
        OtherOpeners::Allowed => Some(FlockOperation::NonBlockingLockShared),
        OtherOpeners::None => Some(FlockOperation::NonBlockingLockExclusive),
    };
    let until = Instant::now() + RESIZING;
    let locked = lock.map_or(Ok(()), |lock| {
        loop {
            match flock(&file, lock) {
                Err(Errno::WOULDBLOCK)
                    if others == OtherOpeners::Allowed && Instant::now() < until =>
                {
                    std::thread::sleep(BETWEEN);
                }
                done => return done,
            }
        }
    });
    locked.map_err(|e| match (e, others) {
        (Errno::WOULDBLOCK, OtherOpeners::Allowed) => {
            let text = format!("{} is being deleted or made smaller", path.display());
            RequestError::new(Code::Busy, text)
        }
        (Errno::WOULDBLOCK, OtherOpeners::None) => {
            let text = format!("{} is open: close it everywhere first", path.display());
            RequestError::new(Code::Busy, text)
        }
        (e, _) => refused("lock", &path)(e),
    })?;
    let header = header(&file, &path)?;
    Ok((file, header))
}

/// The header in the file.
pub(crate) fn header(file: &OwnedFd, path: &Path) -> Result<Header, RequestError> {
    let stat = fstat(file).map_err(refused("examine", path))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let text = format!("{} is no file", path.display());
        return Err(RequestError::new(Code::Invalid, text));
    }
    if stat.st_nlink == 0 {
        let text = format!("{} was deleted meanwhile", path.display());
        return Err(RequestError::new(Code::NotFound, text));
    }
    header_of(file, stat.st_size as u64, path)
}

fn header_of(file: &OwnedFd, size: u64, path: &Path) -> Result<Header, RequestError> {
    let mut head = vec![0; HEAD];
    let mut read = 0;
    while read < head.len() {
        match pread(file, &mut head[read..], read as u64).map_err(refused("read", path))? {
            0 => break,
            more => read += more,
        }
    }
    Header::newest(&head[..read], size).ok_or_else(|| {
        let text = format!(
            "{} is no partition, or of a newer version of tarn, or damaged: both copies of its header, or it was made shorter",
            path.display()
        );
        RequestError::new(Code::Corrupt, text)
    })
}

/// Begins to use an open partition in units, and so makes whole what is torn.
pub(crate) fn units(
    file: OwnedFd,
    header: &Header,
    path: &Path,
    writable: bool,
    guarded: bool,
) -> Result<Units, RequestError> {
    let using = Using {
        from: DATA,
        unit: header.unit,
        identity: header.identity,
        writable,
        guarded,
    };
    Units::new(file, path, using, header.size).map_err(unusable)
}

/// Why a medium cannot be used.
pub(crate) fn unusable(why: MediumError) -> RequestError {
    let kind = match &why {
        MediumError::Io { source, .. } => code(source),
        _ => Code::Internal,
    };
    RequestError::new(kind, why.to_string())
}

/// Makes a partition larger that others may have open, if it is not as large; bytes of it then. The file is open here only.
pub(crate) fn grow(file: &OwnedFd, size: u64, path: &Path) -> Result<u64, RequestError> {
    let held = hold_alone(file, &HEADER, TIMEOUT).map_err(refused("lock", path))?;
    if !held {
        let text = format!(
            "another program has held the lock of {} for {TIMEOUT:?}: if it was stopped, let it continue or end it",
            path.display()
        );
        return Err(RequestError::new(Code::Busy, text));
    }
    let now = header(file, path)?;
    match size > now.size {
        true => Ok(resize(file, &now, size, path)?.size),
        false => Ok(now.size),
    }
}

/// Gives a partition another size. A process that makes it smaller has it alone; one that makes it larger has that, or its
/// header's lock.
pub(crate) fn resize(
    file: &OwnedFd,
    old: &Header,
    size: u64,
    path: &Path,
) -> Result<Header, RequestError> {
    let new = Header {
        size: whole(size, old.unit)?,
        ..old.again()
    };
    let cut = |size: u64| ftruncate(file, DATA + size).map_err(refused("cut", path));
    if new.size > old.size {
        // Nobody has mapped the bytes that a killed program has left behind the end.
        cut(old.size)?;
        reserve(file, DATA + old.size, DATA + new.size).map_err(|e| {
            let _ = cut(old.size);
            refused("reserve the space of", path)(e)
        })?;
    }
    let written = write(file, &new, path)?;
    // Of the same size, too: somebody may have failed to make it smaller.
    if new.size <= old.size {
        cut(new.size)?;
    }
    Ok(written)
}

fn write_all(file: &OwnedFd, bytes: &[u8], at: u64) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += pwrite(file, &bytes[done..], at + done as u64)?;
    }
    Ok(())
}

/// Writes the same content to both copies of the header, one after the other; the second is the one that holds then.
fn write(file: &OwnedFd, header: &Header, path: &Path) -> Result<Header, RequestError> {
    let both = [header.clone(), header.again()];
    for header in &both {
        write_all(file, &header.encode(), header.place()).map_err(refused("write", path))?;
        fdatasync(file).map_err(refused("sync", path))?;
    }
    let [_, last] = both;
    Ok(last)
}

/// Takes the name away. Nobody else has it open.
pub(crate) fn delete(at: &PartitionLocation<'_>) -> Result<(), RequestError> {
    let path = at.file();
    // A damaged one can be deleted too, if it is one that nobody has.
    match open(at, false, OtherOpeners::None) {
        Ok(_) => {}
        Err(why) if why.code == Code::Corrupt => {}
        Err(why) => return Err(why),
    }
    let unlinked = unlinkat(at.folder, at.file_name(), AtFlags::empty());
    unlinked.map_err(refused("delete", &path))?;
    fsync(at.folder).map_err(refused("sync", at.path))
}
