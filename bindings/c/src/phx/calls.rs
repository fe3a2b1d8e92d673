//! The functions of `phx.h`.

use super::abi::{
    AUDIT, DEFAULT, ENCRYPT, MPROTECT, NO_HELPER, NO_REPLICAS, NO_STAGING, SAME_NODE, guard,
    invalid, level, phx_options, phx_properties, phx_stats, phx_version, phx_version_info, sized,
};
use crate::guard::{set_last_error, tarn_last_error};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::time::Duration;
use tarn_checkpoint::{
    CheckpointError, CheckpointErrorCode, CheckpointSession, ObjectMemory, Options, Properties,
    Replicate, SessionSlot, StagingShare,
};

/// Processors that may be named.
const MAX_PROCESSORS: usize = rustix::thread::CpuSet::MAX_CPU;

static SESSION: SessionSlot = SessionSlot::new(None);

fn with<R>(
    call: impl FnOnce(&mut CheckpointSession) -> Result<R, CheckpointError>,
) -> Result<R, CheckpointError> {
    match &mut *SESSION.take()? {
        Some(session) => call(session),
        None => Err(CheckpointError::new(
            CheckpointErrorCode::Init,
            "call phx_init first",
        )),
    }
}

/// A text.
///
/// # Safety
/// `text` is NULL or ends with NUL.
pub(super) unsafe fn text(
    text: *const c_char,
    what: &str,
) -> Result<Option<String>, CheckpointError> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and the caller says that it ends with NUL.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text
        .to_str()
        .map_err(|_| invalid(format!("`{what}` is not UTF-8")))?;
    Ok(Some(text.to_owned()))
}

/// The same for a path, which need not be UTF-8.
///
/// # Safety
/// `text` is NULL or ends with NUL.
pub(super) unsafe fn path(text: *const c_char) -> Option<PathBuf> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, and the caller says that it ends with NUL.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    Some(PathBuf::from(OsStr::from_bytes(bytes)))
}

/// A key's bytes.
///
/// # Safety
/// `text` is NULL or ends with NUL.
pub(super) unsafe fn named<'a>(text: *const c_char) -> Result<&'a [u8], CheckpointError> {
    match text.is_null() {
        true => Err(invalid("the key is NULL")),
        // SAFETY: not NULL, and the caller says that it ends with NUL.
        false => Ok(unsafe { CStr::from_ptr(text) }.to_bytes()),
    }
}

/// # Safety
/// As the header says of `phx_init`.
unsafe fn read(options: *const phx_options) -> Result<Options, CheckpointError> {
    // SAFETY: zeros are valid: numbers and NULLs.
    let given = unsafe { sized(options, "phx_options") }?;
    let given = given.ok_or_else(|| invalid("the options are NULL"))?;
    let known = SAME_NODE | NO_STAGING | NO_HELPER | AUDIT | NO_REPLICAS | MPROTECT | ENCRYPT;
    if given.flags & !known != 0 {
        return Err(invalid(format!(
            "flags {:#x} are not known",
            given.flags & !known
        )));
    }
    let replicate = replicate(&given)?;
    // SAFETY: the caller says that the list has so many.
    let listed = unsafe { processors(&given) }?;
    let default = Options::default();
    // SAFETY: the caller says that texts end with NUL.
    unsafe {
        Ok(Options {
            rank: given.rank,
            ranks: given.ranks,
            replicas: match given.replicas {
                _ if given.flags & NO_REPLICAS != 0 => Some(0),
                0 => None,
                some => Some(some),
            },
            run: text(given.run, "run")?,
            tier: path(given.tier),
            memory: path(given.memory),
            meet: text(given.meet, "meet")?,
            key: path(given.key),
            profile: text(given.profile, "profile")?,
            transport: text(given.transport, "transport")?,
            staging: staging(&given),
            same_node: given.flags & SAME_NODE != 0,
            replicate,
            replicate_every: given.replicate_every.max(1),
            timeout: match given.timeout_ns {
                0 => default.timeout,
                nanos => Duration::from_nanos(nanos),
            },
            helper: given.flags & NO_HELPER == 0,
            audit: given.flags & AUDIT != 0,
            mprotect: given.flags & MPROTECT != 0,
            encrypt: given.flags & ENCRYPT != 0,
            external: path(given.external),
            flush_every: (given.flush_every > 0).then_some(given.flush_every),
            flush_rate: (given.flush_rate > 0).then_some(given.flush_rate),
            processors: processor_numbers(listed)?,
        })
    }
}

fn replicate(given: &phx_options) -> Result<Replicate, CheckpointError> {
    match (given.copies, given.parity) {
        (0, 0) => Ok(Replicate::None),
        (copies, 0) => Ok(Replicate::Copies(copies as usize)),
        (0, parity) => Ok(Replicate::Parity(parity as usize)),
        _ => Err(invalid("copies or parity: one of the two, the other is 0")),
    }
}

fn staging(given: &phx_options) -> Option<StagingShare> {
    match given.staging {
        _ if given.flags & NO_STAGING != 0 => Some(StagingShare::None),
        0 => None,
        DEFAULT => Some(StagingShare::All),
        bytes => Some(StagingShare::Bytes(bytes)),
    }
}

/// # Safety
/// `helpers` is NULL or has as many numbers as `helper_count` says.
unsafe fn processors(given: &phx_options) -> Result<&[i32], CheckpointError> {
    let count = given.helper_count as usize;
    match (given.helpers.is_null(), count) {
        (true, 0) => Ok(&[]),
        (false, 1..=MAX_PROCESSORS) => {
            // SAFETY: not NULL, and the caller says that there are so many.
            Ok(unsafe { std::slice::from_raw_parts(given.helpers, count) })
        }
        _ => Err(invalid(format!(
            "helpers: a list of 1 to {MAX_PROCESSORS} processors, or NULL and 0"
        ))),
    }
}

fn processor_numbers(listed: &[i32]) -> Result<Vec<usize>, CheckpointError> {
    let numbers = listed.iter().map(|p| usize::try_from(*p).ok());
    let numbers: Option<Vec<usize>> = numbers.collect();
    numbers.ok_or_else(|| invalid("a processor has a number that there is not"))
}

/// # Safety
/// As the header says of `phx_create_obj`.
unsafe fn properties(given: *const phx_properties) -> Result<Properties, CheckpointError> {
    // SAFETY: zeros are valid: numbers.
    match unsafe { sized(given, "phx_properties") }? {
        Some(given) => given.read(),
        None => Ok(Properties::default()),
    }
}

/// Gives a result to a caller who wants it.
///
/// # Safety
/// `to` is NULL or can be written.
pub(super) unsafe fn give<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as the caller says.
        unsafe { to.write(value) };
    }
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_init(options: *const phx_options) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let options = unsafe { read(options) }?;
        let mut session = SESSION.take()?;
        if session.is_some() {
            return Err(CheckpointError::new(
                CheckpointErrorCode::Exists,
                "phx_init was called before: call phx_finalize first",
            ));
        }
        *session = Some(CheckpointSession::begin(options)?);
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_create_obj(
    name: *const c_char,
    bytes: usize,
    unit: usize,
    given: *const phx_properties,
    memory: *mut *mut c_void,
) -> c_int {
    guard(|| {
        if memory.is_null() {
            return Err(invalid(
                "no place is given for the address of the object's memory: `memory` is NULL",
            ));
        }
        // SAFETY: as the header says.
        let (name, properties) = unsafe { (named(name)?, properties(given)?) };
        with(|session| {
            let new = ObjectMemory::new(bytes)?;
            let start = new.start();
            session.add(name, new, unit, properties)?;
            // SAFETY: not NULL.
            unsafe { memory.write(start.as_ptr().cast()) };
            Ok(None)
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_register_obj(
    name: *const c_char,
    memory: *mut c_void,
    bytes: usize,
    unit: usize,
    given: *const phx_properties,
) -> c_int {
    guard(|| {
        let start = NonNull::new(memory.cast::<u8>());
        let start = start
            .or((bytes == 0).then(NonNull::dangling))
            .ok_or_else(|| invalid("the memory is NULL"))?;
        if bytes > isize::MAX as usize || (start.as_ptr() as usize).checked_add(bytes).is_none() {
            return Err(invalid(format!("{bytes} bytes are more than any memory")));
        }
        // SAFETY: as the header says.
        let (name, properties) = unsafe { (named(name)?, properties(given)?) };
        // SAFETY: as the header says: it is the program's, stays, and is not written to during a call.
        let memory = unsafe { ObjectMemory::of(start, bytes) };
        with(|session| session.add(name, memory, unit, properties))?;
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_get_obj(
    name: *const c_char,
    memory: *mut *mut c_void,
    bytes: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let name = unsafe { named(name) }?;
        with(|session| {
            let found = session.memory(name)?;
            // SAFETY: as the header says.
            unsafe {
                give(memory, found.start().as_ptr().cast());
                give(bytes, found.size());
            }
            Ok(None)
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_resize_obj(
    name: *const c_char,
    bytes: usize,
    memory: *mut *mut c_void,
) -> c_int {
    guard(|| {
        if memory.is_null() {
            return Err(invalid(
                "no place is given for the address of the object: `memory` is NULL",
            ));
        }
        // SAFETY: as the header says.
        let name = unsafe { named(name) }?;
        with(|session| {
            let start = session.resize(name, bytes)?.start();
            // SAFETY: not NULL.
            unsafe { memory.write(start.as_ptr().cast()) };
            Ok(None)
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_destroy_obj(name: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let name = unsafe { named(name) }?;
        with(|session| session.destroy(name))?;
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_checkpoint_commit(version: *mut phx_version) -> c_int {
    guard(|| {
        with(|session| {
            let committed = session.commit()?;
            // SAFETY: as the header says.
            unsafe { give(version, committed.id.into()) };
            Ok(committed.degraded)
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_restart(
    version: *const phx_version,
    restored: *mut phx_version,
) -> c_int {
    guard(|| {
        // SAFETY: NULL, or a version as the header says.
        let which = unsafe { version.as_ref() }.map(|v| (*v).into());
        with(|session| match session.restart(which)? {
            Some(id) => {
                // SAFETY: as the header says.
                unsafe { give(restored, id.into()) };
                Ok(None)
            }
            None => Err(CheckpointError::new(
                CheckpointErrorCode::NotFound,
                "there is no version yet: a start from nothing",
            )),
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_versions(versions: *mut phx_version_info, count: *mut usize) -> c_int {
    guard(|| {
        // SAFETY: NULL, or a number as the header says.
        let count = unsafe { count.as_mut() }.ok_or_else(|| invalid("`count` is NULL"))?;
        if versions.is_null() && *count > 0 {
            return Err(invalid("`versions` is NULL, and `count` is not 0"));
        }
        with(|session| {
            let found = session.versions();
            for (at, version) in found.iter().enumerate().take(*count) {
                // SAFETY: the caller has space for so many.
                unsafe { versions.add(at).write(version.into()) };
            }
            *count = found.len();
            Ok(None)
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_wait(
    version: *const phx_version,
    wanted: c_int,
    timeout_ns: u64,
) -> c_int {
    guard(|| {
        // SAFETY: NULL, or a version as the header says.
        let version = unsafe { version.as_ref() }.ok_or_else(|| invalid("the version is NULL"))?;
        let wanted = level(wanted)?;
        with(|session| {
            let within = (timeout_ns > 0).then(|| Duration::from_nanos(timeout_ns));
            session.wait((*version).into(), wanted, within)?;
            Ok(None)
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_due(interval_ns: u64, due: *mut c_int) -> c_int {
    guard(|| {
        // SAFETY: NULL, or a number as the header says.
        let to = unsafe { due.as_mut() }.ok_or_else(|| invalid("due is NULL"))?;
        with(|session| {
            *to = c_int::from(session.due(Duration::from_nanos(interval_ns))?);
            Ok(None)
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_stats(stats: *mut phx_stats) -> c_int {
    guard(|| {
        // SAFETY: zeros are valid: numbers.
        let given = unsafe { sized(stats.cast_const(), "phx_stats") }?;
        let given = given.ok_or_else(|| invalid("the stats are NULL"))?;
        with(|session| {
            let found = phx_stats::new(&session.stats(), session.power_fail());
            // SAFETY: the caller says that it has so many bytes.
            unsafe { found.write(stats, given.size as usize) };
            Ok(None)
        })
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub extern "C" fn phx_finalize() -> c_int {
    guard(|| {
        let session = SESSION.take()?.take();
        let session = session.ok_or_else(|| {
            CheckpointError::new(CheckpointErrorCode::Init, "phx_init was not called")
        })?;
        session.end()?;
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub extern "C" fn phx_last_error() -> *const c_char {
    tarn_last_error()
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub extern "C" fn phx_code_text(code: c_int) -> *const c_char {
    let text: &'static CStr = match code {
        0 => c"no error",
        1 => c"done, with fewer copies than were asked for",
        2 => c"an argument makes no sense",
        3 => c"another thread is in a call, or another program has this name",
        4 => c"no such object or version",
        5 => c"it is there already",
        6 => c"no space on the persistent tier",
        7 => c"not enough memory",
        8 => c"no undamaged copy is left",
        9 => c"an input or output error",
        10 => c"the time is over",
        11 => c"another rank is gone",
        12 => c"this cannot be done here",
        13 => c"the object does not say how it is divided among another number of ranks",
        14 => c"phx_init was not called",
        15 => c"an error inside tarn",
        _ => c"no code of PHX",
    };
    text.as_ptr()
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_fail(code: c_int, why: *const c_char) -> c_int {
    let why = match why.is_null() {
        true => phx_code_text(code),
        false => why,
    };
    // SAFETY: a text of this library, or of a caller who says that it ends with NUL.
    set_last_error(&unsafe { CStr::from_ptr(why) }.to_string_lossy());
    code
}
