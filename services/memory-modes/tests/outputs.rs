//! Real output of tools is understood: the texts are in `fixtures`, their origins in its README.

use tarn_memory_modes::{
    CurrentMode, DaxMode, Garbled, Inventory, MemoryMode, cxl, daxctl, dimms, goal, ndctl,
    platform, resources, topology,
};

const GIB: u64 = 1 << 30;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("fixtures/", $name))
    };
}

#[test]
fn modules_are_read_from_xml_and_lists() {
    let few = dimms(fixture!("ipmctl-dimm.xml")).unwrap();
    let places: Vec<_> = few
        .iter()
        .map(|m| (m.socket, m.controller, m.channel))
        .collect();
    assert_eq!(places, [(0, 0, 0), (0, 1, 0), (1, 0, 0)]);
    assert_eq!(few[0].part, "NMA1XXD512GQS");
    assert_eq!(few[0].memory, None, "nobody asked for it");

    let all = dimms(fixture!("ipmctl-dimm-a.txt")).unwrap();
    let [module] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(
        (module.memory, module.app_direct),
        (Some(0), Some(252 * GIB))
    );
    assert_eq!(module.violation, None);
    assert!(!module.locked);
}

#[test]
fn dram_is_found_beside_modules_or_where_firmware_says() {
    let table = topology(fixture!("ipmctl-topology.txt"), &[]).unwrap();
    assert_eq!(table.len(), 12);
    assert!(table.iter().all(|d| d.capacity == 32 * GIB));
    assert_eq!(table[0].place, Some((0, 0, 0)));
    assert_eq!(table[11].place, Some((1, 1, 2)), "{}", table[11].locator);
    let nested = topology(fixture!("ipmctl-topology-2.xml"), &[]).unwrap();
    let places: Vec<_> = nested.iter().map(|d| d.place).collect();
    assert_eq!(places, [Some((1, 1, 2))]);
}

#[test]
fn capacities_show_the_mode() {
    let mode = |text: &str| {
        let inventory = Inventory {
            resources: resources(text).unwrap(),
            ..Default::default()
        };
        inventory.present()
    };
    let of = |text| mode(text).to_string();
    assert_eq!(of(fixture!("ipmctl-memoryresources-1lm.txt")), "1lm");
    assert_eq!(of(fixture!("ipmctl-memoryresources-2lm.txt")), "2lm");
    assert_eq!(of(fixture!("ipmctl-memoryresources-v1.txt")), "2lm");
    assert_eq!(mode(""), CurrentMode::Dram);
    let capacities = resources(fixture!("ipmctl-memoryresources-2lm.txt"))
        .unwrap()
        .unwrap();
    assert_eq!(
        (capacities.cache, capacities.dram, capacities.memory),
        (512 * GIB, 512 * GIB, 2024 * GIB)
    );
}

#[test]
fn goals_and_capabilities_are_read() {
    let parts = goal(fixture!("ipmctl-goal.xml")).unwrap();
    let inventory = Inventory {
        goal: parts,
        ..Default::default()
    };
    assert_eq!(
        inventory.pending(),
        Some(CurrentMode::Is(MemoryMode::Mixed(90)))
    );
    let offers = platform(fixture!("ipmctl-capabilities.txt"))
        .unwrap()
        .unwrap();
    for mode in [
        MemoryMode::OneLevel,
        MemoryMode::TwoLevel,
        MemoryMode::Mixed(50),
    ] {
        assert_eq!(offers.allows(mode), Ok(()));
    }
    let only = offers_with("AllowedVolatileMode=1LM\nAllowedAppDirectMode=App Direct\n");
    assert!(
        only.allows(MemoryMode::TwoLevel).is_err() && only.allows(MemoryMode::OneLevel).is_ok()
    );
    let none = offers_with("AllowedVolatileMode=Memory Mode\nAllowedAppDirectMode=Disabled\n");
    assert!(
        none.allows(MemoryMode::TwoLevel).is_ok() && none.allows(MemoryMode::Mixed(5)).is_err()
    );
}

fn offers_with(text: &str) -> tarn_memory_modes::Platform {
    platform(text).unwrap().unwrap()
}

#[test]
fn regions_have_one_identifier_whatever_its_sign() {
    let all = ndctl(fixture!("ndctl-regions.json")).unwrap();
    let sets: Vec<_> = all.regions.iter().map(|r| r.set).collect();
    assert_eq!(
        sets,
        [
            Some(15_940_630_830_656_007_372),
            Some(3_259_620_181_632_232_652)
        ]
    );
    assert!(all.namespaces.is_empty());
}

#[test]
fn namespaces_know_their_region_and_who_brings_them() {
    let all = ndctl(fixture!("ndctl-namespaces.json")).unwrap();
    let [namespace] = all.namespaces.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(namespace.device.as_deref(), Some("pmem0"));
    assert_eq!(namespace.region.as_deref(), Some("region0"));
    assert!(namespace.on_modules() && namespace.enabled);

    let all = ndctl(fixture!("ndctl-buses.json")).unwrap();
    let names: Vec<_> = all.namespaces.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["namespace0.0", "namespace1.0"], "no seed");
    let [first, second] = all.namespaces.as_slice() else {
        panic!("{all:?}");
    };
    assert!(first.on_modules() && !first.enabled);
    assert!(first.size > 799_000_000_000, "{}", first.size);
    assert!(!second.on_modules(), "the command line brings it");
    assert_eq!(second.region.as_deref(), Some("region1"));
}

#[test]
fn dax_and_cxl_devices_are_read() {
    let all = daxctl(fixture!("daxctl-system-ram.json")).unwrap();
    assert_eq!(all[0].mode, DaxMode::SystemRam);
    assert_eq!(
        (all[0].movable, all[0].online_blocks),
        (Some(false), Some(256))
    );
    let all = daxctl(fixture!("daxctl-devdax.json")).unwrap();
    assert_eq!(
        (all[0].name.as_str(), all[0].mode),
        ("dax0.1", DaxMode::Devdax)
    );
    let all = cxl(fixture!("cxl-list.json")).unwrap();
    let [device] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(
        (device.name.as_str(), device.ram, device.pmem),
        ("mem0", GIB, 0)
    );
}

#[test]
fn that_there_is_nothing_is_no_error() {
    for text in [
        "",
        "\n",
        "No PMem modules in the system.",
        "Initialization failed. No PMem modules in the system",
        "No DIMMs detected in the system.",
        "There are no goal configs defined in the system.\nPlease use 'show -region' to display currently valid persistent memory regions.",
    ] {
        assert_eq!(dimms(text), Ok(Vec::new()), "{text}");
        assert_eq!(goal(text), Ok(Vec::new()), "{text}");
    }
    for text in ["", "[\n]\n", "{}", "[]"] {
        assert_eq!(ndctl(text), Ok(Default::default()));
        assert_eq!(daxctl(text), Ok(Vec::new()));
        assert_eq!(cxl(text), Ok(Vec::new()));
    }
}

#[test]
fn what_is_not_understood_is_an_error_that_says_so() {
    let rights = "The ipmctl command you have attempted to execute requires root privileges.";
    assert_eq!(dimms(rights), Err(Garbled::Rights { tool: "ipmctl" }));
    for text in [
        "Segmentation fault",
        "<DimmList><Dimm>",
        "<?xml version=\"9\"?><a/",
    ] {
        let why = dimms(text).unwrap_err().to_string();
        assert!(
            why.contains("the output of ipmctl is not in a format that tarn knows"),
            "{why}"
        );
    }
    for text in ["{\"dev\":\"foo", "nd: command not found"] {
        assert!(
            ndctl(text)
                .unwrap_err()
                .to_string()
                .contains("the output of ndctl")
        );
        assert!(daxctl(text).is_err() && cxl(text).is_err());
    }
    let many = format!("[{}{{}}]", "{},".repeat(tarn_memory_modes::MAX_THINGS));
    assert_eq!(ndctl(&many), Err(Garbled::TooMuch { tool: "ndctl" }));
    let many = "---DimmID=1---\n".repeat(tarn_memory_modes::MAX_THINGS + 2);
    assert_eq!(dimms(&many), Err(Garbled::TooMuch { tool: "ipmctl" }));
}
