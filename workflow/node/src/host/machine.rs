//! The resources of this machine: cores, memory, tiers with their measured bandwidth, and a cluster of N nodes made of it.

mod stand_in;

use crate::sockets::Near;
use crate::storage::ledger::{held_by_others, used_by_all};
use crate::storage::tier_folder::{default_root, look_at_root};
use crate::topology::socket_of;
pub use crate::topology::{TopologyError, sockets};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
pub use stand_in::{StandIn, stand_in};
pub(crate) use stand_in::{instead, lacks};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tarn_sys::beneath::write_in_place;
use tarn_sys::memory::in_memory;
use tarn_sys::memory::{Memory, memory};
use tarn_types::cluster::{Cluster, Host, Link, Node, Socket, Tier};
use tarn_types::layout::StateDir;
use tarn_types::nodes::NodeTierUsage;
use tarn_types::units::{Bytes, parse_size};

/// Bytes written and read to measure a tier: enough to leave the caches of a core, little enough to take no time.
const PROBE_BYTES: u64 = 64 << 20;
/// As much for memory, whose rate shows sooner: a first run on a machine waits for it.
const PROBE_MEMORY_BYTES: u64 = 16 << 20;
/// The least that gives a useful rate: more than the caches next to a core.
const PROBE_LEAST: u64 = 256 << 10;
/// The part of a tier's free space that the measurement may take: others may measure or move data there meanwhile.
pub(crate) const PROBE_SHARE: u64 = 16;
/// The unit of that writing and reading.
const PROBE_CHUNK: usize = 1 << 20;
/// A measurement older than this (seconds) is made again: machines change.
const PROBE_LIFE: u64 = 30 * 24 * 3600;
/// Jobs of movement at once. A mover uses several threads itself for one large tree; more jobs than these help only where
/// latency rules, which is the external store's `streams`, and that is at most this.
pub const MAX_MOVING: usize = 8;
/// Measurements that are remembered of one machine: its tiers, and the links to nodes that jobs had beside it.
const MAX_REMEMBERED: usize = 256;
/// A tier in memory of a given size must leave the steps, tarn and tarnd one in so many of the bytes that are free, ...
const STEPS_SHARE: u64 = 8;
/// ... and at least so many.
const STEPS_LEAST: u64 = 64 << 20;
/// Of a disk's free space, tarn takes at most so many tenths for a tier whose size nobody gave.
const DISK_TENTHS: u64 = 9;

/// Why the machine cannot be as requested.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A `--tier` argument is wrong.
    #[error(
        "`{0}` is not a tier: expected NAME=PATH or NAME=PATH:SIZE, such as disk=/scratch/tarn:20GiB"
    )]
    Tier(String),
    /// Its size is wrong.
    #[error("the size of tier `{name}` is wrong: {source}")]
    Size {
        /// The tier.
        name: String,
        /// The error.
        source: tarn_types::units::UnitError,
    },
    /// The tiers do not fit into the memory or onto the disk.
    #[error(
        "tier `{name}` at {root} has no space for {nodes} nodes with {} each: {} are free for it ({limit}); give it a smaller size or take fewer nodes",
        Bytes(*.want), Bytes(*.free)
    )]
    NoSpace {
        /// The tier.
        name: String,
        /// Its path.
        root: PathBuf,
        /// Nodes requested.
        nodes: u32,
        /// Bytes requested, each.
        want: u64,
        /// Bytes that are free for it in all.
        free: u64,
        /// The cause of the limit.
        limit: String,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// A requested tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierSpec {
    /// Its name.
    pub name: String,
    /// Its path.
    pub root: PathBuf,
    /// Bytes for each node; `None` for an equal share of what is free.
    pub size: Option<u64>,
}

impl std::str::FromStr for TierSpec {
    type Err = MachineError;

    fn from_str(text: &str) -> Result<Self, MachineError> {
        let wrong = || MachineError::Tier(text.into());
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let named = name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if name.is_empty() || !named || name.len() > tarn_types::bounds::MAX_NAME_BYTES {
            return Err(wrong());
        }
        // A path may hold colons: only what looks like a size after the last one is a size.
        let (path, size) = match rest.rsplit_once(':') {
            Some((path, size)) if size.starts_with(|c: char| c.is_ascii_digit()) => {
                (path, Some(size))
            }
            _ => (rest, None),
        };
        if !path.starts_with('/') {
            return Err(wrong());
        }
        let size = size
            .map(parse_size)
            .transpose()
            .map_err(|source| MachineError::Size {
                name: name.into(),
                source,
            })?;
        Ok(Self {
            name: name.into(),
            root: path.into(),
            size,
        })
    }
}

/// The tier when none is requested: memory, in a folder of the user's own.
pub fn default_tier() -> TierSpec {
    TierSpec {
        name: "tmpfs".into(),
        root: default_root(),
        size: None,
    }
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalMachine {
    /// Its name.
    pub name: String,
    /// Cores that this process may use.
    pub cores: u32,
    /// Its memory.
    pub memory: Memory,
}

/// Finds out what the machine has.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn machine() -> Result<LocalMachine, MachineError> {
    let memory = memory().map_err(|source| MachineError::Io {
        what: "/proc/meminfo cannot be read".into(),
        source,
    })?;
    let cores = std::thread::available_parallelism()
        .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    Ok(LocalMachine {
        name: host_name(),
        cores,
        memory,
    })
}

/// The name of this machine.
pub fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Measured rates in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredBandwidth {
    /// Reading.
    pub read: u64,
    /// Writing.
    pub write: u64,
    /// When it was measured, in seconds since 1970.
    pub measured: u64,
}

/// The bandwidth of a folder, measured now or remembered under a name in `<state>/machine.json` (where there is a state folder).
///
/// # Errors
/// When the folder cannot be written.
pub(crate) fn bandwidth_of(
    name: String,
    folder: &Path,
    state: &StateDir,
    most: u64,
) -> Result<MeasuredBandwidth, MachineError> {
    remembered(name, state, || {
        probe(folder, most).map_err(|source| MachineError::Io {
            what: format!("the bandwidth of {} cannot be measured", folder.display()),
            source,
        })
    })
}

/// Bytes a second from another node to this one, as `measure` finds them or as they are remembered beside the bandwidths.
///
/// # Errors
/// That of `measure`.
pub fn link<E>(
    from: &str,
    state: &StateDir,
    measure: impl FnOnce() -> Result<u64, E>,
) -> Result<u64, E> {
    // No path begins like this.
    let name = format!("from {from}");
    // One node reads as fast as the other one sends.
    let both = || measure().map(|rate| (rate, rate));
    remembered(name, state, both).map(|b| b.read)
}

/// The rates that are remembered under a name, or found out now and remembered: (read, write) in bytes a second.
fn remembered<E>(
    name: String,
    state: &StateDir,
    find: impl FnOnce() -> Result<(u64, u64), E>,
) -> Result<MeasuredBandwidth, E> {
    let file = state.0.join("machine.json");
    let mut known: BTreeMap<String, MeasuredBandwidth> = std::fs::read(&file)
        .ok()
        .and_then(|b| serde_json::from_slice(&b).ok())
        .unwrap_or_default();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    if let Some(found) = known
        .get(&name)
        .filter(|b| now.saturating_sub(b.measured) < PROBE_LIFE)
    {
        return Ok(*found);
    }
    let (read, write) = find()?;
    let found = MeasuredBandwidth {
        read,
        write,
        measured: now,
    };
    known.retain(|_, b| now.saturating_sub(b.measured) < PROBE_LIFE);
    while known.len() >= MAX_REMEMBERED {
        let oldest = known.iter().min_by_key(|(_, b)| b.measured);
        let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
            break;
        };
        known.remove(&oldest);
    }
    known.insert(name, found);
    // Only a memory: without it, the next run measures again. Looking at a machine makes no state folder.
    if state.0.is_dir()
        && let Ok(text) = serde_json::to_vec_pretty(&known)
    {
        let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
        let written = write_in_place(&temporary, &text);
        let _ = written.and_then(|()| std::fs::rename(&temporary, &file));
    }
    Ok(found)
}

/// Writes (and syncs) and reads again, without the page cache where there is one: (read, write) in bytes a second.
fn probe(folder: &Path, most: u64) -> io::Result<(u64, u64)> {
    let memory = in_memory(folder);
    let enough = match memory {
        true => PROBE_MEMORY_BYTES,
        false => PROBE_BYTES,
    };
    let size = enough
        .min(free_bytes(folder)? / 4)
        .min(most)
        .max(PROBE_LEAST);
    measure(nameless(folder)?, memory, size)
}

/// A file without a name: it goes with the process, however that ends.
fn nameless(folder: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        // Not every file system has such files (NFS has not).
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
            let path = folder.join(format!(".probe-{}", std::process::id()));
            let mut options = OpenOptions::new();
            let file = options
                .create_new(true)
                .read(true)
                .write(true)
                .open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(e) => Err(e.into()),
    }
}

fn measure(mut file: File, memory: bool, size: u64) -> io::Result<(u64, u64)> {
    // Not zeros: some devices and file systems store those for nothing.
    let mut chunk: Vec<u8> = (0..PROBE_CHUNK)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let began = Instant::now();
    let mut left = size;
    while left > 0 {
        let n = left.min(PROBE_CHUNK as u64);
        file.write_all(&chunk[..usize::try_from(n).unwrap_or(PROBE_CHUNK)])?;
        left -= n;
    }
    if !memory {
        file.sync_data()?;
    }
    let write = began.elapsed();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    file.rewind()?;
    let began = Instant::now();
    while file.read(&mut chunk)? > 0 {}
    let rate = |t: std::time::Duration| (size as f64 / t.as_secs_f64().max(1e-9)) as u64;
    Ok((rate(began.elapsed()), rate(write)))
}

fn free_bytes(folder: &Path) -> io::Result<u64> {
    let s = rustix::fs::statvfs(folder)?;
    Ok(s.f_bavail.saturating_mul(s.f_frsize))
}

/// The parts of a cluster on this machine.
#[derive(Debug, Clone)]
pub struct ClusterSpec<'a> {
    /// Nodes, at least 1.
    pub nodes: u32,
    /// Tiers of every node, fast to slow.
    pub tiers: &'a [TierSpec],
    /// The external store: found or emulated rates.
    pub external: Link,
    /// The state folder, which remembers measurements.
    pub state: &'a StateDir,
    /// The sockets to which steps and movement are bound, as [`sockets`] finds them; none: nothing is bound.
    pub sockets: Vec<Socket>,
}

/// A cluster of nodes that share this machine: `max(1, cores / nodes)` cores each, under the cap of the host's.
/// A tier in memory whose size nobody gave gets half of the memory that is free; the other half is for the steps.
///
/// # Errors
/// When a tier cannot be used or does not fit.
pub fn cluster(machine: &LocalMachine, spec: &ClusterSpec<'_>) -> Result<Cluster, MachineError> {
    let nodes = spec.nodes.max(1);
    let mut tiers = Vec::new();
    let mut sockets = spec.sockets.clone();
    let mut in_tiers = 0u64;
    let in_memory_now = |t: &&TierSpec| in_memory(&t.root);
    let held: Vec<(&Path, u64)> = spec
        .tiers
        .iter()
        .filter(in_memory_now)
        .map(|t| (&*t.root, used_by_all(&t.root)))
        .collect();
    for tier in spec.tiers {
        let others = held.iter().filter(|(root, _)| *root != tier.root);
        let others = others.map(|(_, held)| held).sum();
        let memory = machine.memory.beside(others);
        let (found, near) = find_tier(&memory, tier, nodes, spec, in_tiers)?;
        if in_memory(&near) {
            in_tiers = in_tiers.saturating_add(found.capacity.saturating_mul(nodes.into()));
        }
        if let Some(at) = socket_of(&near, &sockets) {
            sockets[at].tiers.push(found.name.clone());
        }
        tiers.push(found);
    }
    let for_steps = machine.memory.total.saturating_sub(in_tiers) / u64::from(nodes);
    // Nodes of one host hand data over at the speed of their tiers.
    let copy = tiers.first().map_or((1, 1), |t: &Tier| (t.read, t.write));
    Ok(Cluster {
        hosts: vec![Host {
            name: machine.name.clone(),
            cores: machine.cores,
            memory: machine.memory.total,
            sockets,
            draw: Default::default(),
        }],
        nodes: (0..nodes)
            .map(|n| Node {
                name: format!("node{n}"),
                host: 0,
                cores: (machine.cores / nodes).max(1),
                memory: for_steps,
                gpus: 0,
                tiers: tiers.clone(),
            })
            .collect(),
        external: spec.external.clone(),
        peer: Link {
            read: copy.0,
            write: copy.1,
            latency: 0,
            streams: u32::try_from(MAX_MOVING).unwrap_or(1),
            emulated: false,
        },
    })
}

/// The most that a tier in memory may have, and what sets that: the memory that is free for it, or what is free of its file system.
fn most_of(memory: u64, limited_by: &str, on_disk: u64) -> (u64, String) {
    match on_disk < memory {
        true => (on_disk, "the file system".to_owned()),
        false => (memory, format!("memory, limited by {limited_by}")),
    }
}

/// `memory`: without what other tiers hold. `in_tiers`: bytes of memory that tiers before it may come to hold.
///
/// The tier, and its folder, or the one within which that will be made: nothing is made by looking.
fn find_tier(
    memory: &Memory,
    tier: &TierSpec,
    nodes: u32,
    spec: &ClusterSpec<'_>,
    in_tiers: u64,
) -> Result<(Tier, PathBuf), MachineError> {
    let io = |source| MachineError::Io {
        what: format!(
            "tier `{}` at {} cannot be used",
            tier.name,
            tier.root.display()
        ),
        source,
    };
    let near = look_at_root(&tier.root).map_err(io)?;
    // It is measured from where it will be used.
    let _near = Near::folder(&near, &spec.sockets);
    // The size of the tier as a whole: the ledger takes off what others hold, now and later.
    let taken = used_by_all(&tier.root);
    let size_left = tier.size.map_or(u64::MAX, |size| {
        size.saturating_mul(nodes.into()).saturating_sub(taken)
    });
    let name = tier.root.display().to_string();
    let rates = bandwidth_of(name, &near, spec.state, size_left / PROBE_SHARE)?;
    let on_disk = free_bytes(&near).map_err(io)?.saturating_add(taken);
    let (share, most, limit) = match in_memory(&near) {
        true => {
            let free = memory.free_without(taken).saturating_sub(in_tiers);
            let (most, limit) = most_of(for_tier(free), &memory.limited_by, on_disk);
            (free.min(on_disk) / 2, most, limit)
        }
        false => {
            let share = on_disk / 10 * DISK_TENTHS;
            (share, on_disk, "the file system".to_owned())
        }
    };
    let capacity = tier.size.unwrap_or(share / u64::from(nodes));
    if tier.size.is_some() && capacity.saturating_mul(nodes.into()) > most {
        return Err(MachineError::NoSpace {
            name: tier.name.clone(),
            root: tier.root.clone(),
            nodes,
            want: capacity,
            free: most,
            limit,
        });
    }
    let found = Tier {
        name: tier.name.clone(),
        root: tier.root.clone(),
        capacity,
        read: rates.read,
        write: rates.write,
        lender: None,
    };
    Ok((found, near))
}

/// The most of so much free memory that a tier of a given size may take.
fn for_tier(free: u64) -> u64 {
    free.saturating_sub((free / STEPS_SHARE).max(STEPS_LEAST))
}

/// The space that workflows hold now of the tiers at these roots, and the memory mode.
pub fn held_space(roots: &[PathBuf]) -> NodeTierUsage {
    NodeTierUsage {
        mode: memory_mode(),
        held: roots.iter().map(|r| held_by_others(r, "")).collect(),
    }
}

/// The memory mode of this machine as its kernel shows it to everybody (Jackson 2019, section 2.2; Weiland 2018, sections 1.2 and 1.3):
/// `tarn mode show`, as root, knows more (docs/admin/memory-modes.md).
pub fn memory_mode() -> String {
    let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let namespaces = entries("/sys/bus/nd/devices");
    let dax = entries("/sys/bus/dax/devices");
    let as_memory = entries("/sys/bus/dax/drivers/kmem") > 3;
    match (
        memory_is_cached(Path::new("/sys/devices/system/node")),
        namespaces,
        dax,
        as_memory,
    ) {
        (true, 0, _, _) => "2lm".into(),
        (true, _, _, _) => "mixed".into(),
        (_, 0, 0, _) => "dram".into(),
        (_, _, _, true) => "system-ram".into(),
        _ => "1lm".into(),
    }
}

/// Whether DRAM caches memory behind it, as firmware with an HMAT table reports to the kernel.
fn memory_is_cached(nodes: &Path) -> bool {
    let nodes = std::fs::read_dir(nodes).into_iter().flatten().flatten();
    let mut caches = nodes.map(|n| n.path().join("memory_side_cache"));
    caches.any(|c| std::fs::read_dir(c).is_ok_and(|mut levels| levels.next().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_in_memory_is_limited_by_the_lesser_of_two() {
        let (most, limit) = most_of(100, "a job", 99);
        assert_eq!((most, limit.as_str()), (99, "the file system"));
        let (most, limit) = most_of(100, "a job", 100);
        assert_eq!((most, limit.as_str()), (100, "memory, limited by a job"));
    }

    #[test]
    fn a_cache_in_front_of_memory_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("node1");
        std::fs::create_dir_all(node.join("memory_side_cache")).unwrap();
        assert!(!memory_is_cached(dir.path()), "no level is in it");
        std::fs::create_dir(node.join("memory_side_cache/index1")).unwrap();
        assert!(memory_is_cached(dir.path()));
        assert!(!memory_is_cached(&dir.path().join("none")));
    }

    #[test]
    fn tiers_are_parsed_strictly() {
        let t: TierSpec = "disk=/a:b/c:20 GiB".parse().unwrap();
        assert_eq!(
            (t.name.as_str(), t.root.as_path(), t.size),
            ("disk", Path::new("/a:b/c"), Some(20 << 30))
        );
        let t: TierSpec = "disk=/a:b".parse().unwrap();
        assert_eq!((t.root.as_path(), t.size), (Path::new("/a:b"), None));
        for bad in ["disk", "=/a", "d=a/b", "d k=/a", "d=/a:20 gb", "d=/a:20"] {
            assert!(bad.parse::<TierSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_measurement_has_no_name_that_a_crash_could_leave() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = nameless(dir.path()).unwrap();
        file.write_all(b"x").unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    const LINK: Link = Link {
        read: 1,
        write: 1,
        latency: 0,
        streams: 2,
        emulated: false,
    };

    /// The capacity of a tier in memory, of a job with 800 MiB, that has `shared` of files in memory already.
    fn in_a_job(root: &Path, size: Option<u64>, shared: u64) -> Result<u64, MachineError> {
        let state = StateDir(root.join("none"));
        let tiers = [TierSpec {
            name: "t".into(),
            root: root.join("tier"),
            size,
        }];
        let machine = LocalMachine {
            memory: Memory::of_job(800 * MIB, shared),
            ..machine().unwrap()
        };
        let spec = ClusterSpec {
            nodes: 1,
            tiers: &tiers,
            external: LINK,
            state: &state,
            sockets: Vec::new(),
        };
        Ok(cluster(&machine, &spec)?.nodes[0].tiers[0].capacity)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_tier_in_memory_leaves_the_steps_of_the_job_theirs() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let most = for_tier(800 * MIB);
        assert_eq!(most, 700 * MIB);
        assert_eq!(in_a_job(dir.path(), Some(most), 0).unwrap(), most);
        let refused = in_a_job(dir.path(), Some(most + 1), 0).unwrap_err();
        assert!(
            refused.to_string().contains("700.00 MiB are free for it"),
            "{refused}"
        );
        assert_eq!(in_a_job(dir.path(), None, 0).unwrap(), 400 * MIB);
        // Files of another job there give this one no memory; files that this one has written there are its own.
        crate::storage::ledger::left_by_the_dead(&dir.path().join("tier"), 500 * MIB);
        for (shared, free) in [(0, 800), (300, 800), (500, 800)] {
            let capacity = in_a_job(dir.path(), None, shared * MIB).unwrap();
            assert_eq!(capacity, free * MIB / 2, "{shared}");
            assert!(in_a_job(dir.path(), Some(most + 1), shared * MIB).is_err());
        }
    }

    #[test]
    fn a_cluster_shares_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir(dir.path().join("state"));
        let machine = LocalMachine {
            cores: 2,
            ..machine().unwrap()
        };
        let tiers = [TierSpec {
            name: "t".into(),
            root: dir.path().join("tier"),
            size: Some(1 << 20),
        }];
        let mut spec = ClusterSpec {
            nodes: 4,
            tiers: &tiers,
            external: LINK,
            state: &state,
            sockets: Vec::new(),
        };
        let c = cluster(&machine, &spec).unwrap();
        assert_eq!(c.nodes.len(), 4);
        assert!(
            c.nodes
                .iter()
                .all(|n| n.cores == 1 && n.tiers[0].capacity == 1 << 20)
        );
        assert!(c.nodes[0].tiers[0].read > 0 && c.hosts[0].cores == 2);
        assert!(
            !state.0.exists(),
            "looking at a machine makes no state folder"
        );
        std::fs::create_dir(&state.0).unwrap();
        let find = || bandwidth_of("t".into(), dir.path(), &state, u64::MAX).unwrap();
        assert_eq!(find(), find());
        assert!(!tiers[0].root.exists(), "it makes no tier");
        let huge = [TierSpec {
            size: Some(1 << 60),
            ..tiers[0].clone()
        }];
        spec.tiers = &huge;
        assert!(matches!(
            cluster(&machine, &spec),
            Err(MachineError::NoSpace { .. })
        ));
    }
}
