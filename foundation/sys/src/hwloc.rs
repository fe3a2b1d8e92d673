//! The topology of this machine, as libhwloc sees it. The library is loaded for a request and unloaded again: a program without
//! requests does not pay for it, and a machine without it only lacks the answer.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr::null_mut;

/// hwloc 2: all of its releases have this interface.
const LIBRARY: &CStr = c"libhwloc.so.15";

type Topology = *mut c_void;
// SAFETY: as hwloc.h declares it.
type Init = unsafe extern "C" fn(*mut Topology) -> c_int;
// SAFETY: as hwloc.h declares it.
type HwlocTopologyFn = unsafe extern "C" fn(Topology) -> c_int;
// SAFETY: as hwloc.h declares it.
type HwlocDestroyFn = unsafe extern "C" fn(Topology);
// SAFETY: as hwloc.h declares it.
type Export = unsafe extern "C" fn(Topology, *mut *mut c_char, *mut c_int, c_ulong) -> c_int;
// SAFETY: as hwloc.h declares it.
type Free = unsafe extern "C" fn(Topology, *mut c_char);

/// Why there is no topology of this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HwlocError {
    /// The library is not there.
    #[error("{} cannot be loaded (the package libhwloc15 has it)", LIBRARY.to_string_lossy())]
    NoLibrary,
    /// It lacks a function.
    #[error("libhwloc has no {0}")]
    NoSymbol(String),
    /// It refuses to begin.
    #[error("libhwloc does not begin")]
    NoBegin,
    /// It finds nothing.
    #[error("libhwloc finds no topology (HWLOC_XMLFILE, HWLOC_SYNTHETIC: are their values right?)")]
    NoTopology,
}

/// A library that is loaded.
struct Library(*mut c_void);

impl Library {
    fn open() -> Result<Self, HwlocError> {
        // SAFETY: the name is a C string. The library's actions when it is loaded are its own.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match handle.is_null() {
            true => Err(HwlocError::NoLibrary),
            false => Ok(Self(handle)),
        }
    }

    fn symbol(&self, name: &CStr) -> Result<*mut c_void, HwlocError> {
        // SAFETY: the handle is open as long as `self` is there, and the name is a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        match found.is_null() {
            true => Err(HwlocError::NoSymbol(name.to_string_lossy().into_owned())),
            false => Ok(found),
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: nothing of it is used after this: functions and topology were locals of `topology`.
        unsafe { libc::dlclose(self.0) };
    }
}

/// The topology as hwloc's XML. hwloc's own variables hold (`HWLOC_XMLFILE`, `HWLOC_SYNTHETIC`): so one that is not this
/// machine's can be pretended.
///
/// # Errors
/// When the library is not there, or finds nothing.
pub fn topology() -> Result<String, HwlocError> {
    let library = Library::open()?;
    // SAFETY: the types are those of hwloc.h, which have not changed since 2.0 (its .so.15).
    let (init, load, export, free, destroy) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Init>(library.symbol(c"hwloc_topology_init")?),
            std::mem::transmute::<*mut c_void, HwlocTopologyFn>(
                library.symbol(c"hwloc_topology_load")?,
            ),
            std::mem::transmute::<*mut c_void, Export>(
                library.symbol(c"hwloc_topology_export_xmlbuffer")?,
            ),
            std::mem::transmute::<*mut c_void, Free>(library.symbol(c"hwloc_free_xmlbuffer")?),
            std::mem::transmute::<*mut c_void, HwlocDestroyFn>(
                library.symbol(c"hwloc_topology_destroy")?,
            ),
        )
    };
    let mut topology = null_mut();
    // SAFETY: each call gets what the one before made; the text is copied before it is freed, the topology destroyed once.
    unsafe {
        if init(&raw mut topology) != 0 {
            return Err(HwlocError::NoBegin);
        }
        let (mut text, mut length) = (null_mut(), 0);
        let made = load(topology) == 0
            && export(topology, &raw mut text, &raw mut length, 0) == 0
            && !text.is_null();
        let result = match made {
            true => {
                let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
                free(topology, text);
                Ok(copy)
            }
            false => Err(HwlocError::NoTopology),
        };
        destroy(topology);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_topology_and_the_library_does_not_stay() {
        let xml = topology().expect("libhwloc15 is installed (scripts/deps.sh test)");
        assert!(
            xml.contains("<topology") && xml.contains("type=\"PU\""),
            "{xml}"
        );
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("libhwloc"), "it was unloaded");
    }
}
