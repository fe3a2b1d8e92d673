//! The output of other programs and of the kernel.

use crate::{owned, text};

pub(crate) fn ipmctl(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(modules) = tarn_memory_modes::dimms(text) {
        let _ = tarn_memory_modes::topology(text, &modules);
    }
    let _ = tarn_memory_modes::resources(text);
    let _ = tarn_memory_modes::platform(text);
    let _ = tarn_memory_modes::goal(text);
}

pub(crate) fn ipmctl_seeds() -> Vec<Vec<u8>> {
    owned(&[
        include_str!("../../../services/memory-modes/tests/fixtures/ipmctl-dimm.xml"),
        include_str!("../../../services/memory-modes/tests/fixtures/ipmctl-goal.xml"),
        include_str!("../../../services/memory-modes/tests/fixtures/ipmctl-topology.txt"),
        include_str!(
            "../../../services/memory-modes/tests/fixtures/ipmctl-memoryresources-1lm.txt"
        ),
        include_str!("../../../services/memory-modes/tests/fixtures/ipmctl-capabilities.txt"),
    ])
}

pub(crate) fn ndctl(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let _ = tarn_memory_modes::ndctl(text);
    let _ = tarn_memory_modes::daxctl(text);
    let _ = tarn_memory_modes::cxl(text);
}

pub(crate) fn ndctl_seeds() -> Vec<Vec<u8>> {
    owned(&[
        include_str!("../../../services/memory-modes/tests/fixtures/ndctl-namespaces.json"),
        include_str!("../../../services/memory-modes/tests/fixtures/ndctl-regions.json"),
        include_str!("../../../services/memory-modes/tests/fixtures/daxctl-devdax.json"),
        include_str!("../../../services/memory-modes/tests/fixtures/cxl-list.json"),
    ])
}

pub(crate) fn kernel(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let _ = tarn_memory_modes::numa_memory(text);
    let _ = tarn_memory_modes::mounts(text);
    let _ = tarn_memory_modes::swaps(text);
}

pub(crate) fn kernel_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "Node 0 MemTotal:       24659996 kB\nNode 0 MemFree:        1 kB\n",
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n",
        "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 -2\n",
    ])
}
