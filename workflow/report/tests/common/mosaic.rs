//! The scheduler that makes the log of a mosaic.

use super::shape::{cluster, start, workflow};
use super::{Log, MIB, MS, Random, info, instance, part, tier_at, tier_ref};
use std::collections::{BTreeMap, BTreeSet};
use tarn_ports::Record;
use tarn_types::action::{AttemptSpec, Do, Outcome, Subject};
use tarn_types::event::{AttemptOutcome, Event, Output, RunError, RunErrorKind, Undeclared, Usage};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, NodeId, TransferId};
use tarn_types::part::{
    PartClass, PartInfo, PartMove, PartRef, Place, Transfer, TransferKind, Verify,
};
use tarn_types::reason::Reason;
use tarn_types::units::Time;

struct Node {
    cores: Vec<Time>,
    held: BTreeSet<PartRef>,
}

/// The scheduler: first-fit by when data and a core are there.
struct Mosaic {
    log: Log,
    random: Random,
    nodes: Vec<Node>,
    parts: BTreeMap<PartRef, PartInfo>,
    ready: BTreeMap<PartRef, Time>,
    link_free: Time,
    next_transfer: u64,
    failing: Option<InstanceId>,
}

/// A step of the mosaic: the cost and the output of one instance.
struct Work {
    step: u32,
    run: u64,
    makes: Vec<(u32, u64)>,
}

impl Mosaic {
    fn source_or_peer(&mut self, part: PartRef, node: u32, id: InstanceId, now: Time) -> Time {
        let there = self.ready.get(&part).copied().unwrap_or(0).max(now);
        if !self.nodes[node as usize].held.insert(part) {
            return there;
        }
        let bytes = self.parts[&part].bytes;
        let holder = (0..self.nodes.len() as u32)
            .find(|n| *n != node && self.nodes[*n as usize].held.contains(&part));
        let (from, kind, why, began, took) = match holder {
            Some(from) => {
                let why = Reason::FetchPeer {
                    instance: id,
                    from: NodeId(from),
                };
                (
                    Place::Node(tier_ref(from)),
                    TransferKind::Peer,
                    why,
                    there,
                    bytes / 3 + MS,
                )
            }
            None => {
                let began = self.link_free.max(there);
                self.link_free = began + bytes * 5 + 2 * MS;
                (
                    Place::Source,
                    TransferKind::ExternalIn,
                    Reason::ReadExternal { instance: id },
                    began,
                    bytes * 5 + 2 * MS,
                )
            }
        };
        self.transfer(
            part,
            from,
            Place::Node(tier_ref(node)),
            kind,
            why,
            (there, began, took),
        );
        began + took
    }

    fn transfer(
        &mut self,
        part: PartRef,
        from: Place,
        to: Place,
        kind: TransferKind,
        why: Reason,
        at: (Time, Time, u64),
    ) {
        let (ordered, began, took) = at;
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        let info = self.parts[&part].clone();
        let order = Transfer {
            id,
            data: part.data,
            version: part.version,
            parts: vec![PartMove { part, from }],
            to,
            kind,
            verify: Verify::Copy,
            priority: 1,
        };
        self.log.act(ordered, Do::Transfer(order), why);
        let done = Event::TransferDone {
            id,
            bytes: info.bytes,
            hashes: info.hash.into_iter().collect(),
            stored: vec![info.stored],
            took,
        };
        self.log.add(began + took, done, vec![]);
    }

    /// Runs one instance; returns when it has committed.
    fn run(&mut self, work: &Work, index: u32, item: Option<&str>, inputs: &[PartRef]) -> Time {
        let id = instance(work.step, index);
        let known = inputs
            .iter()
            .filter_map(|p| self.ready.get(p))
            .max()
            .copied()
            .unwrap_or(0);
        let local = |n: &Node| {
            inputs
                .iter()
                .filter(|p| n.held.contains(p))
                .map(|p| self.parts[p].bytes)
                .sum::<u64>()
        };
        let score = |(at, n): (usize, &Node)| {
            let free = n.cores.iter().min().copied().unwrap_or(0).max(known);
            let all: u64 = inputs.iter().map(|p| self.parts[p].bytes).sum();
            (free + (all - local(n)), at as u32)
        };
        let (_, node) = self
            .nodes
            .iter()
            .enumerate()
            .map(score)
            .min()
            .expect("there are nodes");
        let home = &self.nodes[node as usize];
        let core = (0..home.cores.len())
            .min_by_key(|c| home.cores[*c])
            .expect("a node has cores");
        let free = home.cores[core];
        let assigned = known.max(free.saturating_sub(900 * MS));
        let (have, all) = (
            local(home),
            inputs.iter().map(|p| self.parts[p].bytes).sum::<u64>(),
        );
        let why = Reason::EarliestEnd {
            node: NodeId(node),
            free_in: free.saturating_sub(assigned),
            data_in: (all - have) * 5,
            missing: all - have,
            local: have,
            thriftier: false,
            next: Some((
                NodeId((node + 1) % self.nodes.len() as u32),
                self.random.about(300 * MS),
            )),
        };
        let assign = Do::Assign {
            instance: id,
            nodes: vec![tier_ref(node)],
            reserve: 64 * MIB,
            end: 0,
        };
        self.log.act(assigned, assign, why);
        let there = inputs
            .iter()
            .map(|p| self.source_or_peer(*p, node, id, assigned))
            .max()
            .unwrap_or(assigned);
        let mut begin = there.max(free);
        if begin > there + 50 * MS {
            let wait = Reason::WaitForCores {
                node: NodeId(node),
                free_in: begin - there,
            };
            self.log.act(
                there,
                Do::Note {
                    about: Subject::Instance(id),
                },
                wait,
            );
        }
        if self.failing == Some(id) {
            begin = self.fail(id, node, item, inputs, begin);
        }
        let attempt = if self.failing == Some(id) { 2 } else { 1 };
        self.start(id, attempt, node, item, inputs, begin);
        let end = self.commit(work, id, attempt, node, item, begin);
        self.nodes[node as usize].cores[core] = end;
        end
    }

    fn start(
        &mut self,
        id: InstanceId,
        attempt: u32,
        node: u32,
        item: Option<&str>,
        inputs: &[PartRef],
        at: Time,
    ) {
        let held = |p: &PartRef| tarn_types::action::NodeReplica {
            part: *p,
            key: self.parts[p].key.clone(),
            tier_ref: tier_ref(node),
        };
        let run = AttemptSpec {
            instance: id,
            attempt,
            item: item.map(str::to_string),
            nodes: vec![tier_ref(node)],
            views: vec![vec![inputs.iter().map(held).collect()], vec![]],
            identity: Hash::of(format!("{id}").as_bytes()),
            store: format!("{id}.{attempt}"),
            reserve: 64 * MIB,
            partitions: Vec::new(),
        };
        let why = if attempt > 1 {
            Reason::Retry { attempt, of: 3 }
        } else {
            Reason::Ready
        };
        self.log.act(at, Do::Run(Box::new(run)), why);
    }

    fn fail(
        &mut self,
        id: InstanceId,
        node: u32,
        item: Option<&str>,
        inputs: &[PartRef],
        begin: Time,
    ) -> Time {
        self.start(id, 1, node, item, inputs, begin);
        let failure = RunError {
            kind: RunErrorKind::Exit,
            message: "the command ended with status 2; its log is steps/project.7.1.log".into(),
        };
        let log_tail = "[struct stat=\"OK\", module=\"mProject\"]\nreading tile-007.fits\n\
                        mProject: cannot open template.hdr: <no such file> & giving up\n";
        let usage = Usage {
            wall: 180 * MS,
            user: 90 * MS,
            system: 20 * MS,
            ..Usage::default()
        };
        let ended = AttemptOutcome::Failed {
            failure,
            log_tail: log_tail.into(),
            newest: None,
        };
        self.log.add(
            begin + 190 * MS,
            Event::Ended {
                instance: id,
                attempt: 1,
                ended,
                usage,
            },
            vec![],
        );
        begin + 240 * MS
    }

    fn commit(
        &mut self,
        work: &Work,
        id: InstanceId,
        attempt: u32,
        node: u32,
        item: Option<&str>,
        begin: Time,
    ) -> Time {
        let wall = self.random.about(work.run);
        let user = wall / 10 * (5 + self.random.below(4));
        let usage = Usage {
            wall,
            user,
            system: wall / 20,
            read: self.random.about(30 * MIB),
            written: work.makes.iter().map(|m| m.1).sum(),
            memory: self.random.about(90 * MIB),
            prepare: 3 * MS,
            commit: self.random.about(18 * MS),
            energy: None,
        };
        let end = begin + wall + usage.prepare + usage.commit + MS;
        let mut outputs = Vec::new();
        for (data, size) in &work.makes {
            let bytes = self.random.about(*size);
            let class = item.map_or(PartClass::Whole, |i| PartClass::Entry(i.into()));
            let made = info(&format!("{id}.{data}.{attempt}"), 0, class, bytes);
            let at = part(*data, 1, id.index, 0);
            self.parts.insert(at, made.clone());
            self.ready.insert(at, end);
            self.nodes[node as usize].held.insert(at);
            outputs.push(Output {
                data: DataId(*data),
                version: 1,
                parts: vec![(made, vec![tier_ref(node)])],
            });
        }
        let ended = AttemptOutcome::Committed {
            outputs,
            undeclared: Undeclared::default(),
        };
        self.log.add(
            end,
            Event::Ended {
                instance: id,
                attempt,
                ended,
                usage,
            },
            vec![],
        );
        end
    }

    fn evict_all(&mut self, data: u32, at: Time) {
        let parts: Vec<PartRef> = self
            .parts
            .keys()
            .filter(|p| p.data == DataId(data))
            .copied()
            .collect();
        for node in 0..self.nodes.len() as u32 {
            for part in &parts {
                if self.nodes[node as usize].held.remove(part) {
                    let (key, place) = (self.parts[part].key.clone(), Place::Node(tier_ref(node)));
                    self.log.act(
                        at,
                        Do::Evict {
                            part: *part,
                            key,
                            at: place.clone(),
                        },
                        Reason::NotNeeded,
                    );
                    self.log.add(
                        at + MS,
                        Event::Evicted {
                            part: *part,
                            at: place,
                        },
                        vec![],
                    );
                }
            }
        }
    }

    fn list(&mut self, data: u32, parts: Vec<PartInfo>) {
        for p in &parts {
            self.parts.insert(part(data, 0, 0, p.seq), p.clone());
            self.ready.insert(part(data, 0, 0, p.seq), 20 * MS);
        }
        self.log
            .act(0, Do::List { data: DataId(data) }, Reason::Needed);
        self.log.add(
            20 * MS,
            Event::SourceListed {
                data: DataId(data),
                parts,
            },
            vec![],
        );
    }
}

/// The log of a finished mosaic of `tiles` tiles on `nodes` nodes of `cores` cores.
pub(crate) fn mosaic(seed: u64, tiles: u32, nodes: u32, cores: u32) -> Vec<Record> {
    mosaic_named(seed, tiles, nodes, cores, "project")
}

/// As [`mosaic`], with a name of one's own for the first step.
pub(crate) fn mosaic_named(
    seed: u64,
    tiles: u32,
    nodes: u32,
    cores: u32,
    first: &str,
) -> Vec<Record> {
    let mut m = Mosaic {
        log: Log::default(),
        random: Random::new(seed),
        nodes: (0..nodes)
            .map(|_| Node {
                cores: vec![0; cores as usize],
                held: BTreeSet::new(),
            })
            .collect(),
        parts: BTreeMap::new(),
        ready: BTreeMap::new(),
        link_free: 0,
        next_transfer: 0,
        failing: Some(instance(0, 7.min(tiles - 1))),
    };
    let started = start(workflow(first), cluster(nodes, cores));
    m.log.add(0, Event::Started(Box::new(started)), vec![]);
    let names: Vec<String> = (0..tiles).map(|t| format!("tile-{t:03}.fits")).collect();
    let raw = (0..).zip(&names).map(|(seq, name)| {
        let bytes = m.random.about(12 * MIB);
        info(
            &format!("raw.src.{seq}"),
            seq,
            PartClass::Entry(name.clone()),
            bytes,
        )
    });
    let raw = raw.collect();
    m.list(0, raw);
    m.list(1, vec![info("header.src", 0, PartClass::Whole, 4000)]);
    m.log.act(
        30 * MS,
        Do::Reuse {
            instance: instance(6, 0),
            prior: 0,
        },
        Reason::Unchanged,
    );
    let header = part(1, 0, 0, 0);
    let end = stages(&mut m, &names, header);
    pressure(&mut m, end);
    m.log.act(
        end,
        Do::Finish {
            outcome: Outcome::Done,
        },
        Reason::AllDone,
    );
    m.log.records()
}

/// The stages of the mosaic; returns when the last result is delivered.
fn stages(m: &mut Mosaic, names: &[String], header: PartRef) -> Time {
    let tiles = names.len() as u32;
    let each = |m: &mut Mosaic, work: &Work, inputs: &dyn Fn(u32) -> Vec<PartRef>| {
        let ends = (0..tiles).map(|t| m.run(work, t, Some(&names[t as usize]), &inputs(t)));
        ends.max().unwrap_or(0)
    };
    let project = Work {
        step: 0,
        run: 700 * MS,
        makes: vec![(2, 25 * MIB)],
    };
    let projected = each(m, &project, &|t| vec![part(0, 0, 0, t), header]);
    m.evict_all(0, projected + 5 * MS);
    let differ = Work {
        step: 1,
        run: 250 * MS,
        makes: vec![(3, 4 * MIB)],
    };
    each(m, &differ, &|t| {
        vec![part(2, 1, t, 0), part(2, 1, (t + 1) % tiles, 0)]
    });
    let model = Work {
        step: 2,
        run: 600 * MS,
        makes: vec![(4, MIB / 4)],
    };
    let all: Vec<PartRef> = (0..tiles).map(|t| part(3, 1, t, 0)).collect();
    let modelled = m.run(&model, 0, None, &all);
    m.evict_all(3, modelled + 5 * MS);
    let correct = Work {
        step: 3,
        run: 350 * MS,
        makes: vec![(5, 25 * MIB)],
    };
    let corrected = each(m, &correct, &|t| vec![part(2, 1, t, 0), part(4, 1, 0, 0)]);
    m.evict_all(2, corrected + 5 * MS);
    let add = Work {
        step: 4,
        run: 1600 * MS,
        makes: vec![(6, 160 * MIB)],
    };
    let all: Vec<PartRef> = (0..tiles)
        .map(|t| part(5, 1, t, 0))
        .chain([header])
        .collect();
    let added = m.run(&add, 0, None, &all);
    m.evict_all(5, added + 5 * MS);
    let view = Work {
        step: 5,
        run: 500 * MS,
        makes: vec![(7, 3 * MIB)],
    };
    let viewed = m.run(&view, 0, None, &[part(6, 1, 0, 0)]);
    let mosaic = deliver(m, part(6, 1, 0, 0), "/results/mosaic", viewed);
    deliver(m, part(7, 1, 0, 0), "/results/picture", mosaic)
}

fn deliver(m: &mut Mosaic, part: PartRef, dest: &str, at: Time) -> Time {
    let holder = (0..m.nodes.len() as u32).find(|n| m.nodes[*n as usize].held.contains(&part));
    let from = Place::Node(tier_ref(holder.unwrap_or(0)));
    let took = m.parts[&part].bytes * 5;
    let to = Place::External(dest.into());
    m.transfer(
        part,
        from,
        to,
        TransferKind::ExternalOut,
        Reason::Deliver,
        (at, at, took),
    );
    at + took
}

/// A tier that ran full in the middle: it waited, demoted, and got more space.
fn pressure(m: &mut Mosaic, end: Time) {
    let at = end / 2;
    let (full, want) = (tier_ref(1), 48 * MIB);
    let wait = Reason::WaitForSpace {
        tier_ref: full,
        want,
        free: 3 * MIB,
    };
    for n in 0..4 {
        m.log.act(
            at + n * MS,
            Do::Note {
                about: Subject::Tier(full),
            },
            wait.clone(),
        );
    }
    let held = m.parts.keys().filter(|p| p.data == DataId(2));
    let part = held
        .min_by_key(|p| p.origin)
        .copied()
        .expect("tiles were projected");
    let demote = Reason::DemoteForSpace {
        tier_ref: full,
        want,
        free: 3 * MIB,
    };
    let times = (at + 5 * MS, at + 5 * MS, 60 * MS);
    m.transfer(
        part,
        Place::Node(full),
        Place::Node(tier_at(1, 1)),
        TransferKind::Demote,
        demote,
        times,
    );
    let gone = Do::Evict {
        part,
        key: m.parts[&part].key.clone(),
        at: Place::Node(full),
    };
    m.log.act(
        at + 66 * MS,
        gone,
        Reason::MovedAway {
            transfer: TransferId(m.next_transfer - 1),
        },
    );
    m.log.add(
        at + 67 * MS,
        Event::Evicted {
            part,
            at: Place::Node(full),
        },
        vec![],
    );
    m.log.add(
        at + 80 * MS,
        Event::Capacity {
            tier_ref: full,
            bytes: 1280 * MIB,
        },
        vec![],
    );
}
