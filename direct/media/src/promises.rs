//! The promises of a file, as the system reports them and never guessed from a path.

use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, fstat, fstatfs, major, minor};
use rustix::io::Errno;
use std::path::Path;
use tarn_ports::{PowerFail, Promises};
use tarn_sys::memory::is_memory;

/// The aligned bytes that every supported processor writes whole.
const ATOMIC: u64 = 8;
const LINE: u64 = 64;
/// Persistent memory is written by blocks inside (256 bytes on Optane, 64 on battery-backed DRAM and CXL): the larger does no harm.
const BLOCK: u64 = 256;
const PAGE: u64 = 4096;

/// The known facts about a file before it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MediumKind {
    /// Of a file system in memory.
    Memory,
    /// A DAX device of so many bytes, mapped in multiples of its alignment.
    Device {
        /// Bytes.
        size: u64,
        /// Whether it keeps what it holds without power.
        persistent: bool,
    },
    /// Of another file system.
    File,
}

impl MediumKind {
    /// That of an open file; `sys` is where sysfs is.
    pub(crate) fn of(file: BorrowedFd<'_>, sys: &Path) -> Result<Self, Errno> {
        let stat = fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
            let device = format!("dev/char/{}:{}", major(stat.st_rdev), minor(stat.st_rdev));
            return device_at(&sys.join(device)).ok_or(Errno::NODEV);
        }
        Ok(match is_memory(&fstatfs(file)?) {
            true => Self::Memory,
            false => Self::File,
        })
    }

    /// Its promises; `synchronous`: it could be mapped with `MAP_SYNC`.
    pub(crate) fn promises(self, synchronous: bool, sys: &Path) -> Promises {
        let power_fail = match self {
            Self::Memory
            | Self::Device {
                persistent: false, ..
            } => PowerFail::Lost,
            Self::File if !synchronous => PowerFail::Synced,
            Self::File | Self::Device { .. } => match flushes_caches(sys) {
                true => PowerFail::Fenced,
                false => PowerFail::Flushed,
            },
        };
        let (write_unit, persist_unit) = match power_fail {
            PowerFail::Synced => (PAGE, PAGE),
            PowerFail::Lost => (LINE, LINE),
            PowerFail::Flushed | PowerFail::Fenced => (BLOCK, LINE),
        };
        Promises {
            atomic: ATOMIC,
            write_unit,
            persist_unit,
            power_fail,
        }
    }
}

/// A DAX device; none where it is another character device.
fn device_at(folder: &Path) -> Option<MediumKind> {
    let subsystem = std::fs::read_link(folder.join("subsystem")).ok()?;
    if subsystem.file_name()? != "dax" {
        return None;
    }
    let size = std::fs::read_to_string(folder.join("size")).ok()?;
    // Those of persistent regions hang below an NVDIMM bus; those of CXL and of set-aside memory do not.
    let place = folder.canonicalize().ok()?;
    let persistent = place
        .components()
        .any(|c| c.as_os_str().to_string_lossy().starts_with("ndbus"));
    Some(MediumKind::Device {
        size: size.trim().parse().ok()?,
        persistent,
    })
}

/// Whether the machine flushes its caches as it loses power: every region of persistent memory says so.
fn flushes_caches(sys: &Path) -> bool {
    let Ok(devices) = std::fs::read_dir(sys.join("bus/nd/devices")) else {
        return false;
    };
    let domains = devices.flatten().filter_map(|device| {
        std::fs::read_to_string(device.path().join("persistence_domain")).ok()
    });
    let domains: Vec<String> = domains.collect();
    !domains.is_empty() && domains.iter().all(|domain| domain.trim() == "cpu_cache")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A sysfs with one device, 1:3 (that of `/dev/null`), and one region.
    fn sysfs(below: &str, subsystem: &str, domain: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        let device = at("devices").join(below);
        for folder in [
            &device,
            &at("bus/dax"),
            &at("bus/mem"),
            &at("bus/nd/devices/region0"),
            &at("dev/char"),
        ] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(device.join("size"), "1073741824\n").unwrap();
        symlink(at("bus").join(subsystem), device.join("subsystem")).unwrap();
        symlink(&device, at("dev/char/1:3")).unwrap();
        fs::write(
            at("bus/nd/devices/region0/persistence_domain"),
            format!("{domain}\n"),
        )
        .unwrap();
        sys
    }

    #[test]
    fn a_device_is_what_the_system_says() {
        let null = fs::File::open("/dev/null").unwrap();
        let of = |sys: &tempfile::TempDir| MediumKind::of(null.as_fd(), sys.path());
        let nvdimm = sysfs("ndbus0/region0/dax0.0", "dax", "memory_controller");
        let kind = of(&nvdimm).unwrap();
        assert_eq!(
            kind,
            MediumKind::Device {
                size: 1 << 30,
                persistent: true
            }
        );
        let power_fail =
            |sys: &tempfile::TempDir| of(sys).unwrap().promises(true, sys.path()).power_fail;
        assert_eq!(power_fail(&nvdimm), PowerFail::Flushed);
        assert_eq!(
            power_fail(&sysfs("ndbus0/region0/dax0.0", "dax", "cpu_cache")),
            PowerFail::Fenced
        );
        assert_eq!(
            power_fail(&sysfs("hmem/dax1.0", "dax", "cpu_cache")),
            PowerFail::Lost
        );
        assert_eq!(
            of(&sysfs("virtual/null", "mem", "cpu_cache")),
            Err(Errno::NODEV)
        );
        assert_eq!(
            MediumKind::of(null.as_fd(), Path::new("/nowhere")),
            Err(Errno::NODEV)
        );
    }

    #[test]
    fn a_file_promises_what_its_mapping_can() {
        let sys = sysfs("ndbus0/dax", "dax", "memory_controller");
        let file = MediumKind::File;
        assert_eq!(
            file.promises(false, sys.path()).power_fail,
            PowerFail::Synced
        );
        assert_eq!(file.promises(false, sys.path()).persist_unit, 4096);
        assert_eq!(
            file.promises(true, sys.path()).power_fail,
            PowerFail::Flushed
        );
        assert_eq!(
            MediumKind::Memory.promises(false, sys.path()).power_fail,
            PowerFail::Lost
        );
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(
            MediumKind::of(memory.as_fd(), sys.path()),
            Ok(MediumKind::Memory)
        );
    }
}
