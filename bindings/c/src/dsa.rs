//! `dsa.h`: direct access to storage memory. Partitions and queue pairs are known by their addresses, so that no wrong one does harm; only
//! `dsa_submit` takes its caller's word.

pub(crate) mod tables;

use crate::fork;
use crate::guard::{guard, invalid};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tables::{PARTITIONS, QUEUES, lock};
use tarn_partitions::{
    Code, Grant, Grantee, Level, MAX_PARTS, OpenOptions, Options, Partition, PartitionDetails,
    PartitionQueue, PowerFail, ProgramMemory, RangeLockMode, RequestError,
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

/// A queue pair, as C has it: it begins with its rings.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct dsa_queue {
    queue: PartitionQueue,
    /// A thread is in a call.
    is_busy: AtomicBool,
}

/// A queue pair for one call: no other thread gets in meanwhile.
struct Claimed<'q> {
    queue: &'q mut PartitionQueue,
    is_busy: &'q AtomicBool,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.is_busy.store(false, Ordering::Release);
    }
}

impl Deref for Claimed<'_> {
    type Target = PartitionQueue;

    fn deref(&self) -> &PartitionQueue {
        self.queue
    }
}

impl DerefMut for Claimed<'_> {
    fn deref_mut(&mut self) -> &mut PartitionQueue {
        self.queue
    }
}

/// `None`: another thread is in a call.
///
/// # Safety
/// It is there, and stays there until it is given back.
#[inline]
unsafe fn claim<'q>(from: *mut dsa_queue) -> Option<Claimed<'q>> {
    // SAFETY: as the caller says; the field that several threads look at is atomic.
    let is_busy = unsafe { &(*from).is_busy };
    (!is_busy.swap(true, Ordering::Acquire)).then(|| Claimed {
        // SAFETY: as the caller says; no other thread has it, as it would be busy.
        queue: unsafe { &mut (*from).queue },
        is_busy,
    })
}

fn busy() -> RequestError {
    let text = "another thread is in a call with this queue pair: it is for one thread at a time";
    RequestError::new(Code::Busy, text)
}

fn unknown() -> RequestError {
    invalid("this was never opened or created, or it was closed")
}

/// # Safety
/// `opened` is NULL or can be written.
unsafe fn give(
    opened: *mut *mut Partition,
    open: impl FnOnce() -> Result<Partition, RequestError>,
) -> Result<(), RequestError> {
    fork::heed();
    // SAFETY: as the caller says.
    let to = unsafe { opened.as_mut() }.ok_or_else(nowhere)?;
    *to = std::ptr::null_mut();
    let made = Arc::new(open()?);
    let at = Arc::as_ptr(&made);
    lock(&PARTITIONS).insert(at.addr(), made);
    *to = at.cast_mut();
    Ok(())
}

fn nowhere() -> RequestError {
    invalid("where it is to be put is NULL")
}

fn partition(from: *const Partition) -> Result<Arc<Partition>, RequestError> {
    let found = lock(&PARTITIONS).get(&from.addr()).cloned();
    found.ok_or_else(unknown)
}

fn queue<'q>(from: *mut dsa_queue) -> Result<Claimed<'q>, RequestError> {
    let known = lock(&QUEUES);
    match known.contains(&from.addr()) {
        // SAFETY: it was given, and not taken back: that waits for the table, and finds it busy then.
        true => unsafe { claim(from) }.ok_or_else(busy),
        false => Err(unknown()),
    }
}

/// # Safety
/// `path` is NULL or ends with NUL.
unsafe fn named<'p>(path: *const c_char) -> Result<&'p Path, RequestError> {
    let path = NonNull::new(path.cast_mut()).ok_or_else(|| invalid("the name is NULL"))?;
    // SAFETY: as the caller says.
    let path = unsafe { CStr::from_ptr(path.as_ptr()) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

fn only(flags: u32, known: u32) -> Result<(), RequestError> {
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
unsafe fn granted(
    grants: *const dsa_grant,
    grant_count: usize,
) -> Result<Vec<Grant>, RequestError> {
    if grants.is_null() && grant_count > 0 || grant_count > GRANTS {
        let text = format!("an access list is not NULL, and has at most {GRANTS} lines");
        return Err(invalid(text));
    }
    let grant = |at| {
        // SAFETY: as the caller says.
        let grant = unsafe { *grants.add(at) };
        let who = match grant.group {
            0 => Grantee::User(grant.id),
            _ => Grantee::Group(grant.id),
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
            return Err(invalid(
                "there is no buffer for the list, and `count` is not 0",
            ));
        }
        let found = Partition::list(folder)?;
        for (at, info) in found.iter().enumerate().take(*count) {
            // SAFETY: the caller has space for so many.
            unsafe { list.add(at).write(to_dsa_info(info, None)) };
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
        unsafe { give(opened, || Partition::open(named(name)?, options)) }
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
        unsafe { give(opened, open) }
    })
}

fn open_options(flags: u32) -> Result<OpenOptions, RequestError> {
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
    guard(|| {
        let partition = lock(&PARTITIONS).remove(&from.addr());
        partition.map(drop).ok_or_else(unknown)
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_partition_info(from: *const Partition, info: *mut dsa_info) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (partition, info) = (partition(from)?, unsafe { info.as_mut() });
        let info = info.ok_or_else(|| invalid("`info` is NULL"))?;
        *info = to_dsa_info(&partition.info()?, Some(partition.promises().power_fail));
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_size(from: *const Partition, bytes: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (partition, bytes) = (partition(from)?, unsafe { bytes.as_mut() });
        *bytes.ok_or_else(|| invalid("`bytes` is NULL"))? = partition.size()?;
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_grow(from: *const Partition, bytes: u64, now: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (partition, now) = (partition(from)?, unsafe { now.as_mut() });
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
            0 => RangeLockMode::Nothing,
            1 => RangeLockMode::Shared,
            2 => RangeLockMode::Alone,
            _ => return Err(invalid("there is no such kind of a lock")),
        };
        partition(from)?.lock(hold)
    })
}

fn to_dsa_info(info: &PartitionDetails, power_fail: Option<PowerFail>) -> dsa_info {
    let mut name = [0; NAME];
    let bytes = info.name.bytes().take(NAME - 1);
    name.iter_mut()
        .zip(bytes)
        .for_each(|(to, b)| *to = b as c_char);
    let mut grants = [dsa_grant::default(); GRANTS];
    for (to, grant) in grants.iter_mut().zip(&info.grants) {
        (to.group, to.id) = match grant.who {
            Grantee::User(id) => (0, id),
            Grantee::Group(id) => (1, id),
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
    created: *mut *mut dsa_queue,
) -> c_int {
    guard(|| {
        only(flags, VOLATILE)?;
        let level = u8::try_from(level).ok();
        let level = level.and_then(|level| Level::of(level, Level::Visible));
        let options = Options {
            level: level.ok_or_else(|| invalid("there is no such level"))?,
            volatile: flags & VOLATILE != 0,
        };
        fork::heed();
        // SAFETY: as the header says.
        let to = unsafe { created.as_mut() }.ok_or_else(nowhere)?;
        *to = std::ptr::null_mut();
        let made = Box::into_raw(Box::new(dsa_queue {
            queue: PartitionQueue::new(entries, options)?,
            is_busy: AtomicBool::new(false),
        }));
        lock(&QUEUES).insert(made.addr());
        *to = made;
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_queue_destroy(from: *mut dsa_queue) -> c_int {
    guard(|| {
        // Busy for ever, so that no other call gets in.
        let claimed = std::mem::ManuallyDrop::new(queue(from)?);
        if !lock(&QUEUES).remove(&from.addr()) {
            return Err(unknown());
        }
        // A child's copy of its parent's object stays as it is: to end it would end the parent's.
        if claimed.is_here() {
            // SAFETY: it was given, it is in the table no more, and every thread that was in a call with it has left.
            drop(unsafe { Box::from_raw(from) });
        }
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_register_memory(
    from: *mut dsa_queue,
    address: *mut c_void,
    length: usize,
    flags: u32,
    region: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let (mut queue, region) = (queue(from)?, unsafe { region.as_mut() });
        let region = region.ok_or_else(|| invalid("`region` is NULL"))?;
        only(flags, REGION_READ_ONLY)?;
        let start = NonNull::new(address.cast()).filter(|start| {
            let end = start.addr().get().checked_add(length);
            end.is_some() && length <= isize::MAX as usize
        });
        let start = start.ok_or_else(|| invalid("there is no such memory"))?;
        // SAFETY: as the header says.
        let memory = unsafe { ProgramMemory::new(start, length, flags & REGION_READ_ONLY == 0) };
        *region = queue.register_memory(memory)?;
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_register_partition(
    from: *mut dsa_queue,
    of: *const Partition,
    start: u64,
    length: u64,
    flags: u32,
    region: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let region = unsafe { region.as_mut() };
        let (mut queue, of) = (queue(from)?, partition(of)?);
        let region = region.ok_or_else(|| invalid("`region` is NULL"))?;
        only(flags, REGION_READ_ONLY)?;
        *region = queue.register(&of, start, length, flags & REGION_READ_ONLY == 0)?;
        Ok(())
    })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_unregister(from: *mut dsa_queue, region: u32) -> c_int {
    guard(|| queue(from)?.unregister(region))
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_submit(from: *mut dsa_queue) -> u32 {
    if from.is_null() {
        return 0;
    }
    let mut begun = 0;
    let _ = guard(|| {
        // SAFETY: as the header says. Another thread that is in a call begins what there is.
        begun = unsafe { claim(from) }.map_or(0, |mut queue| queue.submit());
        Ok(())
    });
    begun
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_wait(
    from: *mut dsa_queue,
    completions: u32,
    timeout_ns: u64,
) -> c_int {
    let timeout = Duration::from_nanos(timeout_ns);
    guard(|| queue(from)?.wait(completions, timeout))
}

// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsa_fd(from: *mut dsa_queue) -> c_int {
    let mut fd = -1;
    guard(|| {
        fd = queue(from)?.event()?.as_raw_fd();
        Ok(())
    });
    fd
}
