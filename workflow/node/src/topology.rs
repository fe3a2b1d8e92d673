//! Which processor sockets this machine has, and which of them a tier is on.

use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tarn_types::cluster::Socket;

/// Variables that make hwloc report another machine.
const PRETENDING: [&str; 2] = ["HWLOC_SYNTHETIC", "HWLOC_XMLFILE"];
/// Devices made of devices are followed so far down.
const MAX_LAYERS: u32 = 8;

/// Why the sockets of this machine are not known.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// libhwloc gives no answer.
    #[error(transparent)]
    Hwloc(#[from] tarn_sys::hwloc::HwlocError),
    /// The output of libhwloc cannot be read.
    #[error("the output of libhwloc is not XML: {0}")]
    Xml(#[from] roxmltree::Error),
    /// The kernel does not report which processors there are for this process.
    #[error(
        "the kernel does not report which processors may be used ({0}; more than {max} are not divided)",
        max = CpuSet::MAX_CPU
    )]
    Processors(rustix::io::Errno),
}

/// The sockets of this machine with the processors that this process may use, if there are several of them. If all memory is one
/// NUMA node, only that is looked at.
///
/// # Errors
/// Why they are not known; a sentence.
pub fn sockets() -> Result<Vec<Socket>, TopologyError> {
    let pretended = PRETENDING
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    let online = std::fs::read_to_string("/sys/devices/system/node/online").ok();
    if !pretended && online.is_none_or(|o| o.trim().parse::<u32>().is_ok()) {
        return Ok(Vec::new());
    }
    let xml = tarn_sys::hwloc::topology()?;
    of_xml(&xml, &allowed()?)
}

/// Processors that this thread may run on.
pub(crate) fn allowed() -> Result<BTreeSet<u32>, TopologyError> {
    let set = sched_getaffinity(None).map_err(TopologyError::Processors)?;
    Ok((0..CpuSet::MAX_CPU as u32)
        .filter(|cpu| set.is_set(*cpu as usize))
        .collect())
}

/// Those of hwloc's XML of which some processors are allowed; none if it is only one.
fn of_xml(xml: &str, allowed: &BTreeSet<u32>) -> Result<Vec<Socket>, TopologyError> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let document = roxmltree::Document::parse_with_options(xml, options)?;
    let objects = document.descendants();
    let packages = objects.filter(|o| o.attribute("type") == Some("Package"));
    let sockets = packages.map(|package| {
        let number = |o: &roxmltree::Node<'_, '_>, name| o.attribute(name)?.parse().ok();
        let of = |kind| {
            package
                .descendants()
                .filter(move |o| o.attribute("type") == Some(kind))
        };
        let index = |o: roxmltree::Node<'_, '_>| number(&o, "os_index");
        let numbers = |kind| {
            of(kind)
                .filter_map(index)
                .filter_map(|n: u64| n.try_into().ok())
        };
        Socket {
            number: package
                .attribute("os_index")
                .and_then(|n| n.parse().ok())
                .unwrap_or(0),
            cpus: numbers("PU").filter(|cpu| allowed.contains(cpu)).collect(),
            numa: numbers("NUMANode").collect(),
            memory: of("NUMANode")
                .filter_map(|o| number(&o, "local_memory"))
                .sum(),
            tiers: Vec::new(),
        }
    });
    let usable: Vec<Socket> = sockets.filter(|s| !s.cpus.is_empty()).collect();
    Ok(match usable.len() {
        0 | 1 => Vec::new(),
        _ => usable,
    })
}

/// The position of the socket that a folder is on, if it is on one.
pub(crate) fn socket_of(folder: &Path, sockets: &[Socket]) -> Option<usize> {
    if sockets.is_empty() {
        return None;
    }
    let numa = numa_of(folder)?;
    sockets.iter().position(|s| s.numa.contains(&numa))
}

/// The NUMA node of what a folder is stored in: the device's, or the one that its memory is bound to.
fn numa_of(folder: &Path) -> Option<u32> {
    let device = std::fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    match major {
        0 => of_mount(
            &std::fs::read_to_string("/proc/self/mountinfo").ok()?,
            minor,
        ),
        _ => of_device(
            &Path::new("/sys/dev/block").join(format!("{major}:{minor}")),
            MAX_LAYERS,
        ),
    }
}

/// Of the tmpfs with this device number: the node that its `mpol` names, if it is one.
fn of_mount(mountinfo: &str, minor: u32) -> Option<u32> {
    let device = format!("0:{minor}");
    let line = mountinfo
        .lines()
        .find(|l| l.split(' ').nth(2) == Some(&device))?;
    let (_, after) = line.split_once(" - ")?;
    let policy = after.strip_prefix("tmpfs ")?.split_once(",mpol=")?.1;
    let (name, nodes) = policy.split_once(':')?;
    let binding = ["bind", "prefer"].contains(&name.split('=').next()?);
    let end = nodes.find(|c: char| !c.is_ascii_digit() && !matches!(c, ',' | '-'));
    let nodes = nodes[..end.unwrap_or(nodes.len())].trim_end_matches(',');
    nodes.parse().ok().filter(|_| binding)
}

/// Of a block device in sysfs: its own or that of what it hangs on; of one made of others (LVM, RAID) theirs, if it is one.
fn of_device(device: &Path, layers: u32) -> Option<u32> {
    let real = device.canonicalize().ok()?;
    let node = |folder: &Path| -> Option<u32> {
        let text = std::fs::read_to_string(folder.join("numa_node")).ok()?;
        text.trim().parse().ok()
    };
    if let Some(found) = real.ancestors().find_map(node) {
        return Some(found);
    }
    let below = std::fs::read_dir(real.join("slaves")).ok()?;
    let layers = layers.checked_sub(1)?;
    let nodes = below.map(|e| of_device(&e.ok()?.path(), layers));
    let nodes: BTreeSet<Option<u32>> = nodes.collect();
    match nodes.len() {
        1 => nodes.into_iter().next()?,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Two sockets with two cores of two threads each, numbered as Linux does: the second threads come last.
    const TWO: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" os_index="0">
<object type="Package" os_index="0"><object type="NUMANode" os_index="0" local_memory="1000"/>
<object type="Core"><object type="PU" os_index="0"/><object type="PU" os_index="4"/></object>
<object type="Core"><object type="PU" os_index="1"/><object type="PU" os_index="5"/></object></object>
<object type="Package" os_index="1"><object type="NUMANode" os_index="1" local_memory="2000"/>
<object type="NUMANode" os_index="2" local_memory="30000"/>
<object type="Core"><object type="PU" os_index="2"/><object type="PU" os_index="6"/></object>
<object type="Core"><object type="PU" os_index="3"/><object type="PU" os_index="7"/></object></object>
</object></topology>"#;

    #[test]
    fn sockets_have_what_may_be_used_of_them() {
        let of = |cpus: &[u32]| of_xml(TWO, &cpus.iter().copied().collect()).unwrap();
        let all = of(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let cpus: Vec<&[u32]> = all.iter().map(|s| &s.cpus[..]).collect();
        assert_eq!(
            cpus,
            [[0, 4, 1, 5], [2, 6, 3, 7]],
            "threads of a core side by side"
        );
        // The second has persistent memory as memory beside its DRAM.
        assert_eq!((all[0].memory, &all[0].numa[..]), (1000, &[0][..]));
        assert_eq!((all[1].memory, &all[1].numa[..]), (32000, &[1, 2][..]));
        let uneven = of(&[1, 2, 3, 5, 99]);
        assert_eq!(
            (&uneven[0].cpus[..], &uneven[1].cpus[..]),
            (&[1, 5][..], &[2, 3][..])
        );
        assert!(of(&[2, 3, 7]).is_empty(), "of one socket only");
        assert!(of(&[]).is_empty() && of_xml("<topology", &BTreeSet::new()).is_err());
    }

    #[test]
    fn memory_lies_where_its_mount_says() {
        let info =
            |options: &str| format!("36 29 0:31 / /x rw - tmpfs tmpfs rw,size=9k{options}\n");
        for (options, node) in [
            (",mpol=bind:1", Some(1)),
            (",mpol=prefer=static:12,noswap", Some(12)),
            (",mpol=bind:0-1", None),
            (",mpol=bind:0,2", None),
            (",mpol=interleave:1", None),
            (",mpol=local", None),
            ("", None),
        ] {
            assert_eq!(of_mount(&info(options), 31), node, "{options}");
            assert_eq!(of_mount(&info(options), 3), None);
        }
        let disk = "36 29 0:31 / /x rw - btrfs /dev/a,mpol=bind:1 rw,mpol=bind:1\n";
        assert_eq!(of_mount(disk, 31), None);
    }

    #[test]
    fn devices_lie_where_their_bus_is() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path().canonicalize().unwrap();
        let make = |path: &str, node: Option<&str>| {
            let folder = sys.join(path);
            fs::create_dir_all(&folder).unwrap();
            if let Some(node) = node {
                fs::write(folder.join("numa_node"), format!("{node}\n")).unwrap();
            }
            folder
        };
        // Namespaces of persistent memory know their node, disks the bus that they hang on; -1 is none.
        make("pci0/nvme0", Some("1"));
        let partition = make("pci0/nvme0/nvme0n1/p1", None);
        let pmem = make("ndbus0/region0/namespace0.0", Some("0")).join("block/pmem0");
        fs::create_dir_all(&pmem).unwrap();
        let nowhere = make("virtual/vda", Some("-1"));
        let over = |name: &str, parts: &[&Path]| {
            let folder = make(&format!("virtual/{name}/slaves"), None);
            for (n, part) in parts.iter().enumerate() {
                symlink(part, folder.join(n.to_string())).unwrap();
            }
            sys.join("virtual").join(name)
        };
        let same = over("dm-0", &[&partition, &sys.join("pci0/nvme0/nvme0n1")]);
        let both = over("dm-1", &[&partition, &pmem]);
        let deep = over("dm-2", &[&same]);
        let found = [&partition, &pmem, &nowhere, &same, &both, &deep];
        let found = found.map(|d| of_device(d, MAX_LAYERS));
        assert_eq!(found, [Some(1), Some(0), None, Some(1), None, Some(1)]);
        let own = over("dm-3", &[]);
        symlink(&own, own.join("slaves/itself")).unwrap();
        assert_eq!(of_device(&own, MAX_LAYERS), None, "it ends");
    }
}
