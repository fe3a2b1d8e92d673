//! The real engine over nodes that are lost and come back at random moments: nothing that was ordered is ever forgotten or
//! ended twice, a lost node reports nothing but its ends, nothing is read that is not there, and the run ends well as long as
//! enough nodes are left.
//!
//! A seed decides what happens, not quite when: nodes are threads. `TARN_SEEDS` sets their number.

mod common;
use common::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tarn_engine::{Engine, drive};
use tarn_ports::{Journal, JournalError, Record, World, WorldError};
use tarn_proto::node::{NodeCommand, NodeNotification, NodeReply, NodeRequest};
use tarn_simulator::Rules;
use tarn_types::action::{Action, AttemptSpec, Do, Outcome};
use tarn_types::event::{
    AttemptOutcome, Event, Options, Output, RunError, RunErrorKind, Start, Usage, Verify,
};
use tarn_types::hash::Hash;
use tarn_types::id::{InstanceId, NodeId, TransferId};
use tarn_types::nodes::Cleaned;
use tarn_types::part::{PartClass, PartInfo, PartRef, Place, StoreKey, Transfer};
use tarn_types::policy::Policy;
use tarn_types::random::Random;
use tarn_types::units::Time;
use tarn_types::workflow::Workflow;

const SEEDS: u64 = 20;
const NODES: u32 = 4;
/// Nodes that are never lost: as many as the widest step needs.
const LASTING: u32 = 2;
/// After so many events a run goes round in circles.
const MAX_EVENTS: u32 = 20_000;
/// Bytes of each part.
const BYTES: u64 = 100;

/// Of a step every loss but the first is a failed try, and nodes are lost all the time.
fn random_workflow(r: &mut Random) -> Workflow {
    let steps = 10 + r.below(20);
    let mut text =
        String::from("name = \"w\"\nexternal = \"/ext\"\n[data.src]\nsource = \"/src\"\n");
    for i in 0..steps {
        let dest = match r.below(5) {
            0 => format!("dest = \"/out/a{i}\"\n"),
            _ => String::new(),
        };
        write!(text, "[data.a{i}]\n{dest}").unwrap();
    }
    for i in 0..steps {
        let mut reads = BTreeSet::new();
        for _ in 0..=r.below(2) {
            reads.insert(match i {
                0 => "src".to_owned(),
                _ if r.below(6) == 0 => "src".to_owned(),
                _ => format!("a{}", i - 1 - r.below(i.min(4))),
            });
        }
        write!(
            text,
            "[[step]]\nname = \"s{i}\"\nretries = 1000\nrun = \"x\"\nin = {reads:?}\nout = [\"a{i}\"]\n"
        )
        .unwrap();
        if r.below(4) == 0 {
            let reads = format!("a{}", r.below(i + 1));
            write!(
                text,
                "[[step]]\nname = \"wide{i}\"\nretries = 1000\nrun = \"x\"\nnodes = 2\nin = [\"{reads}\"]\n"
            )
            .unwrap();
        }
    }
    // A set is written with braces.
    workflow(&text.replace('{', "[").replace('}', "]"))
}

/// The content of a part: the same whoever makes it.
fn hash(part: PartRef) -> Hash {
    Hash(u128::from(part.data.0) << 64 | u128::from(part.version) << 32 | u128::from(part.origin))
}

/// An event that a scripted node will report, once it is due.
struct Pending {
    due: Instant,
    node: NodeId,
    event: Event,
    /// The replicas that it reads: node, the life of that node, key.
    reads: Vec<(NodeId, u64, StoreKey)>,
    /// The replicas that exist afterwards, with their nodes.
    puts: Vec<(NodeId, StoreKey)>,
}

/// The machines.
#[derive(Default)]
struct Machines {
    disks: BTreeMap<NodeId, BTreeSet<StoreKey>>,
    /// Counts its losses.
    lives: BTreeMap<NodeId, u64>,
    dead: BTreeSet<NodeId>,
    /// The parts that each node knows since it was opened.
    known: BTreeMap<NodeId, BTreeMap<PartRef, StoreKey>>,
    pending: Vec<Pending>,
    /// Replicas that were on their way to a node and did not come.
    failed: BTreeSet<(NodeId, StoreKey)>,
    delays: u64,
    /// The first thing that should never have happened.
    broken: Option<String>,
}

impl Machines {
    fn breaks(&mut self, how: String) {
        self.broken.get_or_insert(how);
    }

    fn life(&self, n: NodeId) -> u64 {
        self.lives.get(&n).copied().unwrap_or(0)
    }

    fn later(&mut self, pending: Pending) {
        self.delays = self
            .delays
            .wrapping_mul(6364136223846793005)
            .wrapping_add(99);
        let due = Instant::now() + Duration::from_micros(200 + (self.delays >> 33) % 4000);
        self.pending.push(Pending { due, ..pending });
    }

    fn key(&mut self, n: NodeId, part: PartRef) -> StoreKey {
        let known = self.known.get(&n).and_then(|k| k.get(&part)).cloned();
        known.unwrap_or_else(|| {
            self.breaks(format!("{n} was not told of {part}"));
            StoreKey("unknown".into())
        })
    }

    fn transfer(&mut self, n: NodeId, t: &Transfer) {
        let (mut reads, mut puts) = (Vec::new(), Vec::new());
        for m in &t.parts {
            let key = self.key(n, m.part);
            if let Place::Node(from) = m.from {
                reads.push((from.node, self.life(from.node), key.clone()));
            }
            if let Place::Node(to) = t.to {
                puts.push((to.node, key));
            }
        }
        let event = Event::TransferDone {
            id: t.id,
            bytes: BYTES,
            hashes: t.parts.iter().map(|m| hash(m.part)).collect(),
            stored: vec![BYTES; t.parts.len()],
            took: 1,
        };
        let (due, node) = (Instant::now(), n);
        self.later(Pending {
            due,
            node,
            event,
            reads,
            puts,
        });
    }

    fn run(&mut self, n: NodeId, run: &AttemptSpec, workflow: &Workflow) {
        let mut reads = Vec::new();
        for held in run.views.iter().flatten().flatten() {
            if self.key(n, held.part) != held.key {
                self.breaks(format!("{n} was told of another commit of {}", held.part));
            }
            reads.push((
                held.tier_ref.node,
                self.life(held.tier_ref.node),
                held.key.clone(),
            ));
        }
        for follower in run.nodes.iter().skip(1) {
            reads.push((
                follower.node,
                self.life(follower.node),
                StoreKey(String::new()),
            ));
        }
        let (mut outputs, mut puts) = (Vec::new(), Vec::new());
        for (seq, u) in (0..).zip(&workflow.step(run.instance.step).uses) {
            let Some(version) = u.makes else { continue };
            let part = PartRef {
                data: u.data,
                version,
                origin: run.instance.index,
                seq,
            };
            let key = StoreKey(format!("{}.{seq}", run.store));
            let info = PartInfo {
                seq,
                class: PartClass::Whole,
                bytes: BYTES,
                stored: BYTES,
                files: 1,
                hash: Some(hash(part)),
                key: key.clone(),
            };
            puts.push((n, key));
            outputs.push(Output {
                data: u.data,
                version,
                parts: vec![(info, vec![run.nodes[0]])],
            });
        }
        self.later(Pending {
            due: Instant::now(),
            node: n,
            event: committed(run.instance, run.attempt, outputs),
            reads,
            puts,
        });
    }

    /// Ends what is pending with a failure.
    fn cancel(&mut self, n: NodeId, which: impl Fn(&Event) -> bool) {
        for p in self
            .pending
            .iter_mut()
            .filter(|p| p.node == n && which(&p.event))
        {
            fail(p, RunErrorKind::Cancelled);
            // A follower is cut at once, before the node reports this.
            self.failed.extend(p.puts.iter().cloned());
        }
    }

    fn handle_command(
        &mut self,
        n: NodeId,
        command: &NodeCommand,
        workflow: &Workflow,
    ) -> Vec<NodeNotification> {
        match command {
            NodeCommand::Know(parts) => {
                let keys = parts.iter().map(|(p, info)| (*p, info.key.clone()));
                self.known.entry(n).or_default().extend(keys);
            }
            NodeCommand::Do(Action { what, .. }) => match what {
                Do::Transfer(t) => {
                    self.transfer(n, t);
                    // Those that follow it begin before its end, or after.
                    return (t.id.0 % 3 > 0)
                        .then_some(NodeNotification::Begun(t.id))
                        .into_iter()
                        .collect();
                }
                Do::Run(run) => self.run(n, run, workflow),
                Do::Evict { part, key, at } => {
                    self.disks.entry(n).or_default().remove(key);
                    let (part, at) = (*part, at.clone());
                    return vec![NodeNotification::Event(Event::Evicted { part, at })];
                }
                Do::Abandon { id } => self.cancel(
                    n,
                    |e| matches!(e, Event::TransferDone { id: other, .. } if other == id),
                ),
                Do::Stop { instance, .. } => self.cancel(
                    n,
                    |e| matches!(e, Event::Ended { instance: i, .. } if i == instance),
                ),
                _ => {}
            },
            _ => {}
        }
        Vec::new()
    }

    fn answer(&mut self, n: NodeId, call: &NodeRequest) -> Option<NodeReply> {
        let disk = self.disks.entry(n).or_default();
        match call {
            NodeRequest::Open(_) => {
                self.known.remove(&n);
                None
            }
            NodeRequest::Inventory(wanted) => {
                let there = wanted.iter().filter(|(_, key, _)| disk.contains(key));
                Some(NodeReply::Found(
                    there.map(|(p, _, at)| (*p, at.clone())).collect(),
                ))
            }
            NodeRequest::Clean(staying) => {
                let keep: BTreeSet<_> = staying.keep.iter().map(|(key, _)| key.clone()).collect();
                disk.retain(|key| keep.contains(key));
                Some(NodeReply::Cleaned(Cleaned::default()))
            }
            _ => None,
        }
    }

    /// The events that are due; one whose source is missing is a failure.
    fn due(&mut self) -> Vec<(NodeId, Event)> {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|p| p.due <= now);
        self.pending = later;
        let due: Vec<Pending> = due;
        let mut due = VecDeque::from(due);
        let mut events = Vec::new();
        while let Some(mut p) = due.pop_front() {
            // Also of events that are due at the same time: the one that brings it goes first.
            let arrives = |m: &Self, node, key: &StoreKey| {
                let mut puts = m
                    .pending
                    .iter()
                    .chain(&due)
                    .filter(|o| done(&o.event))
                    .flat_map(|o| &o.puts);
                puts.any(|(n, k)| *n == node && k == key)
            };
            let moves = matches!(p.event, Event::TransferDone { .. });
            let mut reads = p.reads.iter();
            if moves && reads.any(|(node, _, key)| arrives(self, *node, key)) {
                self.pending.push(p);
                continue;
            }
            for (node, life, key) in p.reads.clone() {
                let cut = self.dead.contains(&node) || self.life(node) != life;
                let there = key.0.is_empty() || self.disks.entry(node).or_default().contains(&key);
                let chain_broken = moves && self.failed.contains(&(node, key.clone()));
                // The replica may have gone with an earlier life of the node: an order arrives later than it is given. It fails
                // there, as on a real node; a run that keeps ordering it fails.
                let lost_once = self.life(node) > 0;
                if cut || !there && (chain_broken || lost_once) {
                    fail(&mut p, RunErrorKind::Io);
                } else if !there && done(&p.event) {
                    self.breaks(format!(
                        "{:?} reads {key:?} on {node}, which is not there",
                        p.event
                    ));
                }
            }
            for (node, key) in &p.puts {
                if done(&p.event) {
                    self.disks.entry(*node).or_default().insert(key.clone());
                } else if let Event::TransferFailed { .. } = p.event {
                    self.failed.insert((*node, key.clone()));
                }
            }
            events.push((p.node, p.event));
        }
        events
    }

    fn lose(&mut self, n: NodeId, power: bool) {
        self.dead.insert(n);
        *self.lives.entry(n).or_default() += 1;
        let gone = self.pending.extract_if(.., |p| p.node == n);
        self.failed.extend(gone.flat_map(|p| p.puts));
        if power {
            self.disks.remove(&n);
        }
    }
}

fn done(event: &Event) -> bool {
    match event {
        Event::TransferDone { .. } => true,
        Event::Ended { ended, .. } => matches!(ended, AttemptOutcome::Committed { .. }),
        _ => false,
    }
}

fn fail(p: &mut Pending, kind: RunErrorKind) {
    let failure = RunError {
        kind,
        message: "as the test wants it".into(),
    };
    p.event = match &p.event {
        Event::TransferDone { id, .. } => Event::TransferFailed {
            id: *id,
            failure,
            damaged: None,
        },
        Event::Ended {
            instance, attempt, ..
        } => Event::Ended {
            instance: *instance,
            attempt: *attempt,
            ended: AttemptOutcome::Failed {
                failure,
                log_tail: String::new(),
                newest: None,
            },
            usage: Usage::default(),
        },
        other => other.clone(),
    };
}

/// Home's reply to an order: each succeeds at once.
fn home(order: &Do) -> Option<Event> {
    match order {
        Do::List { data } => {
            let source = PartRef {
                data: *data,
                version: 0,
                origin: 0,
                seq: 0,
            };
            let info = PartInfo {
                seq: 0,
                class: PartClass::Whole,
                bytes: BYTES,
                stored: BYTES,
                files: 1,
                hash: Some(hash(source)),
                key: StoreKey(format!("src.{}", data.0)),
            };
            let parts = vec![info];
            Some(Event::SourceListed { data: *data, parts })
        }
        Do::Transfer(t) => Some(Event::TransferDone {
            id: t.id,
            bytes: BYTES,
            hashes: t.parts.iter().map(|m| hash(m.part)).collect(),
            stored: vec![0; t.parts.len()],
            took: 1,
        }),
        Do::Evict { part, at, .. } => Some(Event::Evicted {
            part: *part,
            at: at.clone(),
        }),
        _ => None,
    }
}

/// An allocation whose promises are checked.
struct Watched<'a> {
    simulated: &'a mut SimulatedRun,
    /// Ordered transfers that have not ended, with their nodes.
    transfers: BTreeMap<TransferId, Vec<NodeId>>,
    runs: BTreeMap<(InstanceId, u32), Vec<NodeId>>,
    lost: BTreeSet<NodeId>,
    losses: u32,
    returns: u32,
    events: u32,
}

impl Watched<'_> {
    fn check(&mut self, event: &Event) -> Result<(), String> {
        let on = |place: &Place| match place {
            Place::Node(s) => Some(s.node),
            _ => None,
        };
        match event {
            Event::TransferDone { id, .. } | Event::TransferFailed { id, .. } => {
                self.transfers
                    .remove(id)
                    .map(drop)
                    .ok_or("an end of nothing")?;
            }
            Event::Ended {
                instance, attempt, ..
            } => {
                let ended = self.runs.remove(&(*instance, *attempt));
                let first = ended.ok_or("an end of nothing")?[0];
                if done(event) && self.lost.contains(&first) {
                    return Err("a lost node has committed".into());
                }
            }
            Event::NodeLost { node, .. } => {
                self.losses += 1;
                if !self.lost.insert(*node) {
                    return Err("it is lost already".into());
                }
            }
            Event::NodeBack { node, .. } => {
                self.returns += 1;
                let mut owed = self.transfers.values().chain(self.runs.values());
                if !self.lost.remove(node) || owed.any(|nodes| nodes.contains(node)) {
                    return Err("it was not lost, or something with it has not ended".into());
                }
            }
            Event::Capacity { tier_ref, .. } if self.lost.contains(&tier_ref.node) => {
                return Err("of a lost node".into());
            }
            Event::Evicted { at, .. } if on(at).is_some_and(|n| self.lost.contains(&n)) => {
                return Err("of a lost node".into());
            }
            _ => {}
        }
        Ok(())
    }
}

impl World for Watched<'_> {
    fn now(&self) -> Time {
        self.simulated.world.as_ref().map_or(0, |w| w.now())
    }

    fn perform(&mut self, action: &Action) -> Result<(), WorldError> {
        match &action.what {
            Do::Transfer(t) => {
                let places = t.parts.iter().map(|m| &m.from).chain([&t.to]);
                let nodes = places.filter_map(|p| match p {
                    Place::Node(s) => Some(s.node),
                    _ => None,
                });
                self.transfers.insert(t.id, nodes.collect());
            }
            Do::Run(run) => {
                let nodes = run.nodes.iter().map(|s| s.node).collect();
                self.runs.insert((run.instance, run.attempt), nodes);
            }
            _ => {}
        }
        self.simulated.world().perform(action)
    }

    fn next(&mut self, until: Option<Time>) -> Result<(Time, Event), WorldError> {
        self.events += 1;
        if self.events > MAX_EVENTS {
            return Err(WorldError("the run goes round in circles".into()));
        }
        // Nothing here takes a second: a longer wait is for something that was forgotten.
        let timeout = self.now() + 5_000_000_000;
        let world = self.simulated.world();
        let (at, event) = world.next(Some(until.map_or(timeout, |u| u.min(timeout))))?;
        if event == Event::Timer && at >= timeout {
            return Err(WorldError(format!(
                "nothing came: {:?} {:?} {:?}",
                self.transfers, self.runs, self.lost
            )));
        }
        match self.check(&event) {
            Ok(()) => Ok((at, event)),
            Err(how) => Err(WorldError(format!("{how}: {event:?}"))),
        }
    }

    fn poll(&mut self) -> Option<(Time, Event)> {
        let (at, event) = self.simulated.world().poll()?;
        let broken = self.check(&event).err();
        assert_eq!(broken, None, "{event:?}");
        Some((at, event))
    }
}

#[derive(Default)]
struct Memory(Vec<Record>);

impl Journal for Memory {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.0.extend_from_slice(records);
        Ok(())
    }
}

/// Losses and returns of one run.
fn play(seed: u64) -> Result<(u32, u32), String> {
    let mut random = Random::new(seed);
    let workflow = random_workflow(&mut random);
    let mut cluster = cluster_of(NODES);
    let roomy = random.below(2) == 0;
    for node in &mut cluster.nodes {
        node.tiers[0].capacity = if roomy { 100_000 } else { 1_500 };
    }
    let machines = Arc::new(Mutex::new(Machines {
        delays: random.bits(),
        ..Machines::default()
    }));
    let mut script = Script::new(NODES);
    (script.workflow, script.cluster) = (workflow.clone(), cluster.clone());
    let (for_commands, for_requests, steps) = (
        Arc::clone(&machines),
        Arc::clone(&machines),
        workflow.clone(),
    );
    script.acts = Arc::new(move |n, t| for_commands.lock().unwrap().handle_command(n, t, &steps));
    script.answers = Arc::new(move |n, call| for_requests.lock().unwrap().answer(n, call));
    script.home = Box::new(home);
    let mut simulated = script.open();
    let over = Arc::new(AtomicBool::new(false));
    let (ended, sessions) = (Arc::clone(&over), Arc::clone(&simulated.sessions));
    let newest = move |n: NodeId| {
        let sessions = sessions.lock().unwrap();
        let newest = sessions.range((n, 0)..=(n, u64::MAX)).next_back();
        newest.map(|(_, s)| Arc::clone(s))
    };
    let (gone, all) = (Arc::clone(&simulated.gone), Arc::clone(&machines));
    // The machines' own time: due events are reported, and now and then a machine is lost or found again.
    let time = std::thread::spawn(move || {
        let mut next = Instant::now();
        while !ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(300));
            let due = all.lock().unwrap().due();
            for (n, event) in due {
                newest(n).into_iter().for_each(|s| s.happens(event.clone()));
            }
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + Duration::from_micros(random.below(15_000));
            let n = NodeId(LASTING + random.below(u64::from(NODES - LASTING)) as u32);
            if gone.lock().unwrap().remove(&n) {
                all.lock().unwrap().dead.remove(&n);
            } else if random.below(2) == 0 {
                // One that is found again at once is one whose session alone was lost.
                if random.below(3) > 0 {
                    gone.lock().unwrap().insert(n);
                }
                newest(n).into_iter().for_each(|s| s.dies());
                all.lock().unwrap().lose(n, random.below(2) == 0);
                if !gone.lock().unwrap().contains(&n) {
                    all.lock().unwrap().dead.remove(&n);
                }
            }
        }
    });
    let start = Start {
        allocation: Some("1".into()),
        sealed: false,
        pinned: Vec::new(),
        set_aside: None,
        run: "w-1".into(),
        workspace: "w".into(),
        wall: 0,
        workflow,
        cluster,
        options: Options {
            policy: "data".parse::<Policy>().unwrap(),
            verify: Verify::Copy,
            cache: 0,
            fail_fast: false,
        },
        prior: Vec::new(),
        prior_dest: Vec::new(),
        prior_data: Vec::new(),
    };
    let mut watched = Watched {
        simulated: &mut simulated,
        transfers: BTreeMap::new(),
        runs: BTreeMap::new(),
        lost: BTreeSet::new(),
        losses: 0,
        returns: 0,
        events: 0,
    };
    let (mut rules, mut broken, mut journal) = (Rules::new(), Ok(()), Memory::default());
    let outcome = drive(
        &mut Engine::new(),
        &mut watched,
        &mut journal,
        Event::Started(Box::new(start)),
        0,
        &mut |record| {
            if broken.is_ok() {
                broken = rules.check(record);
            }
        },
    );
    let counts = (watched.losses, watched.returns);
    let owed = (watched.transfers.len(), watched.runs.len());
    over.store(true, Ordering::Relaxed);
    time.join().unwrap();
    let wrong = machines.lock().unwrap().broken.clone();
    let log = || {
        let lines = journal.0.iter().map(|r| {
            let did = r.actions.iter().map(|a| format!("\n      {:?}", a.what));
            format!("{:>5} {:?}{}", r.seq, r.event, did.collect::<String>())
        });
        lines.skip(1).collect::<Vec<_>>().join("\n")
    };
    let failed = |how: String| Err(format!("{}\nseed {seed}: {how}", log()));
    match (outcome, broken, wrong) {
        (Ok(Outcome::Done), Ok(()), None) if owed == (0, 0) => Ok(counts),
        (Ok(outcome), Ok(()), None) => failed(format!("{outcome:?}, owed {owed:?}")),
        (Err(e), _, wrong) => failed(format!("{e} {wrong:?}")),
        (_, Err(e), _) => failed(e.to_string()),
        (_, _, Some(wrong)) => failed(wrong),
    }
}

#[test]
fn whatever_is_lost_nothing_owed_is_forgotten() {
    let setting = std::env::var("TARN_SEEDS").ok();
    let seeds = setting.and_then(|s| s.parse().ok()).unwrap_or(SEEDS);
    let (mut losses, mut returns) = (0, 0);
    for seed in 0..seeds {
        match play(seed) {
            Ok((l, r)) => (losses, returns) = (losses + l, returns + r),
            Err(why) => panic!("{why}"),
        }
    }
    assert!(
        u64::from(losses) > seeds && u64::from(returns) > seeds / 2,
        "{losses} {returns}"
    );
}
