//! Reading `cluster.toml`.

use crate::diag::{Finding, FindingCode, Findings, SpecError, quoted};
use crate::namerule::{NameRule, TIER_NAME};
use crate::section::{Located, Section, place, value_of};
use crate::site::document::read_document;
use crate::site::values::{NAME, NumberedTable, unique};
use tarn_types::bounds;
use tarn_types::site::{
    Island, Machine, Mode, ModeChange, NodeKind, NodePowerModel, Rates, Store, TierKind,
};
use toml::de::DeTable;

/// Islands of one machine: a site has some kinds of node.
const MAX_ISLANDS: usize = 1000;
/// Cores, sockets or GPUs of one node.
const MAX_PER_NODE: u32 = 65_536;
/// Transfers at once with which a file may let a store saturate.
const MAX_SATURATES: u32 = 1_000_000;
/// Memory of a node for which the file has no value: more than any job requests.
const UNLIMITED_MEMORY: u64 = 1 << 60;
/// Air at the inlet without a value in the file: ASHRAE's recommended range is around it.
const USUAL_TEMPERATURE: f64 = 20.0;
/// Degrees Celsius below which nothing is.
const ABSOLUTE_ZERO: f64 = -273.15;

const TOP_KEYS: &[&str] = &["name", "external", "island"];
const EXTERNAL_KEYS: &[&str] = &["read", "write", "client-read", "client-write", "saturates"];
const ISLAND_KEYS: &[&str] = &[
    "name",
    "nodes",
    "sockets",
    "cores",
    "memory",
    "gpus",
    "mode",
    "mode-change",
    "link",
    "power",
    "temperature",
    "tier",
];
const TIER_KEYS: &[&str] = &["name", "capacity", "read", "write", "app-direct"];

/// Words for memory modes.
pub(crate) const MODES: &[(&str, Mode)] = &[("1lm", Mode::OneLevel), ("2lm", Mode::TwoLevel)];
const WATTS: &[(&str, f64)] = &[("kW", 1000.0), ("W", 1.0)];
const CELSIUS: &[(&str, f64)] = &[("C", 1.0)];

/// Reads and checks the text of a cluster file (docs/reference/cluster-file.md). `name` is the file's name in
/// messages.
///
/// # Errors
/// All that is wrong with it.
///
/// # Examples
/// ```
/// use tarn_spec::site::parse_machine;
///
/// let text = "[external]\nclient-read = '1 GB/s'\nclient-write = '1 GB/s'\n[[island]]\nnodes = 8\ncores = 4\n";
/// let machine = parse_machine("cluster.toml", text)?;
/// assert_eq!(machine.nodes(), 8);
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn parse_machine(name: &str, text: &str) -> Result<Machine, SpecError> {
    read_document(name, text, machine)
}

fn machine(out: &mut Findings, table: &DeTable<'_>) -> Option<Machine> {
    let noun = "the file's top level";
    let top = Section::new(out, table, (0, 0).into(), "the cluster", noun, TOP_KEYS);
    let name = top.name(
        out,
        "name",
        &NameRule {
            noun: "cluster",
            ..NAME
        },
    );
    let store = store(out, &top);
    let tables = top.tables(out, "island", MAX_ISLANDS);
    if tables.is_empty() && out.is_empty() {
        let found = top.get("island");
        let what = found.map_or("no `[[island]]` here", |_| "empty");
        out.add(
            Finding::error(FindingCode::MissingKey, "there is no island")
                .at(found.map_or(top.span, place), what)
                .help("add an `[[island]]` with `nodes` and `cores`"),
        );
    }
    let read: Vec<(Located<String>, Island)> =
        tables.into_iter().map(|table| island(out, table)).collect();
    unique(out, "island", read.iter().map(|(name, _)| name));
    let islands: Vec<Island> = read.into_iter().map(|(_, island)| island).collect();
    let nodes: usize = islands.iter().map(|i| i.nodes as usize).sum();
    if nodes > bounds::MAX_NODES {
        out.add(
            Finding::error(FindingCode::TooLarge, format!("{nodes} nodes are too many"))
                .at(
                    top.span,
                    format!("at most {} are allowed", bounds::MAX_NODES),
                )
                .help("lower `nodes` of an island"),
        );
    }
    Some(Machine {
        name: name.map_or_else(|| "cluster".into(), |n| n.value),
        islands,
        store,
    })
}

fn store(out: &mut Findings, top: &Section<'_>) -> Store {
    let Some(external) = top.table(out, "external", EXTERNAL_KEYS, "{ read = \"20 GB/s\" }") else {
        return Store {
            rates: Rates::default(),
            client: Rates::default(),
            saturates: 1,
        };
    };
    Store {
        rates: rates(out, &external, "read", "write"),
        client: rates(out, &external, "client-read", "client-write"),
        saturates: value_of(&external.count(out, "saturates", 1, MAX_SATURATES)).unwrap_or(1),
    }
}

fn rates(out: &mut Findings, section: &Section<'_>, read: &str, write: &str) -> Rates {
    Rates {
        read: section.rate(out, read),
        write: section.rate(out, write),
    }
}

fn island_name(out: &mut Findings, section: &Section<'_>) -> Located<String> {
    let name = section.name(
        out,
        "name",
        &NameRule {
            noun: "cluster island",
            ..NAME
        },
    );
    let name = name.unwrap_or_else(|| Located::new("node".into(), section.span));
    if name.value.ends_with(|c: char| c.is_ascii_digit()) {
        out.add(
            Finding::error(
                FindingCode::BadName,
                format!("{} is not a name for an island", quoted(&name.value)),
            )
            .at(name.span, "ends in a digit")
            .help(
                "the number of a node follows the island's name: end it with a letter, `-` or `_`",
            ),
        );
    }
    name
}

/// The usual temperature of an island's nodes, in degrees Celsius.
fn temperature(out: &mut Findings, section: &Section<'_>) -> f64 {
    let temperature = section.measure(out, "temperature", CELSIUS, "\"22 C\"");
    if let Some(cold) = temperature.filter(|t| *t < ABSOLUTE_ZERO) {
        out.add(
            Finding::error(
                FindingCode::BadValue,
                format!("`temperature` of {} is {cold} C", section.what),
            )
            .at(
                section.get("temperature").map_or(section.span, place),
                "below absolute zero",
            )
            .help("give the node's usual temperature, such as \"22 C\""),
        );
    }
    temperature.unwrap_or(USUAL_TEMPERATURE)
}

fn island(
    out: &mut Findings,
    (number, table, span): NumberedTable<'_>,
) -> (Located<String>, Island) {
    let what = match table.get("name").and_then(|n| n.get_ref().as_str()) {
        Some(name) => format!("island {}", quoted(name)),
        None => format!("island {number}"),
    };
    let section = Section::new(out, table, span, what, "an island", ISLAND_KEYS);
    let name = island_name(out, &section);
    section.require(out, "nodes", "8");
    section.require(out, "cores", "16");
    let count = |out: &mut Findings, key, least| {
        value_of(&section.count(out, key, least, MAX_PER_NODE)).unwrap_or(least)
    };
    let nodes = section.count(out, "nodes", 1, bounds::MAX_NODES as u32);
    let (cores, sockets) = (count(out, "cores", 1), count(out, "sockets", 1));
    if cores % sockets != 0 {
        out.add(
            Finding::error(
                FindingCode::BadValue,
                format!("the cores of {} do not divide evenly", section.what),
            )
            .at(
                section.get("sockets").map_or(section.span, place),
                format!("{cores} cores on {sockets} sockets"),
            )
            .help("`cores` counts those of the whole node; every socket has as many"),
        );
    }
    let temperature = temperature(out, &section);
    let link = section.table(out, "link", &["read", "write"], "{ read = \"10 GB/s\" }");
    let island = Island {
        name: name.value.clone(),
        nodes: value_of(&nodes).unwrap_or(1),
        kind: NodeKind {
            sockets,
            cores,
            memory: value_of(&section.size(out, "memory")).unwrap_or(UNLIMITED_MEMORY),
            gpus: count(out, "gpus", 0),
            tiers: tiers(out, &section),
            link: link.map_or_else(Rates::default, |l| rates(out, &l, "read", "write")),
            mode: section.word(out, "mode", MODES).unwrap_or_default(),
            mode_change: mode_change(out, &section),
            power: power(out, &section),
            temperature,
        },
    };
    (name, island)
}

fn tiers(out: &mut Findings, island: &Section<'_>) -> Vec<TierKind> {
    let tables = island.tables(out, "tier", bounds::MAX_TIERS);
    let read: Vec<(Option<Located<String>>, TierKind)> = tables
        .into_iter()
        .map(|(number, table, span)| {
            let what = format!("tier {number} of {}", island.what);
            let tier = Section::new(out, table, span, what, "a tier", TIER_KEYS);
            tier.require(out, "name", "\"pmem\"");
            tier.require(out, "capacity", "\"1 TB\"");
            let name = tier.name(out, "name", &TIER_NAME);
            let kind = TierKind {
                name: name.as_ref().map(|n| n.value.clone()).unwrap_or_default(),
                capacity: value_of(&tier.size(out, "capacity")).unwrap_or_default(),
                rates: rates(out, &tier, "read", "write"),
                app_direct: tier.flag(out, "app-direct").unwrap_or(false),
            };
            (name, kind)
        })
        .collect();
    unique(
        out,
        "tier",
        read.iter().filter_map(|(name, _)| name.as_ref()),
    );
    read.into_iter().map(|(_, kind)| kind).collect()
}

fn mode_change(out: &mut Findings, island: &Section<'_>) -> Option<ModeChange> {
    let example = "{ time = \"5m\", memory = \"3 TB\" }";
    let change = island.table(out, "mode-change", &["time", "memory"], example)?;
    change.require(out, "time", "\"5m\"");
    change.require(out, "memory", "\"3 TB\"");
    Some(ModeChange {
        time: value_of(&change.time(out, "time"))?,
        memory: value_of(&change.size(out, "memory"))?,
    })
}

fn power(out: &mut Findings, island: &Section<'_>) -> NodePowerModel {
    let keys = ["idle", "busy", "asleep", "boot", "wake"];
    let Some(power) = island.table(
        out,
        "power",
        &keys,
        "{ idle = \"200 W\", busy = \"500 W\" }",
    ) else {
        return NodePowerModel::default();
    };
    let watts = |out: &mut Findings, key| {
        let watts = power.measure(out, key, WATTS, "\"200 W\"").unwrap_or(0.0);
        if watts < 0.0 {
            out.add(
                Finding::error(
                    FindingCode::BadValue,
                    format!("`{key}` of {} is negative", power.what),
                )
                .at(power.get(key).map_or(power.span, place), "below zero")
                .help("a node draws power, it gives none"),
            );
        }
        watts
    };
    let read = NodePowerModel {
        idle: watts(out, "idle"),
        busy: watts(out, "busy"),
        asleep: watts(out, "asleep"),
        boot: watts(out, "boot"),
        wake: value_of(&power.time(out, "wake")).unwrap_or(0),
    };
    let pairs = [
        ("busy", read.busy, "idle", read.idle),
        ("idle", read.idle, "asleep", read.asleep),
    ];
    for (more, most, less, least) in pairs {
        if power.get(more).is_some() && most < least {
            out.add(
                Finding::error(
                    FindingCode::BadValue,
                    format!("`{more}` of {} is less than its `{less}`", power.what),
                )
                .at(
                    power.get(more).map_or(power.span, place),
                    format!("{most} W, and `{less}` is {least} W"),
                )
                .help("a node draws most when it is busy and least when it is asleep"),
            );
        }
    }
    read
}
