//! Memory of a program to a file, and a file to memory. The memory is read and written by system calls, never mapped: a
//! program that shrinks its memfd meanwhile makes the task fail, and nothing else.

use super::place::{Held, hidden, id_of, kind_of, told};
use super::{Endpoint, Plan, Shared, Verb, copy as files};
use crate::connection::Region;
use crate::peers::fingerprint;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, FileType, Mode, OFlags, fadvise, fdatasync, fstat, openat};
use rustix::io::{Errno, pread, pwrite};
use tarn_mover::ContentHasher;
use tarn_ports::{Control, Mover};
use tarn_proto::local::{Code, Refusal, Verify};
use tarn_tasks::Finish;
use tarn_types::hash::Hash;

/// Bytes of one read and write: they stay in the second-level cache (docs/internals/movers.md measures it).
const PIECE: usize = 128 << 10;

/// One side of a copy.
pub(super) struct Side<'a> {
    pub(super) fd: &'a OwnedFd,
    pub(super) offset: u64,
    pub(super) name: &'a str,
}

pub(super) fn refuse(side: &Side<'_>, doing: &str, errno: Errno) -> Refusal {
    let code = match errno {
        Errno::NOSPC => Code::NoSpace,
        Errno::DQUOT => Code::Quota,
        _ => Code::Io,
    };
    Refusal::new(code, format!("cannot {doing} `{}`: {errno}", side.name))
}

pub(super) fn shorter(side: &Side<'_>) -> Refusal {
    let text = format!("`{}` became shorter while it was read", side.name);
    Refusal::new(Code::Changed, text)
}

/// Writes all of `rest`, from `done` bytes on.
pub(super) fn write(to: &Side<'_>, done: u64, mut rest: &[u8]) -> Result<(), Refusal> {
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
    shared: &Shared,
    plan: &Plan,
    from: &Side<'_>,
    to: &Side<'_>,
    length: u64,
    control: &Control,
) -> Result<Hash, Refusal> {
    let limiter = shared.limiter(plan);
    let mut buffer = vec![0; PIECE];
    let mut hasher = ContentHasher::default();
    let mut done = 0;
    while done < length {
        if control.cancelled() {
            return Err(Refusal::new(Code::Cancelled, "cancelled"));
        }
        let want = usize::try_from(length - done).map_or(PIECE, |left| left.min(PIECE));
        if let Some(limiter) = &limiter {
            let bytes = limiter.bytes(want as u64, control);
            bytes.map_err(|e| told(&e, &[]))?;
        }
        let got = pread(from.fd, &mut buffer[..want], from.offset + done)
            .map_err(|e| refuse(from, "read", e))?;
        if got == 0 {
            return Err(shorter(from));
        }
        if plan.verify != Verify::None || plan.verb == Verb::Move {
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
    region: &Region,
    offset: u64,
    length: u64,
    control: &Control,
) -> Result<Hash, Refusal> {
    let side = Side {
        fd: &region.fd,
        offset,
        name: "the memory",
    };
    hash(&side, length, control)
}

/// Reads and hashes.
pub(super) fn hash(from: &Side<'_>, length: u64, control: &Control) -> Result<Hash, Refusal> {
    let mut buffer = vec![0; PIECE];
    let mut hasher = ContentHasher::default();
    let mut done = 0;
    while done < length {
        if control.cancelled() {
            return Err(Refusal::new(Code::Cancelled, "cancelled"));
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
    shared: &Shared,
    plan: &Plan,
    from: &Endpoint,
    to: &Endpoint,
    control: &Control,
) -> Result<Finish, Refusal> {
    match (from, to) {
        (
            Endpoint::Memory {
                region,
                offset,
                length,
            },
            file,
        ) => {
            let held = Held::open(file, true)?;
            let memory = Side {
                fd: &region.fd,
                offset: *offset,
                name: "the memory",
            };
            let copied = save(shared, plan, &memory, *length, &held, control);
            copied.inspect_err(|_| files::clean(shared, plan, &held))
        }
        (
            file,
            Endpoint::Memory {
                region,
                offset,
                length,
            },
        ) => {
            let held = Held::open(file, false)?;
            let memory = Side {
                fd: &region.fd,
                offset: *offset,
                name: "the memory",
            };
            load(shared, plan, &held, &memory, *length, control)
        }
        _ => Err(Refusal::new(Code::Internal, "no memory in this task")),
    }
}

/// Memory to a file, which appears whole.
fn save(
    shared: &Shared,
    plan: &Plan,
    memory: &Side<'_>,
    length: u64,
    held: &Held,
    control: &Control,
) -> Result<Finish, Refusal> {
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
    let file = Side {
        fd: &fd,
        offset: 0,
        name: held.place(),
    };
    let hash = pump(shared, plan, memory, &file, length, control)?;
    if plan.durable || plan.verify == Verify::Readback {
        fdatasync(&fd).map_err(|e| held.failed("sync", e))?;
    }
    if plan.verify == Verify::Readback {
        // From the device, where it has reached one.
        let _ = fadvise(fd.as_fd(), 0, None, Advice::DontNeed);
        prove(self::hash(&file, length, control)?, hash, &file)?;
    }
    let stored = fstat(&fd).map_or(0, |s| u64::try_from(s.st_blocks).unwrap_or(0) * 512);
    if !held.rename(&staged, held, plan.replace)? {
        return Err(held.failed("make", Errno::XDEV));
    }
    if there {
        // What was replaced, a folder perhaps.
        let old = shared.mover.remove(&held.path_of(&staged));
        old.map_err(|e| told(&e, &[held]))?;
    }
    Ok(Finish {
        result: Ok(()),
        bytes: length,
        stored,
        replaced,
        freed: 0,
        checksum: (plan.verify != Verify::None).then(|| hash.0.to_be_bytes()),
    })
}

/// A file to memory.
fn load(
    shared: &Shared,
    plan: &Plan,
    held: &Held,
    memory: &Side<'_>,
    length: u64,
    control: &Control,
) -> Result<Finish, Refusal> {
    let stat = held.stat()?.ok_or_else(|| held.missing())?;
    if kind_of(&stat) != FileType::RegularFile {
        let text = format!(
            "`{}` is no file: only files can go into memory",
            held.place()
        );
        return Err(Refusal::new(Code::Invalid, text));
    }
    let list = match plan.verb {
        Verb::Move => Some(files::list(shared, held, control)?),
        _ => None,
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(held.folder(), held.name(), flags, Mode::empty())
        .map_err(|e| held.failed("open", e))?;
    let file = Side {
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
        return Err(Refusal::new(Code::NoSpace, text));
    }
    let hash = pump(shared, plan, &file, memory, size, control)?;
    let after = fstat(&fd).map_err(|e| refuse(&file, "examine", e))?;
    let state = |s: &rustix::fs::Stat| (s.st_size, s.st_mtime, s.st_mtime_nsec);
    if state(&before) != state(&after) {
        let text = format!("`{}` was changed while it was read", held.place());
        return Err(Refusal::new(Code::Changed, text));
    }
    let mut freed = 0;
    if plan.verify == Verify::Readback || plan.verb == Verb::Move {
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
        checksum: (plan.verify != Verify::None).then(|| hash.0.to_be_bytes()),
    })
}

pub(super) fn prove(is: Hash, was: Hash, side: &Side<'_>) -> Result<(), Refusal> {
    if is == was {
        return Ok(());
    }
    let text = format!(
        "`{}` was read again and holds something else than was written: somebody else writes there, or it is broken",
        side.name
    );
    Err(Refusal::new(Code::Corrupt, text))
}
