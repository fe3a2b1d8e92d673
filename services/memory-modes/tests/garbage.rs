//! No output of a tool, and no machine that one may describe, ends in a panic.

use proptest::prelude::*;
use std::collections::BTreeSet;
use tarn_memory_modes::{
    DestroyPermission, Inventory, MemoryMode, ModeChangeRequest, ModeChangeTarget, Tool, ToolState,
    cxl, daxctl, dimms, goal, island, mounts, ndctl, numa_memory, parse_capacity, plan, platform,
    resources, swaps, topology,
};

const GENUINE: &[&str] = &[
    include_str!("fixtures/ipmctl-dimm-a.txt"),
    include_str!("fixtures/ipmctl-dimm.xml"),
    include_str!("fixtures/ipmctl-topology.txt"),
    include_str!("fixtures/ipmctl-topology-2.xml"),
    include_str!("fixtures/ipmctl-memoryresources-1lm.txt"),
    include_str!("fixtures/ipmctl-goal.xml"),
    include_str!("fixtures/ndctl-buses.json"),
    include_str!("fixtures/daxctl-system-ram.json"),
    include_str!("fixtures/cxl-list.json"),
];

/// Gives a text to every reader, and the result to all functions that use it.
fn read(text: &str) {
    let modules = dimms(text).unwrap_or_default();
    let all = ndctl(text).unwrap_or_default();
    let names = ["ipmctl", "ndctl", "daxctl"];
    let inventory = Inventory {
        dram: topology(text, &modules).unwrap_or_default(),
        modules,
        resources: resources(text).unwrap_or_default(),
        platform: platform(text).unwrap_or_default(),
        goal: goal(text).unwrap_or_default(),
        regions: all.regions,
        namespaces: all.namespaces,
        dax: daxctl(text).unwrap_or_default(),
        cxl: cxl(text).unwrap_or_default(),
        tools: names
            .map(|name| Tool {
                name,
                package: name,
                state: ToolState::Answered,
            })
            .into(),
        ..Default::default()
    };
    for target in ["1lm", "2lm", "mixed50", "devdax", "system-ram"] {
        let target: ModeChangeTarget = target.parse().unwrap();
        let ask = ModeChangeRequest {
            target,
            device: None,
            destroy: DestroyPermission {
                idle: true,
                named: BTreeSet::new(),
            },
            accept: BTreeSet::new(),
            namespaces: None,
        };
        let plan = plan(&inventory, &ask);
        assert!(!plan.done || plan.commands.is_empty());
    }
    let _ = (island(&inventory, "node", 1), inventory.persistent_bytes());
    let _ = (
        mounts(text),
        swaps(text),
        numa_memory(text),
        parse_capacity(text),
    );
    let _ = text.parse::<MemoryMode>();
}

proptest! {
    #[test]
    fn any_text_is_read(text in "\\PC{0,200}") {
        read(&text);
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_damaged_output_is_read(
        which in 0..GENUINE.len(),
        cut in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        with in "[\\PC<>{}\\[\\]|=0-9x-]{0,8}",
    ) {
        let mut chars: Vec<char> = GENUINE[which].chars().collect();
        let place = at.index(chars.len());
        chars.splice(place..(place + with.chars().count()).min(chars.len()), with.chars());
        chars.truncate(cut.index(chars.len()) + 1);
        read(&chars.into_iter().collect::<String>());
    }

    #[test]
    fn any_numbers_make_a_machine(
        socket in any::<u16>(), memory in any::<u64>(), store in any::<u64>(), capacity in any::<u64>(),
    ) {
        let xml = format!(
            "<L><Dimm><DimmID>{socket}</DimmID><Capacity>{capacity} B</Capacity><SocketID>{socket}</SocketID>\
            <MemoryCapacity>{memory} B</MemoryCapacity><AppDirectCapacity>{store} B</AppDirectCapacity></Dimm>\
            <Dimm><DimmID>1</DimmID><Capacity>{capacity} B</Capacity><MemoryType>DDR4</MemoryType>\
            <SocketID>{socket}</SocketID><MemControllerID>0</MemControllerID><ChannelID>1</ChannelID></Dimm></L>"
        );
        read(&xml);
    }
}

#[test]
fn deep_nesting_ends() {
    for text in [
        "[".repeat(100_000),
        "{\"a\":".repeat(100_000),
        "<a>".repeat(20_000),
    ] {
        read(&text);
    }
    let deep = format!("{}{}", "<a><b>1</b>".repeat(2000), "</a>".repeat(2000));
    read(&deep);
}
