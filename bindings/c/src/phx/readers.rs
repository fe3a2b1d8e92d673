//! The functions of `phx.h` for programs that read another's versions. A reader is known by its number, which no other ever has, so that no
//! wrong one does harm.

use super::abi::{guard, invalid, phx_version, phx_version_info};
use super::calls::{give, named, path, text};
use crate::fork;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tarn_checkpoint::{CheckpointError, CheckpointErrorCode, VersionReader, VersionSelector};

/// A flag of `phx_open_version`.
const UNVERIFIED: u32 = 1;

#[repr(C)]
#[derive(Debug)]
#[allow(non_camel_case_types)]
pub struct phx_reader {
    _private: [u8; 0],
}

pub(crate) struct ReaderTable {
    open: BTreeMap<usize, Arc<VersionReader>>,
    last: usize,
}

static READERS: Mutex<ReaderTable> = Mutex::new(ReaderTable {
    open: BTreeMap::new(),
    last: 0,
});

pub(crate) fn lock() -> MutexGuard<'static, ReaderTable> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn none() -> CheckpointError {
    let text = "this is nothing that phx_open_version gave, or it was closed before";
    CheckpointError::new(CheckpointErrorCode::NotFound, text)
}

fn find(reader: *const phx_reader) -> Result<Arc<VersionReader>, CheckpointError> {
    let found = lock().open.get(&(reader as usize)).cloned();
    found.ok_or_else(none)
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_open_version(
    run: *const c_char,
    tier: *const c_char,
    version: *const phx_version,
    flags: u32,
    reader: *mut *mut phx_reader,
) -> c_int {
    guard(|| {
        if reader.is_null() {
            return Err(invalid("there is nowhere to put it: `reader` is NULL"));
        }
        if flags & !UNVERIFIED != 0 {
            return Err(invalid(format!("flags {flags:#x} are not known")));
        }
        // SAFETY: as the header says.
        let which = unsafe {
            VersionSelector {
                run: text(run, "run")?,
                tier: path(tier),
                version: version.as_ref().map(|v| (*v).into()),
                verify: flags & UNVERIFIED == 0,
            }
        };
        let opened = Arc::new(VersionReader::open(which)?);
        fork::heed();
        let mut readers = lock();
        readers.last += 1;
        let number = readers.last;
        readers.open.insert(number, opened);
        // SAFETY: not NULL.
        unsafe { reader.write(number as *mut phx_reader) };
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_reader_version(
    reader: *const phx_reader,
    version: *mut phx_version_info,
    ranks: *mut u32,
    count: *mut usize,
) -> c_int {
    guard(|| {
        let reader = find(reader)?;
        let here: Vec<u32> = reader.ranks().collect();
        let mut bytes = 0;
        for rank in &here {
            bytes += reader.objects(*rank)?.map(|o| o.bytes).sum::<u64>();
        }
        let info = phx_version_info {
            version: reader.version().into(),
            bytes,
            ranks: reader.of(),
            level: reader.level() as i32,
        };
        // SAFETY: NULL, or a number as the header says.
        let capacity = unsafe { count.as_ref() }.copied().unwrap_or(0);
        if ranks.is_null() && capacity > 0 {
            return Err(invalid("`ranks` is NULL, and `count` is not 0"));
        }
        // SAFETY: as the header says: there is space for so many.
        unsafe {
            for (at, rank) in here.iter().enumerate().take(capacity) {
                ranks.add(at).write(*rank);
            }
            give(version, info);
            give(count, here.len());
        }
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_map_obj(
    reader: *const phx_reader,
    rank: u32,
    key: *const c_char,
    memory: *mut *const c_void,
    bytes: *mut usize,
    unit: *mut usize,
) -> c_int {
    guard(|| {
        if memory.is_null() {
            return Err(invalid(
                "no place is given for the address of the object: `memory` is NULL",
            ));
        }
        // SAFETY: as the header says.
        let key = unsafe { named(key) }?;
        let reader = find(reader)?;
        let mapped = reader.map(rank, key)?;
        let mut objects = reader.objects(rank)?;
        let element = objects.find(|o| o.key == key).map_or(0, |o| o.unit);
        let start = match mapped.is_empty() {
            true => std::ptr::null(),
            false => mapped.as_ptr().cast(),
        };
        // SAFETY: `memory` is not NULL; the others as the header says. Mapped memory stays until the reader is closed.
        unsafe {
            memory.write(start);
            give(bytes, mapped.len());
            give(unit, element as usize);
        }
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub extern "C" fn phx_close_version(reader: *mut phx_reader) -> c_int {
    guard(|| {
        let closed = lock().open.remove(&(reader as usize));
        closed.map(|_| None).ok_or_else(none)
    })
}
