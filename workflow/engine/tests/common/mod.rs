//! A workflow file, a small cluster and the simulated world, driven by the real loop.
#![allow(dead_code)]

use std::path::PathBuf;
use tarn_engine::{Engine, drive, replay};
use tarn_ports::{Journal, JournalError, Record};
use tarn_simulator::{Estimates, Simulation};
use tarn_types::action::{Action, AttemptSpec, Do, Outcome};
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};
use tarn_types::event::{
    AttemptOutcome, Event, Options, Output, PriorInstance, RunError, RunErrorKind, Start,
    Undeclared, Usage, Verify,
};
use tarn_types::hash::Hash;
use tarn_types::history::History;
use tarn_types::id::{DataId, InstanceId, NodeId, TierId, TierRef, TransferId};
use tarn_types::part::{PartClass, PartInfo, Place, StoreKey, Transfer, TransferKind};
use tarn_types::policy::Policy;
use tarn_types::reason::Reason;
use tarn_types::units::SECOND;
use tarn_types::workflow::Workflow;

pub(crate) const MB: u64 = 1_000_000;

/// Records in memory.
#[derive(Default)]
pub(crate) struct Memory(pub(crate) Vec<Record>);

impl Journal for Memory {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.0.extend_from_slice(records);
        Ok(())
    }
}

pub(crate) fn workflow(text: &str) -> Workflow {
    let parsed = tarn_spec::parse("test.toml", text, &PathBuf::from("/w"));
    let mut parsed = parsed.unwrap_or_else(|e| panic!("{:?}", e.problems()));
    parsed.finish_codes(&|_| None);
    parsed.workflow.clone()
}

/// `nodes` nodes on one host, each with `cores` cores and tiers of the given capacities (fast to slow).
pub(crate) fn cluster(nodes: u32, cores: u32, tiers: &[u64]) -> Cluster {
    let tier = |i: usize, capacity: u64| Tier {
        name: ["fast", "slow", "slower"][i].into(),
        root: PathBuf::from("/tier"),
        capacity,
        read: 1000 * MB / (1 + i as u64 * 4),
        write: 1000 * MB / (1 + i as u64 * 4),
        lender: None,
    };
    let node = |i: u32| Node {
        name: format!("node{i}"),
        host: 0,
        cores,
        memory: 1 << 40,
        gpus: 0,
        tiers: tiers.iter().enumerate().map(|(i, c)| tier(i, *c)).collect(),
    };
    Cluster {
        hosts: vec![Host {
            name: "host".into(),
            cores: nodes * cores,
            memory: 1 << 40,
            sockets: Vec::new(),
            draw: Default::default(),
        }],
        nodes: (0..nodes).map(node).collect(),
        external: Link {
            read: 100 * MB,
            write: 100 * MB,
            latency: 0,
            streams: 4,
            emulated: false,
        },
        peer: Link {
            read: 1000 * MB,
            write: 1000 * MB,
            latency: 0,
            streams: 4,
            emulated: false,
        },
    }
}

/// A policy by its text.
pub(crate) fn policy(text: &str) -> Policy {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

pub(crate) fn start(workflow: Workflow, cluster: Cluster, policy: Policy) -> Start {
    Start {
        run: "test-1".into(),
        workspace: "test".into(),
        wall: 0,
        workflow,
        cluster,
        options: Options {
            policy,
            verify: Verify::Copy,
            cache: 0,
            fail_fast: false,
        },
        prior: Vec::<PriorInstance>::new(),
        prior_dest: Vec::new(),
        prior_data: Vec::new(),
        allocation: None,
        sealed: false,
        pinned: Vec::new(),
        set_aside: None,
    }
}

/// A source of `entries` entries of `bytes` each, or of one part.
pub(crate) fn source(entries: Option<u64>, bytes: u64) -> Vec<PartInfo> {
    let part = |seq: u32, class| PartInfo {
        seq,
        class,
        bytes,
        stored: bytes,
        files: 1,
        hash: None,
        key: StoreKey(format!("src.{seq}")),
    };
    match entries {
        None => vec![part(0, PartClass::Whole)],
        Some(n) => (0..n as u32)
            .map(|i| part(i, PartClass::Entry(format!("e{i:03}"))))
            .collect(),
    }
}

/// Steps run for a second and write `bytes`.
pub(crate) fn estimates(bytes: u64) -> Estimates {
    Estimates {
        run_time: Box::new(|_| SECOND),
        output: Box::new(move |_, _| vec![tarn_simulator::SimEntry::file("out", bytes)]),
        block: 1,
        ..Estimates::default()
    }
}

pub(crate) struct SimulatedRun {
    pub(crate) outcome: Outcome,
    pub(crate) records: Vec<Record>,
    pub(crate) sim: Simulation,
}

pub(crate) fn simulate(start: &Start, estimates: Estimates) -> SimulatedRun {
    simulate_in(start, Simulation::new(start, estimates))
}

pub(crate) fn simulate_in(start: &Start, mut sim: Simulation) -> SimulatedRun {
    let mut journal = Memory::default();
    let first = Event::Started(Box::new(start.clone()));
    let outcome = drive(
        &mut Engine::new(),
        &mut sim,
        &mut journal,
        first,
        0,
        &mut |_| {},
    )
    .expect("the loop");
    SimulatedRun {
        outcome,
        records: journal.0,
        sim,
    }
}

impl SimulatedRun {
    pub(crate) fn actions(&self) -> impl Iterator<Item = &Action> {
        self.records.iter().flat_map(|r| &r.actions)
    }

    pub(crate) fn runs(&self) -> Vec<&AttemptSpec> {
        self.actions()
            .filter_map(|a| match &a.what {
                Do::Run(r) => Some(&**r),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn runs_of(&self, step: u32) -> usize {
        self.runs()
            .iter()
            .filter(|r| r.instance.step.0 == step)
            .count()
    }

    /// Bytes that arrived, by kind.
    pub(crate) fn moved(&self, kind: TransferKind) -> u64 {
        let mut history = tarn_types::history::History::new();
        for r in &self.records {
            history.apply(r.now, &r.event, &r.actions);
        }
        history.moved().get(&kind).copied().unwrap_or(0)
    }

    pub(crate) fn reasons(&self) -> impl Iterator<Item = &Reason> {
        self.actions().map(|a| &a.why)
    }

    pub(crate) fn position(&self, test: impl Fn(&Action) -> bool) -> Option<usize> {
        self.actions().position(test)
    }

    pub(crate) fn failure(&self) -> String {
        let message = |r: &Reason| match r {
            Reason::Failed { message } | Reason::GaveUp { message } => Some(message.clone()),
            _ => None,
        };
        self.reasons().find_map(message).unwrap_or_default()
    }

    /// The whole run as text, for the message of a failing test.
    pub(crate) fn trace(&self) -> String {
        let mut history = tarn_types::history::History::new();
        let mut text = String::new();
        for r in &self.records {
            history.apply(r.now, &r.event, &r.actions);
            text += &format!("{:.3} {:.90?}\n", r.now as f64 / 1e9, r.event);
            for a in &r.actions {
                text += &format!(
                    "    {:?}\n      because {}\n",
                    a.what,
                    history.explain(&a.why)
                );
            }
        }
        text
    }

    pub(crate) fn end(&self) -> u64 {
        self.records.last().map_or(0, |r| r.now)
    }
}

pub(crate) fn fast(node: u32) -> TierRef {
    TierRef {
        node: NodeId(node),
        tier: TierId(0),
    }
}

pub(crate) fn data(i: u32) -> DataId {
    DataId(i)
}

pub(crate) fn instance(step: u32, index: u32) -> InstanceId {
    InstanceId {
        step: tarn_types::id::StepId(step),
        index,
    }
}

/// An engine whose events a test writes by hand.
pub(crate) struct Hand {
    pub(crate) engine: Engine,
    now: u64,
}

impl Hand {
    pub(crate) fn begin(s: &Start) -> (Self, Vec<Action>) {
        let mut hand = Self {
            engine: Engine::new(),
            now: 0,
        };
        let actions = hand.step(Event::Started(Box::new(s.clone())));
        (hand, actions)
    }

    /// The decisions after this event, a second after the last one. Evictions take no time.
    pub(crate) fn step(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.now += SECOND;
        self.engine.step(self.now, &event, &mut actions);
        let mut answered = 0;
        while let Some(action) = actions.get(answered) {
            answered += 1;
            if let Do::Evict { part, at, .. } = action.what.clone() {
                let gone = Event::Evicted { part, at };
                self.engine.step(self.now, &gone, &mut actions);
            }
        }
        actions
    }

    /// The time until the engine's next step.
    pub(crate) fn next_step_in(&self) -> Option<u64> {
        Some(self.engine.deadline()? - self.now)
    }

    pub(crate) fn listed(&mut self, of: u32, parts: Vec<PartInfo>) -> Vec<Action> {
        self.step(Event::SourceListed {
            data: data(of),
            parts,
        })
    }

    /// A run commits one whole part of `bytes` as its only output, if it has one.
    pub(crate) fn commits(
        &mut self,
        run: &AttemptSpec,
        made: Option<(u32, u64)>,
        hash: u128,
    ) -> Vec<Action> {
        self.commits_version(run, made.map(|(of, bytes)| (of, 1, bytes)), hash)
    }

    /// A run commits one whole part as this version of its only output.
    pub(crate) fn commits_version(
        &mut self,
        run: &AttemptSpec,
        made: Option<(u32, u32, u64)>,
        hash: u128,
    ) -> Vec<Action> {
        let output = |(of, version, bytes): (u32, u32, u64)| Output {
            data: data(of),
            version,
            parts: vec![(
                PartInfo {
                    hash: Some(Hash(hash)),
                    key: StoreKey(format!("{}.0", run.store)),
                    ..source(None, bytes).remove(0)
                },
                vec![run.nodes[0]],
            )],
        };
        self.ended(
            run,
            AttemptOutcome::Committed {
                outputs: made.into_iter().map(output).collect(),
                undeclared: Undeclared::default(),
            },
        )
    }

    pub(crate) fn fails(&mut self, run: &AttemptSpec, kind: RunErrorKind) -> Vec<Action> {
        self.ended(
            run,
            AttemptOutcome::Failed {
                failure: failure(kind),
                log_tail: String::new(),
                newest: None,
            },
        )
    }

    pub(crate) fn ended(&mut self, run: &AttemptSpec, ended: AttemptOutcome) -> Vec<Action> {
        self.step(Event::Ended {
            instance: run.instance,
            attempt: run.attempt,
            ended,
            usage: Usage::default(),
        })
    }

    pub(crate) fn failed(&mut self, id: TransferId, kind: RunErrorKind) -> Vec<Action> {
        self.step(Event::TransferFailed {
            id,
            failure: failure(kind),
            damaged: None,
        })
    }

    /// A transfer finds the replica damaged that it reads of its part at this place in the order.
    pub(crate) fn finds_damaged(&mut self, t: &Transfer, at: usize) -> Vec<Action> {
        self.step(Event::TransferFailed {
            id: t.id,
            failure: failure(RunErrorKind::Corrupt),
            damaged: Some(t.parts[at].part),
        })
    }

    /// A transfer brings all of its parts.
    pub(crate) fn brought(&mut self, t: &Transfer, bytes: u64) -> Vec<Action> {
        self.step(Event::TransferDone {
            id: t.id,
            bytes,
            hashes: t.parts.iter().map(|_| Hash(1)).collect(),
            stored: t.parts.iter().map(|_| bytes).collect(),
            took: SECOND,
        })
    }
}

fn failure(kind: RunErrorKind) -> RunError {
    RunError {
        kind,
        message: "it is said to".into(),
    }
}

pub(crate) fn runs_in(actions: &[Action]) -> Vec<AttemptSpec> {
    let run = |a: &Action| match &a.what {
        Do::Run(run) => Some((**run).clone()),
        _ => None,
    };
    actions.iter().filter_map(run).collect()
}

pub(crate) fn transfers_in(actions: &[Action]) -> Vec<Transfer> {
    let transfer = |a: &Action| match &a.what {
        Do::Transfer(t) => Some(t.clone()),
        _ => None,
    };
    actions.iter().filter_map(transfer).collect()
}

/// Resumes from these records with all data stored where they record it, and ends well. Returns the actions of the
/// resumption.
pub(crate) fn resumed(s: &Start, estimates: Estimates, records: &[Record]) -> Vec<Action> {
    let (mut engine, seq, now) = replay(records);
    let history = history(records);
    let mut sim = Simulation::new(s, estimates).starting_at(now);
    let mut found = Vec::new();
    for (part, info) in &history.parts {
        for at in history.places(*part).filter(|at| **at != Place::Source) {
            assert!(sim.put(*part, info.clone(), at.clone()));
            found.push((*part, at.clone()));
        }
    }
    let mut journal = Memory::default();
    let first = Event::Resumed {
        found,
        pinned: Vec::new(),
        set_aside: None,
    };
    let outcome = drive(&mut engine, &mut sim, &mut journal, first, seq, &mut |_| {});
    let actions: Vec<Action> = journal.0.iter().flat_map(|r| r.actions.clone()).collect();
    assert_eq!(outcome.expect("the loop"), Outcome::Done, "{actions:?}");
    actions
}

/// The history of these records.
pub(crate) fn history(records: &[Record]) -> History {
    let mut history = History::new();
    for r in records {
        history.apply(r.now, &r.event, &r.actions);
    }
    history
}
