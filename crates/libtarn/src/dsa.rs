//! `dsa.h`: direct access to storage memory. Partitions and queue pairs are known by their addresses, so that no wrong one does harm; only
//! `dsa_submit` takes its caller's word.

use crate::guard::{guard, invalid};
use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_partitions::{
    Grant, Hold, Info, Level, MAX_PARTS, Memory, OpenOptions, Options, Partition, PowerFail, Queue,
    Refusal, Who,
};

/// Flags of `dsa_open` and `dsa_open_cyclic`.
const READ_ONLY: u32 = 1;
const POPULATE: u32 = 2;
const NO_GUARD: u32 = 4;
/// Of `dsa_queue_create`.
const VOLATILE: u32 = 1;
/// Of regions.
const REGION_READ_ONLY: u32 = 1;

const NAME: usize = 256;
const GRANTS: usize = 64;

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct dsa_grant {
    pub id: u32,
    pub group: u8,
    pub write: u8,
    pub reserved: u16,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct dsa_info {
    pub name: [c_char; NAME],
    pub bytes: u64,
    pub owner: u32,
    pub damaged: u32,
    pub power_fail: i32,
    pub grant_count: u32,
    pub grants: [dsa_grant; GRANTS],
    pub unit: u32,
}

static PARTITIONS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
static QUEUES: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn lock(known: &Mutex<BTreeSet<usize>>) -> MutexGuard<'_, BTreeSet<usize>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands something to C.
///
/// # Safety
/// `to` is NULL or can be written.
unsafe fn give<T>(
    known: &Mutex<BTreeSet<usize>>,
    to: *mut *mut T,
    made: impl FnOnce() -> Result<T, Refusal>,
) -> Result<(), Refusal> {
    // SAFETY: as the caller says.
    let to = unsafe { to.as_mut() }.ok_or_else(|| invalid("where it is to be put is NULL"))?;
    *to = std::ptr::null_mut();
    let made = Box::into_raw(Box::new(made()?));
    lock(known).insert(made.addr());
    *to = made;
    Ok(())
}

/// Takes something back.
///
/// # Safety
/// It came from [`give`] with the same table, or is anything else, and no other thread uses it.
unsafe fn take_back<T>(known: &Mutex<BTreeSet<usize>>, from: *mut T) -> Result<(), Refusal> {
    if !lock(known).remove(&from.addr()) {
        return Err(unknown());
    }
    // SAFETY: it was given, and not taken back before.
    drop(unsafe { Box::from_raw(from) });
    Ok(())
}

fn unknown() -> Refusal {
    invalid("this is none that was opened or created, or it was given back")
}

/// # Safety
/// Nobody takes it back meanwhile.
unsafe fn partition<'p>(from: *const Partition) -> Result<&'p Partition, Refusal> {
    match lock(&PARTITIONS).contains(&from.addr()) {
        // SAFETY: it was given, and not taken back.
        true => Ok(unsafe { &*from }),
        false => Err(unknown()),
    }
}

/// # Safety
/// It is of this thread.
unsafe fn queue<'q>(from: *mut Queue) -> Result<&'q mut Queue, Refusal> {
    match lock(&QUEUES).contains(&from.addr()) {
        // SAFETY: it was given, and not taken back; one thread uses it.
        true => Ok(unsafe { &mut *from }),
        false => Err(unknown()),
    }
}

/// # Safety
/// `path` is NULL or ends with NUL.
unsafe fn named<'p>(path: *const c_char) -> Result<&'p Path, Refusal> {
    let path = NonNull::new(path.cast_mut()).ok_or_else(|| invalid("the name is NULL"))?;
    // SAFETY: as the caller says.
    let path = unsafe { CStr::from_ptr(path.as_ptr()) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

fn only(flags: u32, known: u32) -> Result<(), Refusal> {
    match flags & !known {
        0 => Ok(()),
        more => Err(invalid(format!("flags {more:#x} are not known"))),
    }
}

// SAFETY: the names are this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_create(
    partition: *const c_char,
    bytes: u64,
    grants: *const dsa_grant,
    grant_count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (path, grants) = unsafe { (named(partition)?, granted(grants, grant_count)?) };
        Partition::create(path, bytes, grants)
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_create_units(
    partition: *const c_char,
    bytes: u64,
    unit: u32,
    grants: *const dsa_grant,
    grant_count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (path, grants) = unsafe { (named(partition)?, granted(grants, grant_count)?) };
        Partition::create_units(path, bytes, unit, grants)
    })
}

/// # Safety
/// There are so many, or it is NULL.
unsafe fn granted(grants: *const dsa_grant, grant_count: usize) -> Result<Vec<Grant>, Refusal> {
    if grants.is_null() && grant_count > 0 || grant_count > GRANTS {
        let text = format!("an access list is not NULL, and has at most {GRANTS} lines");
        return Err(invalid(text));
    }
    let grant = |at| {
        // SAFETY: as the caller says.
        let grant = unsafe { *grants.add(at) };
        let who = match grant.group {
            0 => Who::User(grant.id),
            _ => Who::Group(grant.id),
        };
        let write = grant.write != 0;
        Grant { who, write }
    };
    Ok((0..grant_count).map(grant).collect())
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_delete(partition: *const c_char) -> c_int {
    // SAFETY: as the header says.
    guard(|| Partition::delete(unsafe { named(partition) }?))
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_resize(partition: *const c_char, bytes: u64) -> c_int {
    // SAFETY: as the header says.
    guard(|| Partition::resize(unsafe { named(partition) }?, bytes))
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_list(
    folder: *const c_char,
    list: *mut dsa_info,
    count: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (folder, count) = unsafe { (named(folder)?, count.as_mut()) };
        let count = count.ok_or_else(|| invalid("`count` is NULL"))?;
        if list.is_null() && *count > 0 {
            return Err(invalid("there is no room for a list, and `count` is not 0"));
        }
        let found = Partition::list(folder)?;
        for (at, info) in found.iter().enumerate().take(*count) {
            // SAFETY: the caller has room for so many.
            unsafe { list.add(at).write(told(info, None)) };
        }
        *count = found.len();
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_open(
    name: *const c_char,
    flags: u32,
    opened: *mut *mut Partition,
) -> c_int {
    guard(|| {
        let options = open_options(flags)?;
        // SAFETY: as the header says.
        unsafe {
            give(&PARTITIONS, opened, || {
                Partition::open(named(name)?, options)
            })
        }
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_open_cyclic(
    names: *const *const c_char,
    count: usize,
    block: u64,
    flags: u32,
    opened: *mut *mut Partition,
) -> c_int {
    guard(|| {
        let options = open_options(flags)?;
        if names.is_null() || count > MAX_PARTS {
            let text = format!("`names` is not NULL, and has at most {MAX_PARTS}");
            return Err(invalid(text));
        }
        // SAFETY: there are so many.
        let paths = (0..count).map(|at| unsafe { named(*names.add(at)) });
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        let open = || Partition::open_cyclic(&paths, block, options);
        // SAFETY: as the header says.
        unsafe { give(&PARTITIONS, opened, open) }
    })
}

fn open_options(flags: u32) -> Result<OpenOptions, Refusal> {
    only(flags, READ_ONLY | POPULATE | NO_GUARD)?;
    Ok(OpenOptions {
        writable: flags & READ_ONLY == 0,
        populate: flags & POPULATE != 0,
        guarded: flags & NO_GUARD == 0,
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_close(from: *mut Partition) -> c_int {
    // SAFETY: as the header says.
    guard(|| unsafe { take_back(&PARTITIONS, from) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_partition_info(from: *const Partition, info: *mut dsa_info) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (partition, info) = unsafe { (partition(from)?, info.as_mut()) };
        let info = info.ok_or_else(|| invalid("`info` is NULL"))?;
        *info = told(&partition.info()?, Some(partition.promises().power_fail));
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_size(from: *const Partition, bytes: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (partition, bytes) = unsafe { (partition(from)?, bytes.as_mut()) };
        *bytes.ok_or_else(|| invalid("`bytes` is NULL"))? = partition.size()?;
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_grow(from: *const Partition, bytes: u64, now: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (partition, now) = unsafe { (partition(from)?, now.as_mut()) };
        let size = partition.grow(bytes)?;
        if let Some(now) = now {
            *now = size;
        }
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_lock(from: *const Partition, kind: c_int) -> c_int {
    guard(|| {
        let hold = match kind {
            0 => Hold::Nothing,
            1 => Hold::Shared,
            2 => Hold::Alone,
            _ => return Err(invalid("there is no such kind of a lock")),
        };
        // SAFETY: as the header says.
        unsafe { partition(from) }?.lock(hold)
    })
}

fn told(info: &Info, power_fail: Option<PowerFail>) -> dsa_info {
    let mut name = [0; NAME];
    let bytes = info.name.bytes().take(NAME - 1);
    name.iter_mut()
        .zip(bytes)
        .for_each(|(to, b)| *to = b as c_char);
    let mut grants = [dsa_grant::default(); GRANTS];
    for (to, grant) in grants.iter_mut().zip(&info.grants) {
        (to.group, to.id) = match grant.who {
            Who::User(id) => (0, id),
            Who::Group(id) => (1, id),
        };
        to.write = grant.write.into();
    }
    dsa_info {
        name,
        bytes: info.size,
        owner: info.owner,
        damaged: info.damaged.is_some().into(),
        power_fail: match power_fail {
            None => 0,
            Some(PowerFail::Lost) => 1,
            Some(PowerFail::Synced) => 2,
            Some(PowerFail::Flushed) => 3,
            Some(PowerFail::Fenced) => 4,
        },
        grant_count: info.grants.len() as u32,
        grants,
        unit: info.unit,
    }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_queue_create(
    entries: u32,
    level: u32,
    flags: u32,
    created: *mut *mut Queue,
) -> c_int {
    guard(|| {
        only(flags, VOLATILE)?;
        let level = u8::try_from(level).ok();
        let level = level.and_then(|level| Level::of(level, Level::Visible));
        let options = Options {
            level: level.ok_or_else(|| invalid("there is no such level"))?,
            volatile: flags & VOLATILE != 0,
        };
        // SAFETY: as the header says.
        unsafe { give(&QUEUES, created, || Queue::new(entries, options)) }
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_queue_destroy(from: *mut Queue) -> c_int {
    // SAFETY: as the header says.
    guard(|| unsafe { take_back(&QUEUES, from) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_register_memory(
    from: *mut Queue,
    address: *mut c_void,
    length: usize,
    flags: u32,
    region: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (queue, region) = unsafe { (queue(from)?, region.as_mut()) };
        let region = region.ok_or_else(|| invalid("`region` is NULL"))?;
        only(flags, REGION_READ_ONLY)?;
        let start = NonNull::new(address.cast()).filter(|start| {
            let end = start.addr().get().checked_add(length);
            end.is_some() && length <= isize::MAX as usize
        });
        let start = start.ok_or_else(|| invalid("there is no such memory"))?;
        // SAFETY: as the header says.
        let memory = unsafe { Memory::new(start, length, flags & REGION_READ_ONLY == 0) };
        *region = queue.register_memory(memory)?;
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_register_partition(
    from: *mut Queue,
    of: *const Partition,
    start: u64,
    length: u64,
    flags: u32,
    region: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (queue, of, region) = unsafe { (queue(from)?, partition(of)?, region.as_mut()) };
        let region = region.ok_or_else(|| invalid("`region` is NULL"))?;
        only(flags, REGION_READ_ONLY)?;
        *region = queue.register(of, start, length, flags & REGION_READ_ONLY == 0)?;
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_unregister(from: *mut Queue, region: u32) -> c_int {
    // SAFETY: as the header says.
    guard(|| unsafe { queue(from) }?.unregister(region))
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_submit(from: *mut Queue) -> u32 {
    // SAFETY: as the header says. Nothing in it panics: rings and regions are looked at as anything that C may have written to them.
    unsafe { from.as_mut() }.map_or(0, Queue::submit)
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_wait(from: *mut Queue, completions: u32, patience_ns: u64) -> c_int {
    let patience = Duration::from_nanos(patience_ns);
    // SAFETY: as the header says.
    guard(|| unsafe { queue(from) }?.wait(completions, patience))
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_fd(from: *mut Queue) -> c_int {
    let mut fd = -1;
    guard(|| {
        // SAFETY: as the header says.
        fd = unsafe { queue(from) }?.event()?.as_raw_fd();
        Ok(())
    });
    fd
}
