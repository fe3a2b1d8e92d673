//! The plans of changes, and why they are refused, on synthetic machines.

use std::collections::BTreeSet;
use tarn_memory_modes::{
    CurrentMode, Dax, DaxMode, DestroyPermission, DeviceUse, Dram, GoalPart, Inventory, MemoryMode,
    ModeChangePlan, ModeChangeRequest, ModeChangeTarget, Module, Namespace, NamespaceMode, Numa,
    Region, Rule, Tool, ToolState, UseKind, check, island, plan,
};

const GIB: u64 = 1 << 30;
const MODULE: u64 = 126 * GIB;

/// Two sockets of two controllers of three channels, each with 32 GiB of DRAM and a module of 126 GiB.
fn machine(mode: MemoryMode) -> Inventory {
    let memory = MODULE / GIB * u64::from(mode.memory_share()) / 100 * GIB;
    let places = (0..2).flat_map(|s| (0..2).flat_map(move |i| (0..3).map(move |c| (s, i, c))));
    let places: Vec<(u16, u16, u16)> = places.collect();
    let module = |(socket, controller, channel): &(u16, u16, u16)| Module {
        id: format!("0x{socket}{controller}{channel}1"),
        socket: *socket,
        controller: *controller,
        channel: *channel,
        capacity: MODULE,
        memory: Some(memory),
        app_direct: Some(MODULE - memory),
        health: "Healthy".into(),
        ..Default::default()
    };
    let dram = |place: &(u16, u16, u16)| Dram {
        capacity: 32 * GIB,
        locator: String::new(),
        place: Some(*place),
    };
    let answered = |name| Tool {
        name,
        package: name,
        state: ToolState::Answered,
    };
    let region = |n: u64| Region {
        name: format!("region{n}"),
        size: 6 * (MODULE - memory),
        available: 6 * (MODULE - memory),
        set: Some(n),
        persistence: None,
        provider: Some("ACPI.NFIT".into()),
    };
    Inventory {
        modules: places.iter().map(module).collect(),
        dram: places.iter().map(dram).collect(),
        regions: if mode.persistent() {
            vec![region(0), region(1)]
        } else {
            Vec::new()
        },
        tools: vec![answered("ipmctl"), answered("ndctl"), answered("daxctl")],
        ..Default::default()
    }
}

fn namespace(number: u32, mode: &str, device: &str) -> Namespace {
    Namespace {
        name: format!("namespace{number}.0"),
        mode: mode.into(),
        size: 700 * GIB,
        device: Some(device.into()),
        region: Some(format!("region{number}")),
        provider: Some("ACPI.NFIT".into()),
        enabled: true,
    }
}

fn used(device: &str, kind: UseKind) -> DeviceUse {
    DeviceUse {
        device: device.into(),
        kind,
    }
}

fn ask(target: &str, destroy: &[&str]) -> ModeChangeRequest {
    let named = destroy.iter().filter(|n| **n != "idle");
    ModeChangeRequest {
        target: target.parse().unwrap(),
        device: None,
        destroy: DestroyPermission {
            idle: destroy.contains(&"idle"),
            named: named.map(|n| (*n).to_owned()).collect(),
        },
        accept: BTreeSet::new(),
        namespaces: None,
    }
}

fn lines(plan: &ModeChangePlan) -> Vec<String> {
    let commands = plan.commands.iter();
    commands
        .map(|c| format!("{} {}", c.program, c.args.join(" ")))
        .collect()
}

#[test]
fn an_empty_node_changes_by_a_goal_and_a_reboot() {
    let found = plan(&machine(MemoryMode::OneLevel), &ask("2lm", &[]));
    assert_eq!(found.refusals, Vec::<String>::new());
    assert_eq!(lines(&found), ["ipmctl create -f -goal MemoryMode=100"]);
    assert!(found.reboot && !found.done && found.seconds > 600);
    let after = found.after.unwrap();
    assert_eq!((after.memory, after.persistent), (12 * MODULE, 0));

    let found = plan(&machine(MemoryMode::TwoLevel), &ask("1lm", &[]));
    assert_eq!(
        lines(&found),
        ["ipmctl create -f -goal PersistentMemoryType=AppDirect"]
    );
    let after = found.after.unwrap();
    assert_eq!((after.memory, after.persistent), (384 * GIB, 12 * MODULE));

    let found = plan(&machine(MemoryMode::TwoLevel), &ask("mixed50", &[]));
    assert_eq!(
        lines(&found),
        ["ipmctl create -f -goal MemoryMode=50 PersistentMemoryType=AppDirect"]
    );
}

#[test]
fn what_is_there_already_is_left_alone() {
    for mode in [
        MemoryMode::OneLevel,
        MemoryMode::TwoLevel,
        MemoryMode::Mixed(50),
    ] {
        let found = plan(&machine(mode), &ask(&mode.to_string(), &["idle"]));
        assert!(
            found.done && found.commands.is_empty() && !found.reboot,
            "{found:?}"
        );
    }
}

#[test]
fn a_goal_that_waits_is_seen_and_is_not_made_twice() {
    let mut node = machine(MemoryMode::OneLevel);
    let part = |m: &Module| GoalPart {
        id: m.id.clone(),
        socket: Some(m.socket),
        memory: MODULE,
        app_direct: 0,
    };
    node.goal = node.modules.iter().map(part).collect();
    assert_eq!(node.pending(), Some(CurrentMode::Is(MemoryMode::TwoLevel)));
    let found = plan(&node, &ask("2lm", &[]));
    assert!(found.done && found.reboot && found.commands.is_empty());
    // Back again: the goal goes, and nothing is rebooted.
    let found = plan(&node, &ask("1lm", &[]));
    assert_eq!(lines(&found), ["ipmctl delete -goal"]);
    assert!(!found.reboot);
    // To another mode: the old goal goes first, as ipmctl wants it.
    let found = plan(&node, &ask("mixed25", &[]));
    assert_eq!(lines(&found)[0], "ipmctl delete -goal");
    assert_eq!(lines(&found).len(), 2);
    // A goal for one socket makes sockets differ.
    node.goal.truncate(6);
    assert_eq!(node.pending(), Some(CurrentMode::Uneven));
}

#[test]
fn data_is_destroyed_only_where_it_is_named_or_idle() {
    let mut node = machine(MemoryMode::OneLevel);
    node.namespaces = vec![
        namespace(0, "fsdax", "pmem0"),
        namespace(1, "fsdax", "pmem1"),
    ];
    let mounted = UseKind::Mounted {
        at: "/mnt/a b".into(),
    };
    node.uses = vec![used("pmem1", mounted)];

    let refused = plan(&node, &ask("2lm", &[])).refusals;
    assert_eq!(refused.len(), 2);
    assert!(refused[0].contains("--destroy namespace0.0"), "{refused:?}");
    let refused = plan(&node, &ask("2lm", &["idle"])).refusals;
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].contains("pmem1 is mounted at /mnt/a b"),
        "{refused:?}"
    );

    let found = plan(&node, &ask("2lm", &["idle", "namespace1.0"]));
    assert_eq!(found.refusals, Vec::<String>::new());
    assert_eq!(
        lines(&found),
        [
            "ndctl destroy-namespace --force namespace0.0",
            "umount /mnt/a b",
            "ndctl destroy-namespace --force namespace1.0",
            "ipmctl create -f -goal MemoryMode=100"
        ]
    );
    let lost: Vec<_> = found
        .destroys
        .iter()
        .map(|d| (d.name.as_str(), d.uses.len()))
        .collect();
    assert_eq!(lost, [("namespace0.0", 0), ("namespace1.0", 1)]);
    // By its device it is named too; a missing one may be gone since a first try.
    let found = plan(&node, &ask("2lm", &["idle", "pmem1", "pmem7"]));
    assert!(found.refusals.is_empty());
    assert!(
        found.notes.iter().any(|n| n.contains("`pmem7`")),
        "{found:?}"
    );
}

#[test]
fn each_kind_of_use_is_live() {
    let kinds = [
        UseKind::Swap {
            path: "/dev/pmem0p1".into(),
        },
        UseKind::Held { by: "dm-3".into() },
        UseKind::Open {
            process: 7,
            program: "tarnd".into(),
        },
        UseKind::Dataspace {
            name: "pmem".into(),
            at: "/mnt/p/tarn".into(),
        },
        UseKind::Busy,
    ];
    for kind in kinds {
        let mut node = machine(MemoryMode::OneLevel);
        node.namespaces = vec![namespace(0, "fsdax", "pmem0")];
        node.uses = vec![used("pmem0", kind.clone())];
        assert_eq!(
            plan(&node, &ask("2lm", &["idle"])).refusals.len(),
            1,
            "{kind:?}"
        );
        let named = plan(&node, &ask("2lm", &["pmem0"]));
        // A device that is made of it must be taken apart by its owner.
        let held = matches!(kind, UseKind::Held { .. });
        assert_eq!(named.refusals.len(), usize::from(held), "{kind:?}");
        let swap = matches!(kind, UseKind::Swap { .. });
        assert_eq!(lines(&named)[0] == "swapoff /dev/pmem0p1", swap);
    }
}

#[test]
fn namespaces_that_firmware_does_not_bring_stay() {
    let mut node = machine(MemoryMode::OneLevel);
    for provider in ["e820", "CXL"] {
        let mut other = namespace(5, "fsdax", "pmem5");
        other.provider = Some(provider.into());
        node.namespaces = vec![other];
        let found = plan(&node, &ask("2lm", &[]));
        assert!(
            found.refusals.is_empty() && found.destroys.is_empty(),
            "{found:?}"
        );
    }
}

#[test]
fn nothing_is_decided_without_the_tools() {
    for (state, expected) in [
        (ToolState::Missing, "install the package ndctl"),
        (
            ToolState::Failed {
                why: "it hangs".into(),
            },
            "it hangs",
        ),
    ] {
        let mut node = machine(MemoryMode::OneLevel);
        node.tools[1].state = state;
        let found = plan(&node, &ask("2lm", &["idle"]));
        assert!(found.refusals[0].contains(expected) && found.commands.is_empty());
    }
    let mut node = machine(MemoryMode::OneLevel);
    node.modules.clear();
    let found = plan(&node, &ask("2lm", &[]));
    assert!(found.refusals[0].contains("no persistent memory modules"));
}

#[test]
fn populations_are_judged() {
    let broken = |change: &dyn Fn(&mut Inventory), mode: MemoryMode| {
        let mut node = machine(MemoryMode::OneLevel);
        change(&mut node);
        let found = check(&node, mode).into_iter().filter(|f| f.refuses);
        found.map(|f| f.rule).collect::<BTreeSet<_>>()
    };
    let is = |rules: &[Rule]| rules.iter().copied().collect::<BTreeSet<_>>();
    let two = MemoryMode::TwoLevel;
    assert_eq!(broken(&|_| {}, two), is(&[]));
    assert_eq!(
        broken(&|n| n.modules[3].health = "Critical failure".into(), two),
        is(&[Rule::Health])
    );
    assert_eq!(
        broken(&|n| n.modules[3].locked = true, MemoryMode::OneLevel),
        is(&[Rule::Locked])
    );
    assert_eq!(
        broken(&|n| n.modules[3].capacity *= 2, MemoryMode::OneLevel),
        is(&[Rule::Same])
    );
    // DRAM of 8 GiB: 1:15.7, of 4 GiB: 1:31. Of 64 GiB: 1:1.9.
    let of =
        |gib: u64| move |n: &mut Inventory| n.dram.iter_mut().for_each(|d| d.capacity = gib * GIB);
    assert_eq!(broken(&of(8), two), is(&[]));
    assert_eq!(broken(&of(4), two), is(&[Rule::Ratio]));
    assert_eq!(broken(&of(64), two), is(&[Rule::Ratio]));
    assert_eq!(
        broken(&of(4), MemoryMode::OneLevel),
        is(&[]),
        "there is no cache in 1LM"
    );
    assert_eq!(
        broken(&of(4), MemoryMode::Mixed(50)),
        is(&[]),
        "half of the modules is 1:15.7"
    );
    // 2-2-1 and 2-1-1 are layouts; a controller without modules is none.
    let without = |channels: &'static [u16]| {
        move |n: &mut Inventory| n.modules.retain(|m| !channels.contains(&m.channel))
    };
    assert_eq!(broken(&without(&[2]), two), is(&[Rule::Ratio]), "1:2.6");
    assert_eq!(
        broken(
            &|n| {
                without(&[2])(n);
                of(16)(n)
            },
            two
        ),
        is(&[])
    );
    assert_eq!(
        broken(
            &|n| {
                without(&[1, 2])(n);
                of(8)(n)
            },
            two
        ),
        is(&[])
    );
    let lame = |n: &mut Inventory| n.modules.retain(|m| m.controller == 0);
    assert_eq!(
        broken(
            &|n| {
                lame(n);
                of(16)(n)
            },
            two
        ),
        is(&[Rule::Controllers, Rule::Layout])
    );
    assert_eq!(
        broken(&lame, MemoryMode::OneLevel),
        is(&[]),
        "App Direct needs no symmetry"
    );
    let twice = |n: &mut Inventory| n.modules[1].channel = 0;
    assert!(broken(&twice, MemoryMode::OneLevel).contains(&Rule::Layout));
}

#[test]
fn what_vendors_only_do_not_support_can_be_accepted() {
    let mut node = machine(MemoryMode::OneLevel);
    node.dram.iter_mut().for_each(|d| d.capacity = 64 * GIB);
    let refused = plan(&node, &ask("2lm", &[])).refusals;
    assert!(
        refused[0].contains("1:1.9") && refused[0].contains("--accept ratio"),
        "{refused:?}"
    );
    let mut accepting = ask("2lm", &[]);
    accepting.accept.insert(Rule::Ratio);
    let found = plan(&node, &accepting);
    assert!(found.refusals.is_empty() && found.notes.iter().any(|n| n.contains("1:1.9")));
    // A limit of firmware is no limit of vendor support.
    node.modules[0].locked = true;
    accepting.accept.insert(Rule::Locked);
    assert_eq!(plan(&node, &accepting).refusals.len(), 1);
}

#[test]
fn unknown_places_of_dram_are_told_and_refuse_nothing() {
    let mut node = machine(MemoryMode::OneLevel);
    node.dram[0].place = None;
    let found = check(&node, MemoryMode::TwoLevel);
    assert!(found.iter().all(|f| !f.refuses), "{found:?}");
    assert!(
        found
            .iter()
            .any(|f| f.text.contains("layout of DIMMs is not checked"))
    );
}

#[test]
fn empty_regions_get_namespaces_once_the_mode_is_there() {
    let mut node = machine(MemoryMode::OneLevel);
    node.namespaces = vec![namespace(0, "fsdax", "pmem0")];
    node.regions[0].available = 0;
    let mut asking = ask("1lm", &[]);
    asking.namespaces = Some(NamespaceMode::Fsdax);
    let found = plan(&node, &asking);
    assert_eq!(
        lines(&found),
        ["ndctl create-namespace --mode=fsdax --region region1"]
    );
    assert!(!found.reboot && found.refusals.is_empty());
    node.regions[1].available = 0;
    assert!(plan(&node, &asking).done);
}

fn cxl(mode: DaxMode) -> Inventory {
    let mut node = machine(MemoryMode::OneLevel);
    node.dax = vec![Dax {
        name: "dax9.0".into(),
        size: 64 * GIB,
        mode,
        numa: Some(2),
        online_blocks: Some(if mode == DaxMode::SystemRam { 8 } else { 0 }),
        movable: Some(true),
        path: None,
        enabled: true,
    }];
    let numa = |number, total, free| Numa {
        number,
        total: total * GIB,
        free: free * GIB,
        ..Default::default()
    };
    node.numa = vec![numa(0, 384, 100), numa(2, 64, 44)];
    node
}

#[test]
fn a_device_becomes_memory_and_a_device_again() {
    let node = cxl(DaxMode::Devdax);
    let refused = plan(&node, &ask("system-ram", &[])).refusals;
    assert!(refused[0].contains("--destroy dax9.0"), "{refused:?}");
    let found = plan(&node, &ask("system-ram", &["idle"]));
    assert_eq!(
        lines(&found),
        ["daxctl reconfigure-device --mode=system-ram dax9.0"]
    );
    assert!(!found.reboot && found.refusals.is_empty());

    let mut node = cxl(DaxMode::SystemRam);
    let found = plan(&node, &ask("devdax", &[]));
    assert_eq!(
        lines(&found),
        [
            "daxctl offline-memory dax9.0",
            "daxctl reconfigure-device --mode=devdax dax9.0"
        ]
    );
    assert!(found.refusals.is_empty() && found.destroys.is_empty());
    assert!(plan(&node, &ask("system-ram", &[])).done);
    // Pages need somewhere to go, and must be movable.
    node.numa[0].free = 19 * GIB;
    assert!(plan(&node, &ask("devdax", &[])).refusals[0].contains("do not fit"));
    node.numa[0].free = 100 * GIB;
    node.dax[0].movable = Some(false);
    assert!(plan(&node, &ask("devdax", &[])).refusals[0].contains("only a reboot"));
    // Killed between the two commands: the first is not needed again.
    node.dax[0].online_blocks = Some(0);
    let found = plan(&node, &ask("devdax", &[]));
    assert_eq!(
        lines(&found),
        ["daxctl reconfigure-device --mode=devdax dax9.0"]
    );
    let mut other = ask("devdax", &[]);
    other.device = Some("dax1.0".into());
    assert!(plan(&node, &other).refusals[0].contains("there are dax9.0"));
}

#[test]
fn modules_used_as_memory_by_daxctl_are_live() {
    let mut node = cxl(DaxMode::SystemRam);
    node.namespaces = vec![namespace(0, "devdax", "dax9.0")];
    let refused = plan(&node, &ask("2lm", &["idle"])).refusals;
    assert!(
        refused[0].contains("is memory of the system"),
        "{refused:?}"
    );
    let found = plan(&node, &ask("2lm", &["namespace0.0"]));
    assert_eq!(lines(&found)[0], "daxctl offline-memory dax9.0");
    assert!(lines(&found)[2].starts_with("ndctl destroy-namespace"));
}

/// Runs the commands of a plan on the inventory, as the tools would, up to one of them.
fn obey(node: &mut Inventory, plan: &ModeChangePlan, commands: usize) {
    for change in plan.commands.iter().take(commands) {
        let last = change.args.last().unwrap();
        match (change.program, change.args[0].as_str()) {
            ("umount", _) => node
                .uses
                .retain(|u| !matches!(&u.kind, UseKind::Mounted { at } if at == last)),
            ("ndctl", "destroy-namespace") => node.namespaces.retain(|n| n.name != *last),
            ("ipmctl", "delete") => node.goal.clear(),
            ("ipmctl", "create") => {
                assert!(
                    node.namespaces.is_empty() && node.goal.is_empty(),
                    "ipmctl refuses"
                );
                let share = change
                    .args
                    .iter()
                    .find_map(|a| a.strip_prefix("MemoryMode="));
                let memory = MODULE / GIB * share.map_or(0, |s| s.parse().unwrap()) / 100 * GIB;
                let part = |m: &Module| GoalPart {
                    id: m.id.clone(),
                    socket: Some(m.socket),
                    memory,
                    app_direct: MODULE - memory,
                };
                node.goal = node.modules.iter().map(part).collect();
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn killed_between_two_commands_it_goes_on() {
    let mut start = machine(MemoryMode::OneLevel);
    start.namespaces = vec![
        namespace(0, "fsdax", "pmem0"),
        namespace(1, "fsdax", "pmem1"),
    ];
    start.uses = vec![used("pmem1", UseKind::Mounted { at: "/p".into() })];
    start.goal = vec![GoalPart {
        id: "0x0001".into(),
        socket: Some(0),
        memory: 0,
        app_direct: MODULE,
    }];
    start.goal[0].memory = GIB;
    let mut asking = ask("mixed30", &["idle", "namespace1.0"]);
    asking.accept.insert(Rule::Ratio);
    let whole = plan(&start, &asking);
    assert_eq!(whole.commands.len(), 5, "{:?}", lines(&whole));
    for killed in 0..=whole.commands.len() {
        let mut node = start.clone();
        obey(&mut node, &whole, killed);
        let rest = plan(&node, &asking);
        assert!(
            rest.refusals.is_empty(),
            "after {killed}: {:?}",
            rest.refusals
        );
        obey(&mut node, &rest, usize::MAX);
        assert_eq!(
            node.pending(),
            Some(CurrentMode::Is(MemoryMode::Mixed(30))),
            "after {killed}"
        );
        assert!(plan(&node, &asking).done);
    }
}

#[test]
fn the_planner_of_a_site_is_told_of_it() {
    let read = |mode: MemoryMode| {
        let mut node = machine(mode);
        node.numa = vec![Numa {
            total: 380 * GIB,
            ..Default::default()
        }];
        let text = island(&node, "cn", 48);
        let machine = tarn_spec::site::parse_machine("played", &text);
        machine
            .unwrap_or_else(|e| panic!("{e:?}\n{text}"))
            .islands
            .remove(0)
            .kind
    };
    let one = read(MemoryMode::OneLevel);
    assert_eq!(
        (one.mode, one.tiers.len()),
        (tarn_types::site::Mode::OneLevel, 1)
    );
    assert!(one.tiers[0].app_direct && one.tiers[0].capacity == 12 * MODULE);
    assert_eq!(one.mode_change.unwrap().memory, 12 * MODULE);
    // In pure 2LM the tier is that after a reboot.
    let two = read(MemoryMode::TwoLevel);
    assert_eq!(two.mode, tarn_types::site::Mode::TwoLevel);
    assert!(two.tiers[0].app_direct && two.mode_change.unwrap().memory == 12 * MODULE);
    let mixed = read(MemoryMode::Mixed(50));
    assert!(!mixed.tiers[0].app_direct && mixed.mode_change.is_none());
    assert_eq!(mixed.tiers[0].capacity, 12 * (MODULE - 63 * GIB));

    let target: ModeChangeTarget = "2lm".parse().unwrap();
    assert_eq!(target, ModeChangeTarget::Modules(MemoryMode::TwoLevel));
}
