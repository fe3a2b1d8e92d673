//! Asks the tools that are there, and the kernel.

use super::tool::{self, QUESTION, ToolError};
use super::uses;
use std::fs;
use std::path::Path;
use tarn_memory_modes::{Garbled, Inventory, Numa, Tool, ToolState, numa_memory};

/// NUMA nodes of the kernel.
const NODES: &str = "/sys/devices/system/node";

/// All known properties of this node's memory. A tool that gives no answer is noted, and the others are called all the same.
pub(super) fn inventory() -> Inventory {
    let mut found = Inventory {
        numa: numa(Path::new(NODES)),
        ..Default::default()
    };
    let state = ipmctl(&mut found);
    found.tools.push(answer("ipmctl", "ipmctl", state));
    let state = question("ndctl", &["list", "-BDRNi"], tarn_memory_modes::ndctl).map(|all| {
        found.regions = all.regions;
        found.namespaces = all.namespaces;
    });
    found.tools.push(answer("ndctl", "ndctl", state));
    let state = question("daxctl", &["list", "-RDi"], tarn_memory_modes::daxctl);
    let state = state.map(|all| found.dax = all);
    found.tools.push(answer("daxctl", "daxctl", state));
    let state = question("cxl", &["list", "-MRi"], tarn_memory_modes::cxl);
    let state = state.map(|all| found.cxl = all);
    found.tools.push(answer("cxl", "cxl", state));
    found.uses = uses::find(&found.devices());
    found
}

fn answer(name: &'static str, package: &'static str, state: Result<(), ToolState>) -> Tool {
    Tool {
        name,
        package,
        state: state.err().unwrap_or(ToolState::Answered),
    }
}

fn failed(why: impl ToString) -> ToolState {
    ToolState::Failed {
        why: why.to_string(),
    }
}

/// A query, and its parsed answer. A tool may fail to say that there is nothing.
fn question<T>(
    program: &str,
    args: &[&str],
    meaning: impl Fn(&str) -> Result<T, Garbled>,
) -> Result<T, ToolState> {
    let output = tool::run(program, args, QUESTION).map_err(|e| match e {
        ToolError::Missing => ToolState::Missing,
        other => failed(other),
    })?;
    let quiet = output.out.trim().is_empty();
    if !output.success && quiet && output.err.trim().is_empty() {
        return Err(failed("it fails without a reason"));
    }
    let text = if quiet && !output.success {
        &output.err
    } else {
        &output.out
    };
    meaning(text).map_err(|e| {
        if output.success {
            failed(e)
        } else {
            failed(format!("{e}: {}", output.complaint()))
        }
    })
}

fn ipmctl(found: &mut Inventory) -> Result<(), ToolState> {
    let xml = |what: &'static str| ["show", "-a", "-u", "B", "-o", "nvmxml", what];
    found.modules = question("ipmctl", &xml("-dimm"), tarn_memory_modes::dimms)?;
    if found.modules.is_empty() {
        return Ok(());
    }
    let modules = std::mem::take(&mut found.modules);
    let dram = question("ipmctl", &xml("-topology"), |text| {
        tarn_memory_modes::topology(text, &modules)
    });
    found.modules = modules;
    // A value that an old version does not give is not checked; the values that prevent a wrong change are required.
    found.dram = dram.unwrap_or_default();
    let words = ["show", "-u", "B", "-o", "nvmxml", "-memoryresources"];
    found.resources = question("ipmctl", &words, tarn_memory_modes::resources).unwrap_or_default();
    let words = ["show", "-a", "-o", "nvmxml", "-system", "-capabilities"];
    found.platform = question("ipmctl", &words, tarn_memory_modes::platform).unwrap_or_default();
    let words = ["show", "-u", "B", "-o", "nvmxml", "-goal"];
    found.goal = question("ipmctl", &words, tarn_memory_modes::goal)?;
    Ok(())
}

fn numa(folder: &Path) -> Vec<Numa> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let mut found: Vec<Numa> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path
                .file_name()?
                .to_str()?
                .strip_prefix("node")?
                .parse()
                .ok()?;
            let (total, free) = numa_memory(&read(&path.join("meminfo")));
            let caches = fs::read_dir(path.join("memory_side_cache"))
                .into_iter()
                .flatten();
            let cache = caches.filter_map(|c| {
                read(&c.ok()?.path().join("size"))
                    .trim()
                    .parse::<u64>()
                    .ok()
            });
            Some(Numa {
                number,
                total,
                free,
                processors: !read(&path.join("cpulist")).trim().is_empty(),
                cache: cache.fold(0, u64::saturating_add),
            })
        })
        .collect();
    found.sort_by_key(|n| n.number);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numa_nodes_are_read_from_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "node0/meminfo",
            "Node 0 MemTotal: 4 kB\nNode 0 MemFree: 1 kB\n",
        );
        write("node0/cpulist", "0-3\n");
        write("node0/memory_side_cache/index1/size", "2048\n");
        write("node2/meminfo", "garbage");
        write("node2/cpulist", "\n");
        write("possible", "0-2\n");
        let all = numa(dir.path());
        let [first, second] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!((first.total, first.free, first.cache), (4096, 1024, 2048));
        assert!(first.processors && !second.processors);
        assert_eq!((second.number, second.total), (2, 0));
        assert!(numa(&dir.path().join("none")).is_empty());
    }
}
