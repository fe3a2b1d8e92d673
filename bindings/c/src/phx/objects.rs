//! The functions of `tarn_objects.h`. Memory that was mapped or created is known by its address, so that no wrong one does
//! harm.

use super::abi::{guard, invalid};
use super::calls::{give, path, text};
use crate::fork;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tarn_checkpoint::{CheckpointError, CheckpointErrorCode};
use tarn_objects::{NodeObjectStore, ObjectInfo, ObjectWriter, StoredObject};

static MAPPED: Mutex<BTreeMap<usize, StoredObject>> = Mutex::new(BTreeMap::new());
static DRAFTS: Mutex<BTreeMap<usize, ObjectWriter>> = Mutex::new(BTreeMap::new());

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) type ObjectTableGuards = (
    MutexGuard<'static, BTreeMap<usize, StoredObject>>,
    MutexGuard<'static, BTreeMap<usize, ObjectWriter>>,
);

pub(super) fn hold() -> ObjectTableGuards {
    (lock(&MAPPED), lock(&DRAFTS))
}

const TEXT: usize = 256;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tarn_object_info {
    pub number: u64,
    pub bytes: u64,
    pub damaged: u32,
    pub encrypted: u32,
    pub key: [c_char; TEXT],
    pub about: [c_char; TEXT],
}

impl From<&ObjectInfo> for tarn_object_info {
    fn from(info: &ObjectInfo) -> Self {
        // A key, and the text for its type, have at most 255 bytes.
        let text = |text: &str| {
            let mut to = [0; TEXT];
            let bytes = text.bytes().take(TEXT - 1);
            to.iter_mut()
                .zip(bytes)
                .for_each(|(to, b)| *to = b as c_char);
            to
        };
        Self {
            number: info.number,
            bytes: info.bytes,
            damaged: info.damaged.into(),
            encrypted: u32::from(info.encrypted),
            key: text(&info.key),
            about: text(&info.about),
        }
    }
}

/// # Safety
/// `folder` is NULL or ends with NUL.
unsafe fn open(folder: *const c_char) -> Result<NodeObjectStore, CheckpointError> {
    // SAFETY: as the caller says.
    NodeObjectStore::open(unsafe { path(folder) }.as_deref())
}

/// # Safety
/// `key` is NULL or ends with NUL.
unsafe fn named(key: *const c_char) -> Result<String, CheckpointError> {
    // SAFETY: as the caller says.
    unsafe { text(key, "key") }?.ok_or_else(|| invalid("the key is NULL"))
}

/// # Safety
/// `about` is NULL or ends with NUL.
unsafe fn text_or_empty(about: *const c_char) -> Result<String, CheckpointError> {
    // SAFETY: as the caller says.
    Ok(unsafe { text(about, "about") }?.unwrap_or_default())
}

/// Which version; none is the newest, or all.
fn which(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

/// Gives a list to a caller who has space for `count` of it.
///
/// # Safety
/// `count` is NULL or can be written, and `to` has space for so many.
unsafe fn give_all(
    to: *mut tarn_object_info,
    count: *mut usize,
    list: impl FnOnce() -> Result<Vec<ObjectInfo>, CheckpointError>,
) -> Result<Option<String>, CheckpointError> {
    // SAFETY: as the caller says.
    let count = unsafe { count.as_mut() }.ok_or_else(|| invalid("`count` is NULL"))?;
    if to.is_null() && *count > 0 {
        return Err(invalid(
            "there is no buffer for the list, and `count` is not 0",
        ));
    }
    let found = list()?;
    for (at, info) in found.iter().enumerate().take(*count) {
        // SAFETY: the caller has space for so many.
        unsafe { to.add(at).write(info.into()) };
    }
    *count = found.len();
    Ok(None)
}

fn no_draft() -> CheckpointError {
    let text = "this is no memory that tarn_object_create gave, or it was published or abandoned";
    CheckpointError::new(CheckpointErrorCode::NotFound, text)
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_put(
    store: *const c_char,
    key: *const c_char,
    data: *const c_void,
    bytes: usize,
    about: *const c_char,
    number: *mut u64,
) -> c_int {
    guard(|| {
        let data = match (data.is_null(), bytes) {
            (_, 0) => &[],
            (true, _) => return Err(invalid("the data is NULL")),
            (false, bytes) if bytes > isize::MAX as usize => {
                return Err(invalid(format!("{bytes} bytes are more than any memory")));
            }
            // SAFETY: not NULL, and the caller says that there are so many.
            (false, bytes) => unsafe { std::slice::from_raw_parts(data.cast(), bytes) },
        };
        // SAFETY: as the header says.
        unsafe {
            let put = open(store)?.put(&named(key)?, data, &text_or_empty(about)?)?;
            give(number, put.number);
        }
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_get(
    store: *const c_char,
    key: *const c_char,
    number: u64,
    data: *mut c_void,
    bytes: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        let bytes = unsafe { bytes.as_mut() }.ok_or_else(|| invalid("`bytes` is NULL"))?;
        // SAFETY: as the header says.
        let object = unsafe { open(store)?.map(&named(key)?, which(number)) }?;
        let (capacity, length) = (*bytes, object.bytes().len());
        *bytes = length;
        if capacity < length {
            let text = format!("the object has {length} bytes, and the buffer has {capacity}");
            return Err(invalid(text));
        }
        if data.is_null() && length > 0 {
            return Err(invalid(
                "there is nowhere to copy the object to: `data` is NULL",
            ));
        }
        if length > 0 {
            // SAFETY: not NULL, and the caller says that so many can be written.
            object.copy_to(unsafe { std::slice::from_raw_parts_mut(data.cast(), length) })?;
        }
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_map(
    store: *const c_char,
    key: *const c_char,
    number: u64,
    verify: c_int,
    data: *mut *const c_void,
    info: *mut tarn_object_info,
) -> c_int {
    guard(|| {
        if data.is_null() {
            return Err(invalid(
                "no place is given for the address of the object: `data` is NULL",
            ));
        }
        // SAFETY: as the header says.
        let object = unsafe { open(store)?.map(&named(key)?, which(number)) }?;
        if verify != 0 {
            object.verify()?;
        }
        let start = object.bytes().as_ptr();
        // SAFETY: as the header says.
        unsafe {
            data.write(start.cast());
            give(info, (&object.info()).into());
        }
        fork::heed();
        lock(&MAPPED).insert(start as usize, object);
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub extern "C" fn tarn_object_unmap(data: *const c_void) -> c_int {
    guard(|| {
        let object = lock(&MAPPED).remove(&(data as usize));
        match object {
            Some(_) => Ok(None),
            None => Err(CheckpointError::new(
                CheckpointErrorCode::NotFound,
                "this is nothing that tarn_object_map gave, or it was given up before",
            )),
        }
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_create(
    store: *const c_char,
    key: *const c_char,
    bytes: usize,
    memory: *mut *mut c_void,
) -> c_int {
    guard(|| {
        if memory.is_null() {
            return Err(invalid(
                "no place is given for the address of the memory: `memory` is NULL",
            ));
        }
        // SAFETY: as the header says.
        let mut draft = unsafe { open(store)?.create(&named(key)?, bytes as u64) }?;
        let start = draft.bytes().as_mut_ptr();
        // SAFETY: not NULL.
        unsafe { memory.write(start.cast()) };
        fork::heed();
        lock(&DRAFTS).insert(start as usize, draft);
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_publish(
    memory: *mut c_void,
    about: *const c_char,
    number: *mut u64,
) -> c_int {
    guard(|| {
        let draft = lock(&DRAFTS).remove(&(memory as usize));
        let mut draft = draft.ok_or_else(no_draft)?;
        // SAFETY: as the header says.
        let published = unsafe { text_or_empty(about) }.and_then(|about| draft.publish(&about));
        if !draft.is_done() {
            // It can be tried again.
            lock(&DRAFTS).insert(memory as usize, draft);
        }
        // SAFETY: as the header says.
        unsafe { give(number, published?.number) };
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub extern "C" fn tarn_object_abandon(memory: *mut c_void) -> c_int {
    guard(|| {
        let draft = lock(&DRAFTS).remove(&(memory as usize));
        draft.map(|_| None).ok_or_else(no_draft)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_list(
    store: *const c_char,
    objects: *mut tarn_object_info,
    count: *mut usize,
) -> c_int {
    // SAFETY: as the header says.
    guard(|| unsafe { give_all(objects, count, || open(store)?.list()) })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_versions(
    store: *const c_char,
    key: *const c_char,
    versions: *mut tarn_object_info,
    count: *mut usize,
) -> c_int {
    // SAFETY: as the header says.
    guard(|| unsafe { give_all(versions, count, || open(store)?.versions(&named(key)?)) })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_delete(
    store: *const c_char,
    key: *const c_char,
    number: u64,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        unsafe { open(store)?.delete(&named(key)?, which(number)) }?;
        Ok(None)
    })
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tarn_object_fetch(
    store: *const c_char,
    key: *const c_char,
    number: u64,
    node: *const c_char,
    fetched: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: as the header says.
        unsafe {
            let node = text(node, "node")?.ok_or_else(|| invalid("the node is NULL"))?;
            let found = open(store)?.fetch(&named(key)?, which(number), &node)?;
            give(fetched, found.number);
        }
        Ok(None)
    })
}
