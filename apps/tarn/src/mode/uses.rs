//! The users of a device: mounts, swap, devices made of it, programs, tarnd.

use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use tarn_client::Client;
use tarn_memory_modes::{DeviceUse, FileSystemMount, UseKind, mounts, swaps};

/// Programs that are named of one device: a person who ends them needs to see some, not all.
const MAX_NAMED: usize = 16;

/// All uses of these devices, as far as this user may see them: root sees all.
pub(super) fn find(devices: &BTreeSet<String>) -> Vec<DeviceUse> {
    if devices.is_empty() {
        return Vec::new();
    }
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mounted = mounts(&read("/proc/self/mountinfo"));
    let swapping = swaps(&read("/proc/swaps"));
    let spaces = dataspaces();
    let open = open_in(devices);
    let mut found = Vec::new();
    for device in devices {
        let before = found.len();
        let mut add = |kind| {
            found.push(DeviceUse {
                device: device.clone(),
                kind,
            });
        };
        let folder = Path::new("/sys/class/block").join(device);
        let parts = parts(device, &folder);
        let numbers: Vec<(u32, u32)> = parts.iter().filter_map(|(_, p)| numbers(p)).collect();
        let names: Vec<String> = parts.iter().map(|(n, _)| format!("/dev/{n}")).collect();
        let is_it = |m: &&FileSystemMount| numbers.contains(&m.device) || names.contains(&m.source);
        for mount in mounted.iter().filter(is_it) {
            for (name, root) in spaces
                .iter()
                .filter(|(_, root)| root.starts_with(&mount.at))
            {
                add(UseKind::Dataspace {
                    name: name.clone(),
                    at: root.display().to_string(),
                });
            }
            add(UseKind::Mounted {
                at: mount.at.clone(),
            });
        }
        for path in swapping.iter().filter(|p| names.contains(p)) {
            add(UseKind::Swap { path: path.clone() });
        }
        for (_, part) in &parts {
            for holder in fs::read_dir(part.join("holders"))
                .into_iter()
                .flatten()
                .flatten()
            {
                add(UseKind::Held {
                    by: holder.file_name().to_string_lossy().into_owned(),
                });
            }
        }
        for (process, program) in open.get(device.as_str()).into_iter().flatten() {
            add(UseKind::Open {
                process: *process,
                program: program.clone(),
            });
        }
        if found.len() == before && busy(&Path::new("/dev").join(device), &folder) {
            found.push(DeviceUse {
                device: device.clone(),
                kind: UseKind::Busy,
            });
        }
    }
    found
}

/// A block device and its partitions, by name, with their folders in sysfs; of others the name alone.
fn parts(device: &str, folder: &Path) -> Vec<(String, PathBuf)> {
    let mut parts = vec![(device.to_owned(), folder.to_owned())];
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            let name = entry.file_name().to_string_lossy().into_owned();
            parts.push((name, entry.path()));
        }
    }
    parts
}

fn numbers(folder: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Whether the kernel lets nobody have a block device alone: something uses it that the other signs do not show.
fn busy(device: &Path, folder: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    folder.join("dev").exists()
        && matches!(
            rustix::fs::open(device, flags, rustix::fs::Mode::empty()),
            Err(rustix::io::Errno::BUSY)
        )
}

/// Processes that have a device open or mapped.
fn open_in(devices: &BTreeSet<String>) -> BTreeMap<&str, Vec<(u32, String)>> {
    let mut found: BTreeMap<&str, Vec<(u32, String)>> = BTreeMap::new();
    let own = std::process::id();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process: Option<u32> = entry.file_name().to_str().and_then(|n| n.parse().ok());
        let Some(process) = process.filter(|p| *p != own) else {
            continue;
        };
        let mut paths: BTreeSet<PathBuf> = BTreeSet::new();
        for fd in fs::read_dir(entry.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            paths.extend(fs::read_link(fd.path()));
        }
        let maps = fs::read(entry.path().join("maps")).unwrap_or_default();
        for line in maps.split(|b| *b == b'\n') {
            if let Some(at) = line.windows(6).position(|w| w == b" /dev/") {
                paths.insert(PathBuf::from(OsStr::from_bytes(&line[at + 1..])));
            }
        }
        for device in devices {
            let named = found.get(device.as_str()).map_or(0, Vec::len);
            if named < MAX_NAMED && paths.contains(&Path::new("/dev").join(device)) {
                let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                let program = program.trim().to_owned();
                found.entry(device).or_default().push((process, program));
            }
        }
    }
    found
}

/// Dataspaces of the tarnd that `$TARN_SOCKET` names, with their folders. Others are seen as mounts and open devices.
fn dataspaces() -> Vec<(String, PathBuf)> {
    let socket = std::env::var_os(tarn_client::SOCKET);
    let client = socket.and_then(|path| Client::connect_running(Path::new(&path)).ok());
    let spaces = client.and_then(|client| client.spaces().ok());
    let all = spaces.unwrap_or_default().into_iter();
    all.map(|s| (s.name, PathBuf::from(OsString::from_vec(s.root.0))))
        .collect()
}
