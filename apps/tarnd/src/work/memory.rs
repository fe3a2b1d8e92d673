//! Memory of a program to a file, and a file to memory. The memory is read and written by system calls, never mapped: a
//! program that shrinks its memfd meanwhile makes the task fail, and nothing else.

use super::place::{ConfinedPath, hidden, id_of, kind_of, to_request_error};
use super::{FilePoolState, TaskEndpoint, TaskPlan, TaskVerb, copy as files};
use crate::connection::ProgramRegion;
use crate::fingerprint::fingerprint;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, FileType, Mode, OFlags, fadvise, fdatasync, fstat, openat};
use rustix::io::{Errno, pread, pwrite};
use tarn_mover::ContentHasher;
use tarn_ports::{Control, Mover};
use tarn_proto::local::{Code, CopyVerification, RequestError};
use tarn_tasks::Finish;
use tarn_types::hash::Hash;

/// Bytes of one read and write: they stay in the second-level cache (docs/internals/movers.md measures it).
const PIECE: usize = 128 << 10;

/// One side of a copy.
pub(super) struct CopySide<'a> {
    pub(super) fd: &'a OwnedFd,
    pub(super) offset: u64,
    pub(super) name: &'a str,
}

pub(super) fn refuse(side: &CopySide<'_>, doing: &str, errno: Errno) -> RequestError {
    let code = match errno {
        Errno::NOSPC => Code::NoSpace,
        Errno::DQUOT => Code::Quota,
        _ => Code::Io,
    };
    RequestError::new(code, format!("cannot {doing} `{}`: {errno}", side.name))
}

pub(super) fn shorter(side: &CopySide<'_>) -> RequestError {
    let text = format!("`{}` became shorter while it was read", side.name);
    RequestError::new(Code::Changed, text)
}

/// Writes all of `rest`, from `done` bytes on.
pub(super) fn write(to: &CopySide<'_>, done: u64, mut rest: &[u8]) -> Result<(), RequestError> {
    let mut at = to.offset + done;
    while !rest.is_empty() {
        let n = pwrite(to.fd, rest, at).map_err(|e| refuse(to, "write", e))?;
        rest = &rest[n..];
        at += n as u64;
    }
    Ok(())
}

/// Copies `length` bytes and hashes them.
fn pump(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: &CopySide<'_>,
    to: &CopySide<'_>,
    length: u64,
    control: &Control,
) -> Result<Hash, RequestError> {
    let limiter = shared.limiter(plan);
    let mut buffer = vec![0; PIECE];
    let mut hasher = ContentHasher::default();
    let mut done = 0;
    while done < length {
        if control.cancelled() {
            return Err(RequestError::new(Code::Cancelled, "cancelled"));
        }
        let want = usize::try_from(length - done).map_or(PIECE, |left| left.min(PIECE));
        if let Some(limiter) = &limiter {
            let bytes = limiter.bytes(want as u64, control);
            bytes.map_err(|e| to_request_error(&e, &[]))?;
        }
        let got = pread(from.fd, &mut buffer[..want], from.offset + done)
            .map_err(|e| refuse(from, "read", e))?;
        if got == 0 {
            return Err(shorter(from));
        }
        if plan.verify != CopyVerification::None || plan.verb == TaskVerb::Move {
            hasher.update(&buffer[..got]);
        }
        write(to, done, &buffer[..got])?;
        control.advance(got as u64);
        done += got as u64;
    }
    Ok(hasher.finish())
}

/// The hash of a program's memory.
pub(crate) fn hash_memory(
    region: &ProgramRegion,
    offset: u64,
    length: u64,
    control: &Control,
) -> Result<Hash, RequestError> {
    let side = CopySide {
        fd: &region.fd,
        offset,
        name: "the memory",
    };
    hash(&side, length, control)
}

/// Reads and hashes.
pub(super) fn hash(
    from: &CopySide<'_>,
    length: u64,
    control: &Control,
) -> Result<Hash, RequestError> {
    let mut buffer = vec![0; PIECE];
    let mut hasher = ContentHasher::default();
    let mut done = 0;
    while done < length {
        if control.cancelled() {
            return Err(RequestError::new(Code::Cancelled, "cancelled"));
        }
        let want = usize::try_from(length - done).map_or(PIECE, |left| left.min(PIECE));
        let got = pread(from.fd, &mut buffer[..want], from.offset + done)
            .map_err(|e| refuse(from, "read", e))?;
        if got == 0 {
            return Err(shorter(from));
        }
        hasher.update(&buffer[..got]);
        done += got as u64;
    }
    Ok(hasher.finish())
}

/// Copies between memory and a file.
pub(super) fn copy(
    shared: &FilePoolState,
    plan: &TaskPlan,
    from: &TaskEndpoint,
    to: &TaskEndpoint,
    control: &Control,
) -> Result<Finish, RequestError> {
    match (from, to) {
        (
            TaskEndpoint::Memory {
                region,
                offset,
                length,
            },
            file,
        ) => {
            let held = ConfinedPath::open(file, true)?;
            let memory = CopySide {
                fd: &region.fd,
                offset: *offset,
                name: "the memory",
            };
            let copied = save(shared, plan, &memory, *length, &held, control);
            copied.inspect_err(|_| files::clean(shared, plan, &held))
        }
        (
            file,
            TaskEndpoint::Memory {
                region,
                offset,
                length,
            },
        ) => {
            let held = ConfinedPath::open(file, false)?;
            let memory = CopySide {
                fd: &region.fd,
                offset: *offset,
                name: "the memory",
            };
            load(shared, plan, &held, &memory, *length, control)
        }
        _ => Err(RequestError::new(Code::Internal, "no memory in this task")),
    }
}

/// Memory to a file, which appears whole.
fn save(
    shared: &FilePoolState,
    plan: &TaskPlan,
    memory: &CopySide<'_>,
    length: u64,
    held: &ConfinedPath,
    control: &Control,
) -> Result<Finish, RequestError> {
    let there = held.stat()?.is_some();
    if there && !plan.replace {
        return Err(held.exists());
    }
    let replaced = match there {
        true => files::stored(shared, held)?,
        false => 0,
    };
    let staged = hidden(plan.id, "");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(
        held.folder(),
        &staged[..],
        flags,
        Mode::from_raw_mode(0o666),
    )
    .map_err(|e| held.failed("create", e))?;
    let file = CopySide {
        fd: &fd,
        offset: 0,
        name: held.place(),
    };
    let hash = pump(shared, plan, memory, &file, length, control)?;
    if plan.durable || plan.verify == CopyVerification::Readback {
        fdatasync(&fd).map_err(|e| held.failed("sync", e))?;
    }
    if plan.verify == CopyVerification::Readback {
        // From the device, where it has reached one.
        let _ = fadvise(fd.as_fd(), 0, None, Advice::DontNeed);
        prove(self::hash(&file, length, control)?, hash, &file)?;
    }
    let stored = fstat(&fd).map_or(0, |s| u64::try_from(s.st_blocks).unwrap_or(0) * 512);
    if !held.rename(&staged, held, plan.replace)? {
        return Err(held.failed("make", Errno::XDEV));
    }
    if there {
        // The replaced object, a folder perhaps.
        let old = shared.mover.remove(&held.path_of(&staged));
        old.map_err(|e| to_request_error(&e, &[held]))?;
    }
    Ok(Finish {
        result: Ok(()),
        bytes: length,
        stored,
        replaced,
        freed: 0,
        checksum: (plan.verify != CopyVerification::None).then(|| hash.0.to_be_bytes()),
    })
}

/// A file to memory.
fn load(
    shared: &FilePoolState,
    plan: &TaskPlan,
    held: &ConfinedPath,
    memory: &CopySide<'_>,
    length: u64,
    control: &Control,
) -> Result<Finish, RequestError> {
    let stat = held.stat()?.ok_or_else(|| held.missing())?;
    if kind_of(&stat) != FileType::RegularFile {
        let text = format!(
            "`{}` is no file: only files can go into memory",
            held.place()
        );
        return Err(RequestError::new(Code::Invalid, text));
    }
    let list = match plan.verb {
        TaskVerb::Move => Some(files::list(shared, held, control)?),
        _ => None,
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(held.folder(), held.name(), flags, Mode::empty())
        .map_err(|e| held.failed("open", e))?;
    let file = CopySide {
        fd: &fd,
        offset: 0,
        name: held.place(),
    };
    let before = fstat(&fd).map_err(|e| refuse(&file, "examine", e))?;
    let size = u64::try_from(before.st_size).unwrap_or(0);
    if size > length {
        let text = format!(
            "`{}` has {size} bytes, the memory given for it {length}; give more",
            held.place()
        );
        return Err(RequestError::new(Code::NoSpace, text));
    }
    let hash = pump(shared, plan, &file, memory, size, control)?;
    let after = fstat(&fd).map_err(|e| refuse(&file, "examine", e))?;
    let state = |s: &rustix::fs::Stat| (s.st_size, s.st_mtime, s.st_mtime_nsec);
    if state(&before) != state(&after) {
        let text = format!("`{}` was changed while it was read", held.place());
        return Err(RequestError::new(Code::Changed, text));
    }
    let mut freed = 0;
    if plan.verify == CopyVerification::Readback || plan.verb == TaskVerb::Move {
        prove(self::hash(memory, size, control)?, hash, memory)?;
    }
    if let Some(list) = list {
        let print = fingerprint(&list, id_of(&after));
        freed = files::release_own(shared, plan, held, print)?;
    }
    Ok(Finish {
        result: Ok(()),
        bytes: size,
        stored: 0,
        replaced: 0,
        freed,
        checksum: (plan.verify != CopyVerification::None).then(|| hash.0.to_be_bytes()),
    })
}

pub(super) fn prove(is: Hash, was: Hash, side: &CopySide<'_>) -> Result<(), RequestError> {
    if is == was {
        return Ok(());
    }
    let text = format!(
        "`{}` was read again and holds something else than was written: somebody else writes there, or it is broken",
        side.name
    );
    Err(RequestError::new(Code::Corrupt, text))
}
