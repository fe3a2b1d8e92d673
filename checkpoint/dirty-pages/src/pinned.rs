//! Memory that devices may write to.

use std::io;
use tarn_ports::TrackError;

/// Bytes of this process's memory that are pinned, as the kernel counts them (`VmPin`): for network cards (RDMA) and io_uring's fixed
/// buffers, which write to it without this process's page tables, so that a [`crate::WriteWatch`] does not see it. Drivers need not count.
///
/// # Errors
/// When the system does not report it.
pub fn pinned() -> Result<u64, TrackError> {
    let io = |source| TrackError::Io {
        doing: "read how much memory is pinned",
        source,
    };
    let status = std::fs::read_to_string("/proc/self/status").map_err(io)?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmPin:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    match kib {
        Some(kib) => Ok(kib * 1024),
        None => Err(io(io::ErrorKind::InvalidData.into())),
    }
}
