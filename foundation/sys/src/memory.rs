//! Total memory, and the memory that may still be taken: the machine's, and that of the control
//! groups (version 1 or 2) this process lives in. A tmpfs is charged to them: beyond their limit the kernel kills.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Whether an open file, or a file system, is in memory: tmpfs, ramfs, hugetlbfs (their magic numbers: `statfs(2)`).
pub fn is_memory(stat: &rustix::fs::StatFs) -> bool {
    const MAGIC: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    MAGIC.contains(&(stat.f_type as u32))
}

/// Whether a folder is on a file system in memory.
pub fn in_memory(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|s| is_memory(&s))
}

/// Memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Of the machine, or the least limit of a control group.
    pub total: u64,
    /// Memory that may still be taken without swapping or being killed.
    pub free: u64,
    /// The owner of the limit: `machine` or the control group's folder.
    pub limited_by: String,
    /// The machine's, and that of each control group with a limit.
    levels: Vec<MemoryAccount>,
}

/// One account of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemoryAccount {
    free: u64,
    /// Charged to it as files in memory or shared memory.
    shared: u64,
}

impl Memory {
    /// The free memory if `held` bytes that are on a file system in memory were not there. The files do not show the account that
    /// they are charged to: it may be another job's control group or one that has gone, and then this process's accounts gain
    /// nothing. They gain no more than they are charged with for all files in memory.
    pub fn free_without(&self, held: u64) -> u64 {
        let free = |l: &MemoryAccount| l.free.saturating_add(held.min(l.shared));
        self.levels.iter().map(free).min().unwrap_or(self.free)
    }

    /// Of a job that has `total` bytes and nothing but `shared` bytes of files in memory.
    pub fn of_job(total: u64, shared: u64) -> Self {
        let free = total - shared;
        Self {
            total,
            free,
            limited_by: "job".into(),
            levels: vec![MemoryAccount { free, shared }],
        }
    }

    /// Takes off the bytes that other files in memory, of `bytes` so far, may come to hold.
    #[must_use]
    pub fn beside(&self, held: u64) -> Self {
        let mut left = self.clone();
        for level in &mut left.levels {
            level.shared = level.shared.saturating_sub(held);
        }
        left
    }
}

/// Limits above this mean "none" in control groups of version 1 (they round `i64::MAX` down to a page).
const NO_LIMIT: u64 = 1 << 62;
/// Bytes that are read of one of the kernel's files: they have some KiB at most.
const LONGEST: usize = 16 << 10;

/// Reads the free memory, again and again: so its files stay open.
#[derive(Debug)]
pub struct Gauge {
    machine: File,
    groups: Vec<Group>,
}

/// A control group's account; limit and use have other names in each version.
#[derive(Debug)]
struct Group {
    folder: PathBuf,
    limit: File,
    used: File,
    stat: File,
}

impl Group {
    fn open(folder: PathBuf) -> Option<Self> {
        let open = |name: &str| File::open(folder.join(name)).ok();
        let one = open("memory.limit_in_bytes").zip(open("memory.usage_in_bytes"));
        let (limit, used) = one.or_else(|| open("memory.max").zip(open("memory.current")))?;
        let stat = open("memory.stat")?;
        Some(Self {
            folder,
            limit,
            used,
            stat,
        })
    }

    /// Its limit in bytes, if it has one now, and its usage.
    fn account(&self) -> Option<(u64, u64)> {
        let number = |file| text(file).ok()?.trim().parse::<u64>().ok();
        let limit = number(&self.limit).filter(|l| *l < NO_LIMIT)?;
        Some((limit, number(&self.used).unwrap_or(0)))
    }

    fn narrow(&self, found: &mut Memory) {
        let Some((limit, used)) = self.account() else {
            return;
        };
        let stat = text(&self.stat).unwrap_or_default();
        // With the groups below (version 1: `total_`) or without: version 2 counts that in.
        let counted = |names: [&str; 2]| {
            let of = |name: &&str| {
                let line = stat.lines().find_map(|l| l.strip_prefix(*name))?;
                line.trim().parse::<u64>().ok()
            };
            names.iter().find_map(of).unwrap_or(0)
        };
        // Clean page cache is given back before anybody is killed.
        let reclaimable = counted(["total_inactive_file ", "inactive_file "]);
        let free = limit.saturating_sub(used.saturating_sub(reclaimable));
        found.free = found.free.min(free);
        found.levels.push(MemoryAccount {
            free,
            shared: counted(["total_shmem ", "shmem "]),
        });
        if limit < found.total {
            found.total = limit;
            found.limited_by = self.folder.display().to_string();
        }
    }
}

impl Gauge {
    /// # Errors
    /// When `/proc/meminfo` cannot be opened.
    pub fn new() -> std::io::Result<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let folders = group_folders(&groups, &mounts);
        Ok(Self {
            machine: File::open("/proc/meminfo")?,
            groups: folders.into_iter().filter_map(Group::open).collect(),
        })
    }

    /// Bytes that are free, and that there are in all; without a bound where that cannot be known. As long as that is `plenty`
    /// of the total, page cache that could be given back is not counted: the look at it is the cost.
    pub fn read(&self, plenty: impl Fn(u64) -> u64) -> (u64, u64) {
        let machine = rustix::system::sysinfo();
        let bytes = |n: u64| n.saturating_mul(u64::from(machine.mem_unit));
        let (mut free, mut total) = (bytes(machine.freeram), bytes(machine.totalram));
        for (limit, used) in self.groups.iter().filter_map(Group::account) {
            total = total.min(limit);
            free = free.min(limit.saturating_sub(used));
        }
        if free >= plenty(total) {
            return (free, total);
        }
        let found = self.memory();
        found.map_or((u64::MAX, u64::MAX), |m| (m.free, m.total))
    }

    fn machine(&self) -> std::io::Result<Memory> {
        let text = text(&self.machine)?;
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name))?;
            line.split_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
                .map(|kib| kib << 10)
        };
        let free = field("MemAvailable:").or_else(|| field("MemFree:"));
        let free = free.unwrap_or(0);
        Ok(Memory {
            total: field("MemTotal:").unwrap_or(0),
            free,
            limited_by: "machine".into(),
            levels: vec![MemoryAccount {
                free,
                shared: field("Shmem:").unwrap_or(0),
            }],
        })
    }

    fn memory(&self) -> std::io::Result<Memory> {
        let mut found = self.machine()?;
        self.groups.iter().for_each(|g| g.narrow(&mut found));
        Ok(found)
    }
}

/// The content of a file of the kernel's now.
fn text(file: &File) -> std::io::Result<String> {
    let mut bytes = vec![0; LONGEST];
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], length as u64)? {
            0 => break,
            n => length += n,
        }
    }
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Finds out about memory.
///
/// # Errors
/// When `/proc/meminfo` cannot be read.
pub fn memory() -> std::io::Result<Memory> {
    Gauge::new()?.memory()
}

/// The folders that account for this process's memory: its groups and all above them.
fn group_folders(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let second = id == "0" && controllers.is_empty();
        if !second && !controllers.split(',').any(|c| c == "memory") {
            continue;
        }
        let Some(mount) = mount_of(mounts, second) else {
            continue;
        };
        // In a container the path may be the host's: a missing folder is skipped, the mount's root stays.
        let inside = mount.join(path.trim_start_matches('/'));
        let up = inside
            .ancestors()
            .take_while(|a| a.starts_with(&mount))
            .map(Path::to_path_buf);
        folders.extend(up.filter(|f| f.is_dir()));
    }
    folders
}

/// The mount point of the unified hierarchy, or of the memory controller (proc(5): the fields after ` - ` are
/// type, source and options).
fn mount_of(mounts: &str, second: bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split(' ').next()?;
        let options = after.rsplit(' ').next()?;
        let wanted = match second {
            true => kind == "cgroup2",
            false => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
        };
        wanted
            .then(|| before.split(' ').nth(4).map(PathBuf::from))
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let m = memory().unwrap();
        assert!(m.total > 0 && m.free > 0 && m.free <= m.total);
    }

    #[test]
    fn limits_of_both_versions_narrow() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one/a/b"), root.path().join("two/c"));
        std::fs::create_dir_all(&one).unwrap();
        std::fs::create_dir_all(&two).unwrap();
        let mounts = format!(
            "30 1 0:26 / {0}/one rw - cgroup cgroup rw,memory\n31 1 0:27 / {0}/two rw - cgroup2 cgroup2 rw\n",
            root.path().display()
        );
        let folders = group_folders("4:memory:/a/b\n7:cpu:/x\n0::/c\n", &mounts);
        assert_eq!(folders.len(), 5);
        assert!(folders.contains(&one) && folders.contains(&two));
        std::fs::write(root.path().join("one/a/memory.limit_in_bytes"), "1000\n").unwrap();
        std::fs::write(root.path().join("one/a/memory.usage_in_bytes"), "700\n").unwrap();
        std::fs::write(
            root.path().join("one/a/memory.stat"),
            "shmem 1\ntotal_inactive_file 200\ntotal_shmem 150\n",
        )
        .unwrap();
        let second = |name: &str, text: &str| std::fs::write(two.join(name), text).unwrap();
        second("memory.max", "max\n");
        second("memory.current", "790\n");
        second("memory.stat", "inactive_file 700\nshmem 1\n");
        let groups: Vec<Group> = folders.into_iter().filter_map(Group::open).collect();
        assert_eq!(groups.len(), 2, "the others have no such files");
        let mut m = Memory {
            total: 5000,
            free: 4000,
            limited_by: "machine".into(),
            levels: vec![MemoryAccount {
                free: 4000,
                shared: 3000,
            }],
        };
        groups.iter().for_each(|g| g.narrow(&mut m));
        assert_eq!((m.total, m.free), (1000, 500));
        // Of what is stored on a tier, no more was charged to the group than it has files in memory at all.
        assert_eq!(m.free_without(100), 600);
        assert_eq!(m.free_without(2000), 650);
        assert_eq!(m.beside(100).free_without(2000), 550);
        second("memory.max", "800\n");
        second("memory.stat", "inactive_file 0\nshmem 1\n");
        groups.iter().for_each(|g| g.narrow(&mut m));
        assert_eq!((m.total, m.free), (800, 10));
        // Memory that could be given back is looked for only where little is free without.
        second("memory.stat", "inactive_file 700\nshmem 1\n");
        let machine = File::open("/proc/meminfo").unwrap();
        let gauge = Gauge { machine, groups };
        assert_eq!(gauge.read(|total| total / 80), (10, 800));
        assert_eq!(gauge.read(|total| total / 40), (500, 800));
    }
}
