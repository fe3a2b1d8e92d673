//! Totals against a naive count, over random logs: not plausible ones, but every order of facts that a log may hold.

mod common;

use common::{Log, MS, Random, act, info, instance, part, tier_at};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tarn_ports::Record;
use tarn_report::Summary;
use tarn_types::action::{AttemptSpec, Do, NodeReplica};
use tarn_types::event::{AttemptOutcome, Event, Output, RunError, RunErrorKind, Undeclared, Usage};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, TierRef, TransferId};
use tarn_types::part::{
    PartClass, PartMove, PartRef, Place, StoreKey, Transfer, TransferKind, Verify,
};
use tarn_types::reason::Reason;

const KINDS: [TransferKind; 5] = [
    TransferKind::ExternalIn,
    TransferKind::ExternalOut,
    TransferKind::Peer,
    TransferKind::Promote,
    TransferKind::Demote,
];

/// Few parts and places, so that the same ones meet again and again; now and then one that nobody knows.
fn any_part(r: &mut Random) -> PartRef {
    match r.below(10) {
        0 => part(9, 0, 0, 0),
        1..6 => part(0, 0, 0, r.below(3) as u32),
        _ => part(2, 1, r.below(3) as u32, 0),
    }
}

fn any_tier_ref(r: &mut Random) -> TierRef {
    match r.below(10) {
        0 => tier_at(7, 3),
        1..6 => tier_at(0, 0),
        _ => tier_at(r.below(2) as u32, r.below(2) as u32),
    }
}

/// Facts in a random order, ids of unknown nodes and parts included; what ends, has begun.
fn random_log(seed: u64, length: usize) -> Vec<Record> {
    let mut r = Random::new(seed);
    let mut log = Log::default();
    let started = common::shape::start(
        common::shape::workflow("project"),
        common::shape::cluster(2, 2),
    );
    log.add(0, Event::Started(Box::new(started)), vec![]);
    let listed = (0..3)
        .map(|s| info(&format!("src.{s}"), s, PartClass::Whole, r.below(1000)))
        .collect();
    log.add(
        0,
        Event::SourceListed {
            data: DataId(0),
            parts: listed,
        },
        vec![],
    );
    let (mut now, mut transfers, mut running, mut next) = (0, Vec::new(), Vec::new(), 0);
    let mut attempts: BTreeMap<InstanceId, u32> = BTreeMap::new();
    for _ in 0..length {
        now += r.below(3) * MS;
        match r.below(10) {
            0..3 => {
                let count = 1 + r.below(3);
                let moved = |r: &mut Random| PartMove {
                    part: any_part(r),
                    from: Place::Source,
                };
                let parts: Vec<PartMove> = (0..count).map(|_| moved(&mut r)).collect();
                let kind = KINDS[r.below(5) as usize];
                let to = if r.below(4) == 0 {
                    Place::Drained
                } else {
                    Place::Node(any_tier_ref(&mut r))
                };
                let order = Transfer {
                    id: TransferId(next),
                    data: DataId(0),
                    version: 0,
                    parts,
                    to,
                    kind,
                    verify: Verify::None,
                    priority: 0,
                };
                next += 1;
                transfers.push(order.id);
                log.act(now, Do::Transfer(order), Reason::Deliver);
            }
            3 | 4 if !transfers.is_empty() => {
                let id = transfers.swap_remove(r.below(transfers.len() as u64) as usize);
                let failure = RunError {
                    kind: RunErrorKind::Io,
                    message: "it broke".into(),
                };
                let event = if r.below(4) == 0 {
                    Event::TransferFailed {
                        id,
                        failure,
                        damaged: None,
                    }
                } else {
                    Event::TransferDone {
                        id,
                        bytes: r.below(5000),
                        hashes: vec![],
                        stored: vec![],
                        took: r.below(MS),
                    }
                };
                log.add(now, event, vec![]);
            }
            5 | 6 => {
                let id = instance(r.below(3) as u32, r.below(3) as u32);
                if running.iter().any(|(i, _)| *i == id) {
                    continue;
                }
                let attempt = attempts.entry(id).or_default();
                *attempt += 1;
                let held = |r: &mut Random| NodeReplica {
                    part: any_part(r),
                    key: StoreKey("k".into()),
                    tier_ref: any_tier_ref(r),
                };
                let views = (0..2)
                    .map(|_| vec![(0..r.below(4)).map(|_| held(&mut r)).collect()])
                    .collect();
                let run = AttemptSpec {
                    instance: id,
                    attempt: *attempt,
                    item: None,
                    nodes: vec![any_tier_ref(&mut r)],
                    views,
                    identity: Hash::default(),
                    store: "s".into(),
                    reserve: 0,
                    partitions: Vec::new(),
                };
                running.push((id, *attempt));
                log.add(
                    now,
                    Event::Timer,
                    vec![act(Do::Run(Box::new(run)), Reason::Ready)],
                );
            }
            7 | 8 if !running.is_empty() => {
                let (id, attempt) = running.swap_remove(r.below(running.len() as u64) as usize);
                let key = format!("{id}.{attempt}");
                let made = (0..r.below(3)).map(|s| {
                    (
                        info(&key, s as u32, PartClass::Whole, r.below(900)),
                        vec![any_tier_ref(&mut r)],
                    )
                });
                let output = Output {
                    data: DataId(2),
                    version: 1,
                    parts: made.collect(),
                };
                let ended = if r.below(3) == 0 {
                    let failure = RunError {
                        kind: RunErrorKind::Exit,
                        message: "status 1".into(),
                    };
                    AttemptOutcome::Failed {
                        failure,
                        log_tail: String::new(),
                        newest: None,
                    }
                } else {
                    AttemptOutcome::Committed {
                        outputs: vec![output],
                        undeclared: Undeclared::default(),
                    }
                };
                let usage = Usage {
                    wall: r.below(MS),
                    user: r.below(MS),
                    read: r.below(99),
                    ..Usage::default()
                };
                log.add(
                    now,
                    Event::Ended {
                        instance: id,
                        attempt,
                        ended,
                        usage,
                    },
                    vec![],
                );
            }
            _ if r.below(12) == 0 => {
                running.clear();
                transfers.clear();
                let found = (0..r.below(12))
                    .map(|_| (any_part(&mut r), Place::Node(any_tier_ref(&mut r))))
                    .collect();
                log.add(
                    now,
                    Event::Resumed {
                        found,
                        pinned: Vec::new(),
                        set_aside: None,
                    },
                    vec![],
                );
            }
            _ => {
                let gone = Event::Evicted {
                    part: any_part(&mut r),
                    at: Place::Node(any_tier_ref(&mut r)),
                };
                log.add(now, gone, vec![]);
            }
        }
    }
    log.records()
}

/// The expected totals, by looking back through the whole log for every question.
struct Naive<'a>(&'a [Record]);

impl Naive<'_> {
    fn order(&self, id: TransferId) -> Option<&Transfer> {
        self.0
            .iter()
            .flat_map(|r| &r.actions)
            .find_map(|a| match &a.what {
                Do::Transfer(t) if t.id == id => Some(t),
                _ => None,
            })
    }

    fn moved(&self, kind: TransferKind) -> u64 {
        let bytes = self.0.iter().map(|r| match r.event {
            Event::TransferDone { id, bytes, .. }
                if self.order(id).is_some_and(|t| t.kind == kind) =>
            {
                bytes
            }
            _ => 0,
        });
        bytes.sum()
    }

    /// Whether a commit in this record made the part.
    fn makes(record: &Record, part: PartRef) -> Option<u64> {
        let Event::Ended {
            instance,
            ended: AttemptOutcome::Committed { outputs, .. },
            ..
        } = &record.event
        else {
            return None;
        };
        let made = outputs.iter().filter(|o| {
            (o.data, o.version, instance.index) == (part.data, part.version, part.origin)
        });
        made.flat_map(|o| &o.parts)
            .find(|(i, _)| i.seq == part.seq)
            .map(|(i, _)| i.bytes)
    }

    /// Bytes of a part as known at record `at`.
    fn bytes(&self, part: PartRef, at: usize) -> u64 {
        let known = |r: &Record| match &r.event {
            Event::SourceListed { data, parts }
                if (*data, 0, 0) == (part.data, part.version, part.origin) =>
            {
                parts.iter().find(|i| i.seq == part.seq).map(|i| i.bytes)
            }
            _ => Self::makes(r, part),
        };
        self.0[..=at].iter().rev().find_map(known).unwrap_or(0)
    }

    /// The record in which the replica that is there at record `at` came by a transfer.
    fn arrival(&self, part: PartRef, tier_ref: TierRef, at: usize) -> Option<usize> {
        let place = Place::Node(tier_ref);
        for (n, record) in self.0[..=at].iter().enumerate().rev() {
            match &record.event {
                Event::TransferDone { id, .. } => {
                    let order = self.order(*id);
                    if order
                        .is_some_and(|t| t.to == place && t.parts.iter().any(|p| p.part == part))
                    {
                        return Some(n);
                    }
                }
                Event::Evicted { part: p, at } if (*p, at) == (part, &place) => return None,
                Event::Resumed { found, .. } if !found.contains(&(part, place.clone())) => {
                    return None;
                }
                _ if Self::makes(record, part).is_some() => return None,
                _ => {}
            }
        }
        None
    }

    /// (record of the run, record of the commit) of every attempt that committed, in the order of commits.
    fn commits(&self) -> Vec<(usize, &AttemptSpec)> {
        let mut commits = Vec::new();
        for record in self.0 {
            let Event::Ended {
                instance,
                attempt,
                ended: AttemptOutcome::Committed { .. },
                ..
            } = &record.event
            else {
                continue;
            };
            let run = self.0.iter().enumerate().find_map(|(n, r)| {
                r.actions.iter().find_map(|a| match &a.what {
                    Do::Run(run) if (run.instance, run.attempt) == (*instance, *attempt) => {
                        Some((n, &**run))
                    }
                    _ => None,
                })
            });
            commits.extend(run);
        }
        commits
    }

    /// (bytes read, bytes of them retained).
    fn inputs(&self) -> (u64, u64) {
        let (mut read, mut retained, mut paid) = (0, 0, BTreeSet::new());
        for (at, run) in self.commits() {
            for held in run.views.iter().flatten().flatten() {
                let bytes = self.bytes(held.part, at);
                read += bytes;
                let first = self
                    .arrival(held.part, held.tier_ref, at)
                    .is_some_and(|n| paid.insert((n, held.part)));
                retained += if first { 0 } else { bytes };
            }
        }
        (read, retained)
    }

    fn outputs(&self) -> u64 {
        let made = self.0.iter().map(|r| match &r.event {
            Event::Ended {
                ended: AttemptOutcome::Committed { outputs, .. },
                ..
            } => outputs
                .iter()
                .flat_map(|o| &o.parts)
                .map(|(i, _)| i.bytes)
                .sum(),
            _ => 0,
        });
        made.sum()
    }

    fn usage(&self, of: impl Fn(&Usage) -> u64) -> u64 {
        let used = self.0.iter().map(|r| match &r.event {
            Event::Ended { usage, .. } => of(usage),
            _ => 0,
        });
        used.sum()
    }
}

fn same(records: &[Record]) -> Result<(), TestCaseError> {
    let summary = Summary::of(records).expect("it was started");
    let naive = Naive(records);
    let b = &summary.bytes;
    let moved = [b.external_in, b.external_out, b.peer, b.promote, b.demote];
    prop_assert_eq!(moved, KINDS.map(|k| naive.moved(k)));
    let (read, retained) = naive.inputs();
    prop_assert_eq!(summary.stage_through.external_in, read);
    prop_assert_eq!(b.retained, retained);
    prop_assert_eq!(summary.stage_through.external_out, naive.outputs());
    prop_assert_eq!(
        summary.steps.iter().map(|s| s.user_ns).sum::<u64>(),
        naive.usage(|u| u.user)
    );
    prop_assert_eq!(
        summary.steps.iter().map(|s| s.read).sum::<u64>(),
        naive.usage(|u| u.read)
    );
    prop_assert_eq!(
        summary.steps.iter().map(|s| s.retained).sum::<u64>(),
        b.retained
    );
    prop_assert_eq!(summary.steps.iter().map(|s| s.input).sum::<u64>(), read);
    for node in &summary.nodes {
        prop_assert!(node.busy_ns <= summary.makespan_ns && node.busy_ns <= node.core_busy_ns);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn totals_are_what_counting_says(seed: u64, length in 1usize..150) {
        same(&random_log(seed, length))?;
    }

    #[test]
    fn plausible_logs_add_up(seed: u64, tiles in 1u32..12, nodes in 2u32..4) {
        let records = common::mosaic::mosaic(seed, tiles, nodes, 1);
        same(&records)?;
        let summary = Summary::of(&records).expect("it was started");
        prop_assert_eq!(summary.instances.run, u64::from(3 * tiles + 3));
        prop_assert_eq!((summary.instances.reused, summary.transfers.open), (1, 0));
        prop_assert!(summary.bytes.external_in < summary.stage_through.external_in);
    }

    #[test]
    fn nothing_panics_on_a_log_cut_anywhere(seed: u64, cut in 0usize..150) {
        let mut records = random_log(seed, 150);
        records.truncate(cut);
        let started = !records.is_empty();
        prop_assert_eq!(Summary::of(&records).is_ok(), started);
        prop_assert_eq!(tarn_report::html(&records, &tarn_report::PageLinks::default()).is_ok(), started);
        prop_assert_eq!(tarn_report::status(&records, 5).is_ok(), started);
        prop_assert_eq!(tarn_report::why(&records, "").is_ok(), started);
    }
}
