//! The structures of `phx.h`, and their values in Rust.

use crate::guard::set_last_error;
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use tarn_checkpoint::{
    CheckpointError, CheckpointErrorCode, PersistenceLevel, PowerFail, Precopy, Properties,
    RankStats, Restorable, Shape, VersionId,
};
use tarn_checkpoint_core::manifest::MAX_DIMENSIONS;

/// "As it is by default", where a number is requested.
pub(crate) const DEFAULT: u64 = u64::MAX;
/// Flags of `phx_options`.
pub(crate) const SAME_NODE: u32 = 1;
pub(crate) const NO_STAGING: u32 = 2;
pub(crate) const NO_HELPER: u32 = 4;
pub(crate) const AUDIT: u32 = 8;
pub(crate) const NO_REPLICAS: u32 = 16;
pub(crate) const MPROTECT: u32 = 32;
pub(crate) const ENCRYPT: u32 = 64;
/// The code of a call that was done with a warning.
const DEGRADED: c_int = 1;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct phx_options {
    pub size: u32,
    pub rank: u32,
    pub ranks: u32,
    pub replicas: u32,
    pub run: *const c_char,
    pub tier: *const c_char,
    pub memory: *const c_char,
    pub meet: *const c_char,
    pub key: *const c_char,
    pub profile: *const c_char,
    pub staging: u64,
    pub timeout_ns: u64,
    pub helpers: *const i32,
    pub helper_count: u32,
    pub flags: u32,
    pub copies: u32,
    pub parity: u32,
    pub replicate_every: u64,
    pub external: *const c_char,
    pub flush_every: u64,
    pub flush_rate: u64,
    pub transport: *const c_char,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct phx_dimension {
    pub all: u64,
    pub first: u64,
    pub count: u64,
    pub ghost: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct phx_properties {
    pub size: u32,
    pub transient: u8,
    pub precopy: u8,
    pub dma: u8,
    pub persistence: u8,
    pub versions: u32,
    pub shape: i32,
    pub dimensions: u32,
    pub row: u64,
    pub dimension: [phx_dimension; MAX_DIMENSIONS],
    pub replicas: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct phx_version {
    pub generation: u64,
    pub number: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct phx_version_info {
    pub version: phx_version,
    pub bytes: u64,
    pub ranks: u32,
    pub level: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(non_camel_case_types)]
pub struct phx_stats {
    pub size: u32,
    pub power_fail: i32,
    pub commits: u64,
    pub commit_ns: u64,
    pub waited_ns: u64,
    pub bytes: u64,
    pub staged_bytes: u64,
    pub ahead_bytes: u64,
    pub copied_twice_bytes: u64,
    pub destage_ns: u64,
    pub last_commit_ns: u64,
    pub last_staged_bytes: u64,
    pub last_destage_ns: u64,
    pub persistent_rate: u64,
    pub memory_rate: u64,
    pub degraded: u64,
    pub damaged_chunks: u64,
    pub restored_bytes: u64,
    pub restore_ns: u64,
    pub replicated: u64,
    pub bare: u64,
    pub flushed: u64,
    pub flushes_skipped: u64,
    pub flush_failed: u64,
    pub last_flush_ns: u64,
    pub pinned: u64,
    pub rma_put_bytes: u64,
    pub tcp_put_bytes: u64,
    pub rma_fetched_bytes: u64,
    pub tcp_fetched_bytes: u64,
}

/// A structure of the caller's, of the size that it was compiled with: fields of this library beyond that are as if zero.
///
/// # Safety
/// `given` is NULL or begins with its size in bytes, and has so many; a value of zeros is valid.
pub(crate) unsafe fn sized<T: Copy>(
    given: *const T,
    what: &str,
) -> Result<Option<T>, CheckpointError> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL; the first field is the size.
    let size = unsafe { given.cast::<u32>().read() } as usize;
    if size < size_of::<u32>() || size > size_of::<T>() {
        return Err(invalid(format!(
            "the size of {what} is {size}, and this library knows {}: set it to sizeof, and use the library that the header came with",
            size_of::<T>()
        )));
    }
    let mut own = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the caller has so many bytes, which fit; zeros are valid.
    unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), own.as_mut_ptr().cast(), size);
        Ok(Some(own.assume_init()))
    }
}

impl phx_properties {
    pub(crate) fn read(&self) -> Result<Properties, CheckpointError> {
        let dimensions = self.dimensions as usize;
        let shape = match self.shape {
            0 => Shape::Own,
            1 => Shape::Replicated,
            2 if dimensions > MAX_DIMENSIONS => {
                return Err(invalid(format!(
                    "a block has 1 to {MAX_DIMENSIONS} dimensions, not {dimensions}"
                )));
            }
            2 => {
                let all = self.dimension[..dimensions].iter();
                Shape::Block(all.map(|d| [d.all, d.first, d.count, d.ghost]).collect())
            }
            3 => Shape::Irregular(self.row),
            other => return Err(invalid(format!("{other} is no kind of shape"))),
        };
        if self.reserved != 0 {
            return Err(invalid(
                "reserved is 0: set all of phx_properties to zero first",
            ));
        }
        if self.precopy > 2 {
            return Err(invalid(format!(
                "precopy is 0, 1 or 2, not {}",
                self.precopy
            )));
        }
        Ok(Properties {
            transient: self.transient != 0,
            // Writes by devices are not seen.
            precopy: match (self.dma != 0, self.precopy) {
                (true, _) | (_, 1) => Precopy::Never,
                (false, 2) => Precopy::Always,
                _ => Precopy::WherePays,
            },
            versions: self.versions.max(1) as usize,
            persistence: level(self.persistence.into())?,
            replicas: (self.replicas > 0).then_some(self.replicas),
            shape,
        })
    }
}

impl From<VersionId> for phx_version {
    fn from(id: VersionId) -> Self {
        Self {
            generation: id.generation,
            number: id.number,
        }
    }
}

impl From<phx_version> for VersionId {
    fn from(version: phx_version) -> Self {
        Self {
            generation: version.generation,
            number: version.number,
        }
    }
}

impl From<&Restorable> for phx_version_info {
    fn from(version: &Restorable) -> Self {
        Self {
            version: version.id.into(),
            bytes: version.bytes,
            ranks: version.ranks,
            level: version.level as i32,
        }
    }
}

impl phx_stats {
    pub(crate) fn new(stats: &RankStats, power_fail: Option<PowerFail>) -> Self {
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            size: 0,
            power_fail: match power_fail {
                None | Some(PowerFail::Lost) => 0,
                Some(PowerFail::Synced) => 1,
                Some(PowerFail::Flushed) => 2,
                Some(PowerFail::Fenced) => 3,
            },
            commits: stats.commits,
            commit_ns: nanos(stats.commit),
            waited_ns: nanos(stats.waited),
            bytes: stats.bytes,
            staged_bytes: stats.staged,
            ahead_bytes: stats.ahead,
            copied_twice_bytes: stats.twice,
            destage_ns: nanos(stats.destage),
            last_commit_ns: nanos(stats.last_commit),
            last_staged_bytes: stats.last_staged,
            last_destage_ns: nanos(stats.last_destage),
            persistent_rate: stats.persistent_rate,
            memory_rate: stats.memory_rate,
            degraded: stats.degraded,
            damaged_chunks: stats.damaged,
            restored_bytes: stats.restored,
            restore_ns: nanos(stats.restore),
            replicated: stats.replicated,
            bare: stats.bare,
            flushed: stats.flushed,
            flushes_skipped: stats.flushes_skipped,
            flush_failed: stats.flush_failed,
            last_flush_ns: nanos(stats.last_flush),
            pinned: stats.pinned,
            rma_put_bytes: stats.carried.put,
            tcp_put_bytes: stats.carried.put_by_stream,
            rma_fetched_bytes: stats.carried.fetched,
            tcp_fetched_bytes: stats.carried.fetched_by_stream,
        }
    }

    /// Gives the caller as much of it as it knows.
    ///
    /// # Safety
    /// `to` begins with its size in bytes, and has so many.
    pub(crate) unsafe fn write(&self, to: *mut Self, size: usize) {
        let begin = offset_of!(Self, power_fail);
        let size = size.min(size_of::<Self>());
        // SAFETY: the caller has so many bytes; its size stays.
        unsafe {
            let from = std::ptr::from_ref(self).cast::<u8>().add(begin);
            std::ptr::copy_nonoverlapping(
                from,
                to.cast::<u8>().add(begin),
                size.saturating_sub(begin),
            );
        }
    }
}

pub(crate) fn level(number: c_int) -> Result<PersistenceLevel, CheckpointError> {
    Ok(match number {
        0 => PersistenceLevel::Committed,
        1 => PersistenceLevel::Durable,
        2 => PersistenceLevel::Replicated,
        3 => PersistenceLevel::Flushed,
        other => return Err(invalid(format!("{other} is no level"))),
    })
}

pub(crate) fn invalid(text: impl Into<String>) -> CheckpointError {
    CheckpointError::new(CheckpointErrorCode::Invalid, text)
}

/// Runs a call: an error, or that it panicked, becomes a code and a text; a text alone is a warning.
pub(crate) fn guard(call: impl FnOnce() -> Result<Option<String>, CheckpointError>) -> c_int {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    let outcome = outcome.unwrap_or_else(|_| {
        let text = "an error inside libtarn: versions that were committed can be restored by the next start";
        Err(CheckpointError::new(CheckpointErrorCode::Internal, text))
    });
    match outcome {
        Ok(None) => 0,
        Ok(Some(warning)) => {
            set_last_error(&warning);
            DEGRADED
        }
        Err(fault) => {
            set_last_error(&fault.text);
            fault.code as c_int
        }
    }
}
