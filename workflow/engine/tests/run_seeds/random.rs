//! Random clusters, workflows and troubles, each wholly decided by a seed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tarn_simulator::{Estimates, FaultPlan, Keeps, Outage, SimEntry, Simulation};
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};
use tarn_types::event::Event;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId, TierId, TierRef};
use tarn_types::part::{PartClass, PartInfo, StoreKey};
use tarn_types::random;
use tarn_types::units::{Nanos, SECOND, Time};
use tarn_types::workflow::{KeepPartition, StoragePartition, VersionPartitioning, Workflow};

pub(crate) const MB: u64 = 1_000_000;
/// Names of the tiers, fast to slow.
const TIERS: [&str; 3] = ["fast", "slow", "slower"];

pub(crate) struct Random(random::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(random::Random::new(seed))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// From `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        self.0.within(low..high + 1)
    }

    fn small(&mut self, low: u32, high: u32) -> u32 {
        self.within(low.into(), high.into()) as u32
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.within(1, 100) <= chance
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.within(0, of.len() as u64 - 1) as usize]
    }
}

/// The content of a random dataset.
#[derive(Debug, Clone, Copy)]
struct Made {
    /// Top-level entries of each producer, or ranks.
    entries: u64,
    /// Bytes of one version, or of each instance's share.
    bytes: u64,
    scatter: bool,
    /// A `foreach` step makes it: its entries have the instance in their names.
    shared: bool,
    /// Of these elements, 0 and so on, where they are written in the file.
    elements: Option<u64>,
    source: bool,
}

/// The faults of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trouble {
    pub(crate) faults: FaultPlan,
    pub(crate) losses: Vec<(Time, NodeId, Outage)>,
    /// Slow links: from, until, by.
    slow: Vec<(Time, Time, u64)>,
    /// The bytes of a tier that other users leave free.
    pub(crate) capacity: Vec<(Time, TierRef, u64)>,
    pub(crate) interrupt: Option<Time>,
    /// When all of it is over.
    pub(crate) until: Time,
}

/// Everything that a seed decides.
pub(crate) struct Case {
    pub(crate) text: String,
    pub(crate) workflow: Workflow,
    pub(crate) cluster: Cluster,
    pub(crate) trouble: Trouble,
    /// Tiers may be too small for the workflow's outputs.
    pub(crate) tight: bool,
    /// It runs in an allocation, where a replica can be read while it arrives.
    pub(crate) allocation: bool,
    /// How much of a tier may be cached data, in percent.
    pub(crate) cache: u8,
    /// Nothing new is started once something has failed.
    pub(crate) fail_fast: bool,
    made: BTreeMap<String, Made>,
    seed: u64,
}

impl Case {
    pub(crate) fn of(seed: u64) -> Self {
        let mut r = Random::new(seed);
        let tight = r.percent(35);
        let cluster = cluster(&mut r, tight);
        // The seeds of `FOUND` stay as they are.
        let (text, made) = workflow(&mut r, &cluster, seed % 4 != 3);
        let trouble = trouble(&mut r, &cluster);
        let parsed = tarn_spec::parse("seed.toml", &text, Path::new("/w"));
        let mut parsed =
            parsed.unwrap_or_else(|e| panic!("seed {seed}: {:?}\n{text}", e.problems()));
        parsed.finish_codes(&|_| None);
        if seed % 3 == 1 {
            parsed.workflow.partitions = partitions(&parsed.workflow, &cluster, seed);
        }
        Self {
            workflow: parsed.workflow.clone(),
            text,
            cluster,
            trouble,
            tight,
            allocation: seed % 2 == 1,
            cache: [0, 25, 60, 100][(seed / 2 % 4) as usize],
            fail_fast: seed % 4 == 2,
            made,
            seed,
        }
    }

    /// How long an instance runs.
    pub(crate) fn run_time(&self, id: InstanceId) -> Nanos {
        run_time(self.seed, id)
    }

    pub(crate) fn estimates(&self) -> Estimates {
        let seed = self.seed;
        let made: Vec<Made> = self
            .workflow
            .data
            .iter()
            .map(|d| self.made[&d.name])
            .collect();
        let mut sources = BTreeMap::new();
        for (id, d) in (0..).map(DataId).zip(&self.workflow.data) {
            if d.source.is_some() {
                sources.insert(id, Ok(source(&self.made[&d.name], d.partition, id)));
            }
        }
        Estimates {
            run_time: Box::new(move |id| run_time(seed, id)),
            output: Box::new(move |id, data| entries(&made[data.at()], id.index)),
            sources,
            block: 1,
        }
    }

    /// Adds the faults from now on to a world.
    pub(crate) fn disturb(&self, mut sim: Simulation, now: Time) -> Simulation {
        let t = &self.trouble;
        for (at, node, outage) in t.losses.iter().filter(|l| l.0 >= now) {
            sim.lose_node(*at, *node, *outage);
        }
        for (at, until, by) in t.slow.iter().filter(|s| s.0 >= now) {
            sim.slow_links(*at, *until, *by);
        }
        for (at, tier_ref, bytes) in t.capacity.iter().filter(|c| c.0 >= now) {
            let (tier_ref, bytes) = (*tier_ref, *bytes);
            sim.inject(*at, Event::Capacity { tier_ref, bytes });
        }
        if let Some(at) = t.interrupt.filter(|at| *at >= now) {
            // SIGINT, or SIGTERM, after which datasets that ask for it are drained.
            let signal = [2, 15][(at % 2) as usize];
            sim.inject(at, Event::Interrupted { signal });
        }
        sim.with_faults(t.faults)
    }
}

fn run_time(seed: u64, id: InstanceId) -> Nanos {
    let mut r = Random::new(seed ^ u64::from(id.step.0) << 32 ^ u64::from(id.index));
    let most = r.pick(&[SECOND / 10, 2 * SECOND, 15 * SECOND]);
    r.within(SECOND / 1000, most)
}

/// The entries that an instance writes to a dataset.
fn entries(made: &Made, index: u32) -> Vec<SimEntry> {
    let share = |n: u64| made.bytes / made.entries + u64::from(n < made.bytes % made.entries);
    let name = |n: u64| match (made.scatter, made.shared) {
        (true, _) if n == 0 && made.entries > 1 => "common".to_owned(),
        (true, _) => format!("rank{}", n - u64::from(made.entries > 1)),
        (_, true) => format!("i{index}e{n}"),
        (_, false) => format!("e{n}"),
    };
    (0..made.entries)
        .map(|n| SimEntry::file(name(n), share(n)))
        .collect()
}

fn source(made: &Made, partition: VersionPartitioning, id: DataId) -> Vec<PartInfo> {
    let part = |seq: u32, class, bytes| PartInfo {
        seq,
        class,
        bytes,
        stored: bytes,
        files: 1,
        hash: None,
        key: StoreKey(format!("{id}.{seq}")),
    };
    let all = (0..).zip(entries(made, 0));
    match partition {
        VersionPartitioning::Whole => vec![part(0, PartClass::Whole, made.bytes)],
        VersionPartitioning::Entries => all
            .map(|(n, e)| part(n, PartClass::Entry(e.path), e.bytes))
            .collect(),
        VersionPartitioning::Ranks => {
            let class = |path: &str| match path.strip_prefix("rank") {
                Some(rank) => PartClass::Rank(rank.parse().expect("a number")),
                None => PartClass::Common,
            };
            all.map(|(n, e)| part(n, class(&e.path), e.bytes)).collect()
        }
    }
}

fn cluster(r: &mut Random, tight: bool) -> Cluster {
    let (nodes, cores) = (r.small(1, 4), r.small(1, 4));
    let capacities: &[u64] = match tight {
        true => &[60 * MB, 150 * MB, 400 * MB],
        false => &[4000 * MB, 10_000 * MB],
    };
    let mut sizes: Vec<u64> = (0..r.within(1, 3)).map(|_| r.pick(capacities)).collect();
    sizes.sort_unstable();
    let apart = r.percent(60);
    let tier = |(i, capacity): (usize, &u64)| Tier {
        name: TIERS[i].into(),
        root: PathBuf::from("/tier"),
        capacity: *capacity,
        read: 2000 * MB / (1 + i as u64 * 4),
        write: 2000 * MB / (1 + i as u64 * 4),
        lender: None,
    };
    let node = |i: u32| Node {
        name: format!("node{i}"),
        host: if apart { i } else { 0 },
        cores,
        memory: 1 << 40,
        gpus: 0,
        tiers: sizes.iter().enumerate().map(tier).collect(),
    };
    let all: Vec<Node> = (0..nodes).map(node).collect();
    // Nodes that share a host do not always have all of its cores.
    let shared = if r.percent(50) {
        nodes * cores
    } else {
        nodes * cores - (nodes - 1) * (cores / 2)
    };
    let host = |i: u32| Host {
        name: format!("host{i}"),
        cores: if apart { cores } else { shared },
        memory: 1 << 42,
        sockets: Vec::new(),
        draw: Default::default(),
    };
    let mut link = |rate: u64| Link {
        read: rate,
        write: rate,
        latency: r.pick(&[0, 0, SECOND / 1000]),
        streams: r.small(1, 4),
        emulated: false,
    };
    Cluster {
        hosts: (0..if apart { nodes } else { 1 }).map(host).collect(),
        nodes: all,
        external: link(100 * MB),
        peer: link(1000 * MB),
    }
}

/// Partitions of steps, kept and not. They have random numbers of their own, so that all else is as without them.
fn partitions(w: &Workflow, cluster: &Cluster, seed: u64) -> Vec<StoragePartition> {
    let mut r = Random::new(!seed);
    let mut nodes: Vec<u32> = w.steps.iter().map(|s| s.nodes).collect();
    nodes.push(0);
    nodes.sort_unstable();
    nodes.dedup();
    let tiers = cluster.nodes[0].tiers.len() as u64;
    let mut all = Vec::new();
    for n in nodes {
        let keep = match n {
            0 => KeepPartition::Step,
            _ => KeepPartition::Workflow,
        };
        for number in 0..r.within(1, 2) {
            let steps = (0..).map(StepId).zip(&w.steps);
            let steps = steps.filter(|(_, s)| (n == 0 || s.nodes == n) && r.percent(50));
            let steps = steps.map(|(id, _)| id).collect();
            all.push(StoragePartition {
                name: format!("p{n}_{number}"),
                size: r.within(1, 8) * MB,
                unit: None,
                tier: (r.percent(25)).then(|| TIERS[r.within(0, tiers - 1) as usize].into()),
                spread: r.percent(25).then_some(4096),
                keep,
                steps,
            });
        }
    }
    all
}

/// The text of a workflow file, and the content of its datasets. `own`: instances read entries of their own elements.
fn workflow(r: &mut Random, cluster: &Cluster, own: bool) -> (String, BTreeMap<String, Made>) {
    let mut made: BTreeMap<String, Made> = BTreeMap::new();
    for n in 0..r.within(0, 2) {
        let source = dataset(r, true, false);
        made.insert(format!("src{n}"), source);
    }
    let mut steps = String::new();
    let count = r.within(2, 9);
    for n in 0..count {
        steps += &step(r, cluster, n, &mut made, own);
    }
    let mut text = "name = \"seed\"\nexternal = \"/ext\"\n".to_owned();
    let made_by_steps: Vec<String> = made.keys().cloned().collect();
    for name in made_by_steps {
        text += &declare(r, cluster, &name, &made[&name]);
    }
    (text + &steps, made)
}

fn dataset(r: &mut Random, source: bool, shared: bool) -> Made {
    let scatter = !shared && r.percent(30);
    Made {
        entries: r.within(1, 4) + u64::from(scatter),
        bytes: r.pick(&[0, 1, MB, 10 * MB, 10 * MB, 40 * MB]),
        scatter,
        shared,
        elements: None,
        source,
    }
}

fn declare(r: &mut Random, cluster: &Cluster, name: &str, made: &Made) -> String {
    let mut text = format!("[data.{name}]\n");
    let mut line = |key: &str, value: &str| _ = writeln!(text, "{key} = \"{value}\"");
    if made.source {
        line("source", &format!("/src/{name}"));
    } else if r.percent(35) {
        line("dest", &format!("/dest/{name}"));
    }
    if made.scatter {
        line("scatter", "rank{rank}");
    }
    if r.percent(30) {
        line("keep", r.pick(&["workflow", "1 h", "forever"]));
    }
    if r.percent(20) {
        line("on_failure", "drain");
    }
    if r.percent(10) {
        line(
            "tier",
            TIERS[r.within(0, cluster.nodes[0].tiers.len() as u64 - 1) as usize],
        );
    }
    if r.percent(25) {
        line("size", &format!("{} MB", made.bytes / MB + 1));
    }
    if r.percent(20) {
        let copies = r.small(1, cluster.nodes.len() as u32);
        _ = writeln!(text, "copies = {copies}");
    }
    text
}

/// The text of one step.
fn step(
    r: &mut Random,
    cluster: &Cluster,
    number: u64,
    made: &mut BTreeMap<String, Made>,
    own: bool,
) -> String {
    let mut text = format!("[[step]]\nname = \"s{number}\"\nrun = \"x\"\n");
    let host = &cluster.hosts[0];
    let node = &cluster.nodes[0];
    let each = r.percent(35);
    let most = cluster.nodes.len() as u32;
    let nodes = if !each && r.percent(40) {
        r.small(1, most)
    } else {
        1
    };
    // On one host the cores of all nodes together must suffice.
    let sharing = if cluster.hosts.len() == 1 { nodes } else { 1 };
    let cores = r.small(1, node.cores.min(host.cores / sharing));
    _ = writeln!(text, "nodes = {nodes}\ncores = {cores}");
    if nodes > 1 {
        _ = writeln!(text, "tasks = {}", nodes * r.small(1, 2));
    }
    if r.percent(50) {
        _ = writeln!(text, "time = \"{} s\"", r.within(20, 60));
    }
    _ = writeln!(text, "retries = {}", r.within(0, 4));
    if number % 4 == 1 {
        _ = writeln!(text, "restart = \"phx\"");
    }
    if r.percent(10) {
        let tier = TIERS[r.within(0, node.tiers.len() as u64 - 1) as usize];
        _ = writeln!(text, "tier = \"{tier}\"");
    }
    if number > 0 && r.percent(15) {
        _ = writeln!(text, "after = [\"s{}\"]", r.within(0, number - 1));
    }
    let mut used: Vec<String> = Vec::new();
    let mut ins: Vec<String> = Vec::new();
    if each {
        over(r, made, &mut text, &mut used, &mut ins);
    }
    let elements = text.split_once("foreach = [");
    let elements = elements.map(|(_, list)| 1 + list.matches(',').count() as u64);
    if let (Some(elements), true) = (elements, own) {
        own_entry(made, &text, elements, &mut used, &mut ins);
    }
    let dist = |r: &mut Random, m: &Made, out: bool| match (nodes, m.scatter) {
        (1, _) => "",
        (_, true) => r.pick(&[":scatter", ":single", ":broadcast"]),
        (_, false) if out => r.pick(&[":single", ":broadcast"]),
        (_, false) => r.pick(&["", ":gather", ":broadcast"]),
    };
    for _ in 0..r.within(0, 2) {
        let Some((name, m)) = any(r, made, &used) else {
            continue;
        };
        let entry = !m.shared && !m.scatter && r.percent(25);
        ins.push(match entry {
            true => format!("{name}/e{}", r.within(0, m.entries - 1)),
            false => format!("{name}{}", dist(r, &m, false)),
        });
        used.push(name);
    }
    let mut inout = String::new();
    if !each
        && r.percent(25)
        && let Some((name, m)) = any(r, made, &used).filter(|(_, m)| !m.shared)
    {
        inout = format!("inout = [\"{name}{}\"]\n", dist(r, &m, true));
    }
    let mut outs: Vec<String> = Vec::new();
    for n in 0..r.within(0, 2) {
        let name = format!("d{number}_{n}");
        let m = Made {
            elements,
            ..dataset(r, false, each)
        };
        outs.push(format!("{name}{}", dist(r, &m, true)));
        made.insert(name, m);
    }
    let list = |names: &[String]| {
        names
            .iter()
            .map(|n| format!("\"{n}\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    text + &format!("in = [{}]\nout = [{}]\n{inout}", list(&ins), list(&outs))
}

/// The elements of a step.
fn over(
    r: &mut Random,
    made: &BTreeMap<String, Made>,
    text: &mut String,
    used: &mut Vec<String>,
    ins: &mut Vec<String>,
) {
    let entries = any(r, made, used).filter(|(_, m)| !m.scatter && r.percent(50));
    let Some((name, _)) = entries else {
        let values: Vec<String> = (0..r.within(1, 4)).map(|v| v.to_string()).collect();
        _ = writeln!(text, "foreach = [{}]", values.join(", "));
        return;
    };
    _ = writeln!(text, "foreach = \"{name}/*\"\nmax = 100");
    if r.percent(80) {
        ins.push(format!("{name}/{{item}}"));
    }
    used.push(name);
}

/// An entry of the output of a step over as many elements. Its random number is of its own, so that all else is as
/// without it.
fn own_entry(
    made: &BTreeMap<String, Made>,
    text: &str,
    elements: u64,
    used: &mut Vec<String>,
    ins: &mut Vec<String>,
) {
    let mut r = Random::new(text.bytes().fold(7, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    }));
    let fits = |m: &Made| m.elements.is_some_and(|n| n >= elements);
    let mut all = made.iter().filter(|(n, m)| fits(m) && !used.contains(n));
    let one = all.next_back();
    if let Some((name, m)) = one.filter(|_| r.percent(80)) {
        ins.push(format!("{name}/i{{item}}e{}", r.within(0, m.entries - 1)));
        used.push(name.clone());
    }
}

/// Some dataset that is not used yet.
fn any(r: &mut Random, made: &BTreeMap<String, Made>, used: &[String]) -> Option<(String, Made)> {
    let free: Vec<_> = made
        .iter()
        .filter(|(name, _)| !used.contains(name))
        .collect();
    if free.is_empty() {
        return None;
    }
    let (name, m) = free[r.within(0, free.len() as u64 - 1) as usize];
    Some((name.clone(), *m))
}

fn trouble(r: &mut Random, cluster: &Cluster) -> Trouble {
    if r.percent(15) {
        return Trouble::default();
    }
    let until = r.within(5, 120) * SECOND;
    let mut chance = |most: u64| match r.percent(50) {
        true => 0.0,
        false => r.within(0, most) as f64 / 100.0,
    };
    let mut faults = FaultPlan {
        transfer_failure_probability: chance(10),
        damage_probability: chance(40),
        step_failure_probability: chance(10),
        hang_probability: chance(5),
        seed: r.bits(),
        until: Some(until),
        link_failure_probability: 0.0,
    };
    let node = |r: &mut Random| NodeId(r.small(0, cluster.nodes.len() as u32 - 1));
    let losses = (0..r.within(0, 4)).map(|_| {
        let lasts = match r.percent(12) {
            true => None,
            false => Some(r.within(1, 40 * SECOND)),
        };
        let keeps = match r.within(0, 2) {
            0 => Keeps::All,
            1 => Keeps::Nothing,
            _ => Keeps::Half(r.bits()),
        };
        (r.within(0, until), node(r), Outage { lasts, keeps })
    });
    let losses = losses.collect();
    let slow = (0..r.within(0, 2)).map(|_| (r.within(0, until / 2), until, r.within(2, 20)));
    let slow = slow.collect();
    let mut capacity = Vec::new();
    for _ in 0..r.pick(&[0, 0, 1, 3]) {
        let node = node(r);
        let tiers = &cluster.node(node).tiers;
        let tier = TierId(r.small(0, tiers.len() as u32 - 1));
        let tier_ref = TierRef { node, tier };
        let all = cluster.tier(tier_ref).capacity;
        capacity.push((r.within(0, until), tier_ref, all / 100 * r.within(0, 90)));
        capacity.push((until + 1, tier_ref, all));
    }
    let interrupt = r.percent(8).then(|| r.within(0, until));
    if r.percent(30) {
        faults.link_failure_probability = r.within(1, 60) as f64 / 100.0;
    }
    Trouble {
        faults,
        losses,
        slow,
        capacity,
        interrupt,
        until: until + 41 * SECOND,
    }
}
