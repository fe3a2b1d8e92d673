//! The kernel's reports: its memory by NUMA node, mounted file systems, swap space.

use serde::Serialize;
use std::fmt;

/// A NUMA node's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Numa {
    /// Its number.
    pub number: u32,
    /// Bytes.
    pub total: u64,
    /// Those that are free.
    pub free: u64,
    /// Whether processors belong to it: memory of a CXL device or in system-ram mode has none.
    pub processors: bool,
    /// Bytes of DRAM that cache it, where firmware reports it to the kernel (`memory_side_cache`): 2LM.
    pub cache: u64,
}

/// Total and free bytes of `/sys/devices/system/node/nodeN/meminfo`.
pub fn numa_memory(meminfo: &str) -> (u64, u64) {
    let of = |what: &str| {
        let line = meminfo.lines().find(|l| l.contains(what));
        let number = line.and_then(|l| l.split_whitespace().rev().nth(1));
        let kib: Option<u64> = number.and_then(|n| n.parse().ok());
        kib.unwrap_or(0).saturating_mul(1024)
    };
    (of(" MemTotal:"), of(" MemFree:"))
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystemMount {
    /// Its device's numbers.
    pub device: (u32, u32),
    /// Its device's name.
    pub source: String,
    /// Its mount point.
    pub at: String,
}

/// The mounts of `/proc/self/mountinfo`; lines that are none are left out.
pub fn mounts(mountinfo: &str) -> Vec<FileSystemMount> {
    let mount = |line: &str| {
        let (first, second) = line.split_once(" - ")?;
        let mut first = first.split(' ').skip(2);
        let (major, minor) = first.next()?.split_once(':')?;
        Some(FileSystemMount {
            device: (major.parse().ok()?, minor.parse().ok()?),
            at: unescaped(first.nth(1)?),
            source: unescaped(second.split(' ').nth(1)?),
        })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// The paths of `/proc/swaps`.
pub fn swaps(text: &str) -> Vec<String> {
    let paths = text.lines().skip(1).filter_map(|l| l.split(' ').next());
    paths
        .filter(|p| p.starts_with('/'))
        .map(unescaped)
        .collect()
}

/// The kernel writes blanks and backslashes of paths as `\040`.
fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| after.get(..3)).flatten();
        let byte = octal
            .and_then(|o| std::str::from_utf8(o).ok())
            .and_then(|o| u8::from_str_radix(o, 8).ok());
        match byte {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// That a device is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// The device, such as `pmem0` or `dax0.0`.
    pub device: String,
    /// The kind of use.
    #[serde(flatten)]
    pub kind: UseKind,
}

/// The use of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "use", rename_all = "kebab-case")]
pub enum UseKind {
    /// A mounted file system.
    Mounted {
        /// The mount point.
        at: String,
    },
    /// A dataspace of the tarnd that runs here.
    Dataspace {
        /// Its name.
        name: String,
        /// Its folder.
        at: String,
    },
    /// Swap space.
    Swap {
        /// Its device or partition.
        path: String,
    },
    /// Another device is made of it.
    Held {
        /// That one.
        by: String,
    },
    /// A program has it open or mapped.
    Open {
        /// The process.
        process: u32,
        /// Its program.
        program: String,
    },
    /// The kernel reports it as busy.
    Busy,
}

impl fmt::Display for DeviceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        match &self.kind {
            UseKind::Mounted { at } => write!(f, "{device} is mounted at {at}"),
            UseKind::Dataspace { name, at } => {
                write!(f, "{device} has the dataspace {name} of tarnd, in {at}")
            }
            UseKind::Swap { path } => write!(f, "{device} is swap space, as {path}"),
            UseKind::Held { by } => write!(f, "{device} is part of {by}"),
            UseKind::Open { process, program } => {
                write!(f, "{device} is open in process {process} ({program})")
            }
            UseKind::Busy => write!(f, "the kernel reports that {device} is busy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let text = "22 1 259:0 / /mnt/pm\\040em rw,relatime shared:1 - ext4 /dev/pmem0 rw,dax\nnonsense\n1 2 x:y / / - a b";
        let mount = FileSystemMount {
            device: (259, 0),
            source: "/dev/pmem0".into(),
            at: "/mnt/pm em".into(),
        };
        assert_eq!(mounts(text), [mount]);
        let text = "Filename Type Size Used Priority\n/dev/pmem1 partition 1 0 -2\n";
        assert_eq!(swaps(text), ["/dev/pmem1"]);
        let text = "Node 0 MemTotal:       12150988 kB\nNode 0 MemFree:        10 kB\n";
        assert_eq!(numa_memory(text), (12_150_988 << 10, 10 << 10));
        assert_eq!(numa_memory("Node 0 MemTotal: x kB"), (0, 0));
        assert_eq!(unescaped("\\04"), "\\04");
    }
}
