//! An emulated site: nodes that carry out their orders, sooner or later or not at all.

mod results;

pub(crate) use results::refused;
use results::{done, proof_of, unreachable};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::*;
use tarn_site::{Config, Site, SiteRequest, SiteServiceAction, SiteServiceEvent, Token};
use tarn_types::hash::Hash;
use tarn_types::id::DataId;
use tarn_types::pattern::ScatterRule;
use tarn_types::units::{SECOND, Time};
use tarn_types::workflow::{
    Dataset, DatasetUse, Distribution, Keep, OnFailure, Role, Step, VersionPartitioning, Workflow,
};

pub(crate) const ALICE: Uid = 1000;
pub(crate) const BOB: Uid = 1001;
pub(crate) const CAROL: Uid = 1002;
/// Alice and Bob are in it.
pub(crate) const PROJECT: Gid = 500;

/// A user's groups.
pub(crate) fn groups(user: Uid) -> Vec<Gid> {
    match user {
        ALICE | BOB => vec![user, PROJECT],
        _ => vec![user],
    }
}

/// Which works.
pub(crate) type Works = fn(&Work) -> bool;

/// The content and state of a node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) parts: BTreeMap<Part, Proof>,
    /// Of a world whose stores have names: the stores of each.
    pub(crate) places: BTreeMap<Part, BTreeSet<String>>,
    /// Stores that are not mounted.
    pub(crate) away: BTreeSet<String>,
    /// The store to which each job writes.
    pub(crate) written: BTreeMap<(SlurmJobId, String), String>,
    pub(crate) jobs: BTreeSet<(Uid, SlurmJobId)>,
    /// In which store each is.
    pub(crate) checkpoints: BTreeMap<(Uid, CheckpointFolder), String>,
    pub(crate) admitted: BTreeMap<SlurmJobId, Vec<Mount>>,
    /// The jobs for which it exports pieces of partitions, with the others' addresses.
    pub(crate) shared: BTreeMap<SlurmJobId, Vec<WorkerAddress>>,
    /// Of its worker.
    pub(crate) port: u16,
    pub(crate) is_up: bool,
    /// The owners whose content it does not report in full.
    pub(crate) partial: Vec<Owner>,
}

/// The site and its nodes; `log` is the log that the controller would have written.
pub(crate) struct World {
    pub(crate) site: Site,
    pub(crate) now: Time,
    pub(crate) log: Vec<(Time, SiteServiceEvent)>,
    pub(crate) nodes: BTreeMap<String, Store>,
    /// Orders that were stopped.
    pub(crate) stops: usize,
    /// Orders that no node has done yet.
    pub(crate) queue: Vec<(String, u64, NodeOrder)>,
    pub(crate) answers: BTreeMap<Token, ControllerReply>,
    /// The last advice to each job.
    pub(crate) advices: BTreeMap<SlurmJobId, PlacementAdvice>,
    next: Token,
    /// The notifications about owners' data.
    pub(crate) notifications: Vec<(Owner, String)>,
    /// Bytes that were read outside and written there, by path.
    pub(crate) read: BTreeMap<PathBuf, u64>,
    /// How often sources were changed.
    pub(crate) changes: BTreeMap<PathBuf, u64>,
    /// Bytes of memory that a job was given on a node last.
    pub(crate) memory: BTreeMap<(String, SlurmJobId), u64>,
    pub(crate) sent: BTreeMap<PathBuf, Vec<Part>>,
    /// The nodes that brought what a program had left in memory to its checkpoints.
    pub(crate) destaged: Vec<String>,
    /// The ranks that a node was given last of a dataset, and the parts that they came from.
    pub(crate) slices: BTreeMap<(String, String), (Slice, Vec<Part>)>,
    /// The owners of objects in an object store.
    pub(crate) owners: BTreeMap<PathBuf, String>,
    /// Bytes of each source and of each output.
    pub(crate) size: u64,
    pub(crate) capacity: u64,
    /// The stores of each node, fast to slow, and whether they outlive a loss of power; none: one without a name.
    pub(crate) levels: Vec<(&'static str, u64, bool)>,
    /// Moves that were done: node, dataset, from, to.
    pub(crate) moves: Vec<(String, String, String, String)>,
    /// The worker's error for the next work of a kind, in place of doing it.
    pub(crate) refuses: Option<(Works, Code)>,
}

pub(crate) fn uses(role: Role, at: u32, distribution: Distribution) -> DatasetUse {
    DatasetUse {
        data: DataId(at),
        role,
        distribution,
        entry: None,
        reads: None,
        makes: None,
    }
}

pub(crate) fn dataset(name: &str) -> Dataset {
    Dataset {
        name: name.into(),
        source: None,
        dest: None,
        size: None,
        scatter: None,
        keep: Keep::UntilConsumed,
        copies: 1,
        on_failure: OnFailure::Discard,
        tier: None,
        encrypt: false,
        of: None,
        partition: VersionPartitioning::Whole,
    }
}

/// A job's script: which datasets, in what role.
pub(crate) fn script(
    workflow: &str,
    nodes: u32,
    data: Vec<(Role, Distribution, Dataset)>,
) -> JobSubmission {
    let step = Step {
        name: "step".into(),
        run: String::new(),
        prelude: None,
        shell: None,
        shared_tmp: false,
        env: BTreeMap::new(),
        nodes,
        tasks: nodes,
        cores: 1,
        memory: 0,
        gpus: 0,
        time: None,
        retries: 0,
        restart: None,
        tier: None,
        after: Vec::new(),
        foreach: None,
        uses: (0..)
            .zip(&data)
            .map(|(at, (role, how, _))| uses(*role, at, *how))
            .collect(),
        code: Hash::default(),
    };
    JobSubmission {
        user: ALICE,
        group: 100,
        groups: vec![100],
        owners: BTreeMap::new(),
        is_alone: false,
        chain: None,
        excludes: Some(Vec::new()),
        has_wish: false,
        workflow: Workflow {
            name: workflow.into(),
            external: Some("/lustre/rescue".into()),
            erase: false,
            partitions: Vec::new(),
            folder: "/home/alice".into(),
            data: data.into_iter().map(|(_, _, d)| d).collect(),
            steps: vec![step],
        },
    }
}

pub(crate) fn rule() -> ScatterRule {
    ScatterRule::new("p{rank}").unwrap()
}

impl World {
    pub(crate) fn new(nodes: usize, config: Config) -> Self {
        let mut world = Self {
            site: Site::new(config),
            now: SECOND,
            log: Vec::new(),
            nodes: BTreeMap::new(),
            stops: 0,
            queue: Vec::new(),
            answers: BTreeMap::new(),
            advices: BTreeMap::new(),
            next: 0,
            notifications: Vec::new(),
            read: BTreeMap::new(),
            changes: BTreeMap::new(),
            memory: BTreeMap::new(),
            sent: BTreeMap::new(),
            destaged: Vec::new(),
            slices: BTreeMap::new(),
            owners: BTreeMap::new(),
            size: 1 << 20,
            capacity: 1 << 30,
            levels: Vec::new(),
            moves: Vec::new(),
            refuses: None,
        };
        world.event(SiteServiceEvent::began(1));
        for at in 1..=nodes {
            let name = format!("n{at}");
            world.nodes.insert(name.clone(), Store::default());
            world.open(&name);
        }
        world
    }

    pub(crate) fn event(&mut self, event: SiteServiceEvent) {
        // The event as the log has it is the one applied.
        let text = serde_json::to_string(&event).unwrap();
        let event: SiteServiceEvent = serde_json::from_str(&text).unwrap();
        self.log.push((self.now, event.clone()));
        let mut actions = Vec::new();
        self.site.step(self.now, event, &mut actions);
        for action in actions {
            match action {
                SiteServiceAction::Order {
                    node,
                    number,
                    order,
                } => match order {
                    NodeOrder::Stop(stopped) => {
                        self.stops += 1;
                        self.queue.retain(|(_, number, _)| *number != stopped);
                        self.queue.push((node, number, order));
                    }
                    order => self.queue.push((node, number, order)),
                },
                SiteServiceAction::Notify { owner, text } => self.notifications.push((owner, text)),
                SiteServiceAction::Answer { token, reply } => {
                    let before = self.answers.insert(token, reply);
                    assert!(before.is_none(), "answered twice");
                }
            }
        }
    }

    pub(crate) fn open(&mut self, name: &str) {
        let store = self.nodes.get_mut(name).unwrap();
        store.is_up = true;
        let user = |part: &Part| match part.owner {
            Owner::User(uid) => uid,
            // Any member's worker may have looked.
            Owner::Project(_) => BOB,
        };
        let lone = BTreeSet::from([String::new()]);
        let parts = store.parts.iter().flat_map(|(part, proof)| {
            let places = store.places.get(part).unwrap_or(&lone).iter();
            let places = places.filter(|place| !store.away.contains(*place));
            let holding = |place: &String| Holding {
                store: place.clone(),
                is_behind: false,
                held: StoreContent::Part(part.clone()),
                proof: Some(proof.clone()),
                stored: proof.bytes,
            };
            let holdings = places.map(|place| (user(part), holding(place)));
            holdings.collect::<Vec<_>>()
        });
        let jobs = store.jobs.iter().map(|(user, job)| {
            let holding = Holding {
                store: String::new(),
                is_behind: false,
                held: StoreContent::Job(*job),
                proof: None,
                stored: 0,
            };
            (*user, holding)
        });
        let checkpoints = store.checkpoints.iter().map(|((user, folder), place)| {
            let holding = Holding {
                store: place.clone(),
                is_behind: false,
                held: StoreContent::Checkpoints(folder.clone()),
                proof: None,
                stored: 0,
            };
            (*user, holding)
        });
        let holds = parts.chain(jobs).chain(checkpoints).collect();
        let jobs = store.admitted.keys().copied().collect();
        let capacity = |bytes, persistent| StoreCapacity {
            root: "/scm/tarn".into(),
            bytes,
            free: bytes,
            persistent,
        };
        let stores =
            self.levels.iter().map(
                |(name, bytes, persistent)| tarn_proto::site::NodeStoreReport {
                    name: (*name).into(),
                    capacity: capacity(*bytes, *persistent),
                    is_away: store.away.contains(*name),
                },
            );
        let event = SiteServiceEvent::Opened {
            node: name.into(),
            stores: stores.collect(),
            capacity: capacity(self.capacity, true),
            holds,
            partial: store.partial.clone(),
            jobs,
        };
        self.event(event);
    }

    pub(crate) fn close(&mut self, name: &str) {
        self.nodes.get_mut(name).unwrap().is_up = false;
        self.queue.retain(|(node, _, _)| node != name);
        self.event(SiteServiceEvent::Closed { node: name.into() });
    }

    pub(crate) fn ask_as(&mut self, user: Uid, trusted: bool, ask: ControllerRequest) -> Token {
        self.next += 1;
        let token = self.next;
        self.event(SiteServiceEvent::Requested(SiteRequest {
            token,
            user,
            groups: groups(user),
            trusted,
            ask,
        }));
        token
    }

    pub(crate) fn stage(&mut self, job: SlurmJobId, stage: Stage) -> Token {
        self.ask_as(0, true, ControllerRequest::Stage(Staging { job, stage }))
    }

    /// A stage, and all that nodes do for it.
    pub(crate) fn staged(&mut self, job: SlurmJobId, stage: Stage) -> ControllerReply {
        let arrives = matches!(stage, Stage::Setup(_));
        let token = self.stage(job, stage);
        self.settle();
        if arrives && !self.answers.contains_key(&token) {
            self.now += SECOND;
            self.list(&[], &[]);
            self.settle();
        }
        match self.answers.remove(&token).expect("an answer") {
            ControllerReply::Advice(advice) if arrives => {
                self.advices.insert(job, advice);
                ControllerReply::Done
            }
            ControllerReply::Advices(advices) => {
                self.advices.extend(advices);
                ControllerReply::Done
            }
            reply => reply,
        }
    }

    /// Slurm's queue is read, and has these jobs of Alice's that the site does not know; it lacks others that it had.
    pub(crate) fn list(&mut self, unknown: &[SlurmJobId], gone: &[SlurmJobId]) {
        let unknown = unknown.iter().copied().collect();
        self.event(SiteServiceEvent::Listed {
            began: self.now,
            unknown: [(ALICE, unknown)].into(),
            gone: gone.iter().copied().collect(),
        });
    }

    /// A job is found in Slurm's queue.
    pub(crate) fn find(&mut self, job: SlurmJobId, script: JobSubmission) {
        let submission = Box::new(script);
        self.event(SiteServiceEvent::Found { job, submission });
    }

    pub(crate) fn pre_run(&mut self, job: SlurmJobId, nodes: &[&str]) -> ControllerReply {
        let nodes = nodes.iter().map(|n| (*n).to_owned()).collect();
        self.staged(job, Stage::PreRun(nodes))
    }

    /// The whole way of a job that ends well.
    pub(crate) fn whole(&mut self, job: SlurmJobId, script: JobSubmission, nodes: &[&str]) {
        assert_eq!(
            self.staged(job, Stage::Setup(Box::new(script))),
            ControllerReply::Done
        );
        assert_eq!(self.staged(job, Stage::DataIn), ControllerReply::Done);
        assert_eq!(self.pre_run(job, nodes), ControllerReply::Done);
        for stage in [Stage::PostRun { ok: true }, Stage::DataOut] {
            assert_eq!(self.staged(job, stage), ControllerReply::Done);
        }
        let over = Stage::Teardown { hurry: false };
        assert_eq!(self.staged(job, over), ControllerReply::Done);
    }

    /// All that was ordered is done.
    pub(crate) fn settle(&mut self) {
        let mut rounds = 0;
        while !self.queue.is_empty() {
            let (node, number, order) = self.queue.remove(0);
            self.perform(&node, number, order);
            rounds += 1;
            assert!(rounds < 100_000, "it does not come to rest");
        }
    }

    /// One order is done.
    pub(crate) fn perform(&mut self, node: &str, number: u64, order: NodeOrder) {
        let report = match order {
            NodeOrder::Do { user, work, .. } => Report::Worked {
                number,
                what: self.work(node, user, *work),
            },
            NodeOrder::Serve { .. } => Report::Serving {
                number,
                port: self.nodes[node].port,
            },
            NodeOrder::Admit { job, mounts, .. } => {
                let store = self.nodes.get_mut(node).unwrap();
                store.admitted.insert(job, mounts);
                done(number)
            }
            NodeOrder::Dismiss(job) => {
                self.nodes.get_mut(node).unwrap().admitted.remove(&job);
                self.memory.remove(&(node.to_owned(), job));
                done(number)
            }
            NodeOrder::Stop(_) | NodeOrder::Look | NodeOrder::Beat => done(number),
        };
        let order = number;
        self.event(SiteServiceEvent::Reported { order, report });
    }

    fn work(&mut self, node: &str, user: Uid, work: Work) -> WorkResult {
        if let Some((which, code)) = self.refuses
            && which(&work)
        {
            return WorkResult::Failed(RequestError::new(code, "as the test wants it"));
        }
        let size = self.size;
        match work {
            Work::Fetch {
                part,
                from,
                proof,
                sealed,
                store: place,
            } => {
                let there = self.nodes[node].parts.get(&part);
                let there = there.filter(|_| self.is_stored(node, &part, &place));
                if let Some(there) = there.filter(|p| proof.as_ref() == Some(p)) {
                    if let Origin::Outside(path) = &from
                        && there.origin != Some(self.origin_of(path))
                    {
                        return WorkResult::Failed(RequestError::new(
                            Code::Changed,
                            "it is another",
                        ));
                    }
                    let (proof, moved) = (there.clone(), 0);
                    return WorkResult::Proven { proof, moved };
                }
                let there = match &from {
                    Origin::Outside(path) => {
                        *self.read.entry(path.clone()).or_default() += size;
                        let found = Proof {
                            origin: Some(self.origin_of(path)),
                            sealed,
                            ..proof_of(&part, size)
                        };
                        proof.clone().unwrap_or(found)
                    }
                    Origin::Peer(peer) if peer.port != self.nodes[&peer.node].port => {
                        return WorkResult::Failed(unreachable());
                    }
                    Origin::Peer(peer) => match self.nodes[&peer.node].parts.get(&part) {
                        Some(there) => there.clone(),
                        None => {
                            return WorkResult::Failed(RequestError::new(Code::Lost, "not there"));
                        }
                    },
                };
                if proof.is_some_and(|p| p != there) {
                    return WorkResult::Failed(RequestError::new(
                        Code::Corrupt,
                        "not what it must be",
                    ));
                }
                self.put(node, part, &place, there.clone());
                WorkResult::Proven {
                    moved: there.bytes,
                    proof: there,
                }
            }
            Work::Prepare {
                job,
                ref dataset,
                ref parts,
                ref hashes,
                memory,
                ref store,
            }
            | Work::View {
                job,
                ref dataset,
                ref parts,
                ref hashes,
                memory,
                ref store,
            } => {
                // Each part's hash goes with it.
                assert_eq!(hashes.len(), parts.len());
                let place = store.clone();
                let is_view = matches!(work, Work::View { .. });
                if is_view && memory.is_none() {
                    for part in parts {
                        assert!(self.is_stored(node, part, &place), "{part} not in {place}");
                    }
                } else if !is_view {
                    let written = &mut self.nodes.get_mut(node).unwrap().written;
                    written.insert((job, dataset.clone()), place);
                }
                let store = self.nodes.get_mut(node).unwrap();
                for (part, hash) in parts.iter().zip(hashes) {
                    let there = store.parts.get(part);
                    let there = there.unwrap_or_else(|| panic!("{part} is not on {node}"));
                    assert_eq!(there.hash, *hash, "{part}");
                    assert!(!there.sealed || memory.is_some(), "{part} into the clear");
                }
                if let Some(bytes) = memory {
                    self.memory.insert((node.to_owned(), job), bytes);
                }
                store.jobs.insert((user, job));
                WorkResult::Done
            }
            Work::Slice {
                job,
                dataset,
                parts,
                slice,
                written,
                store: place,
            } => {
                let mut moved = 0;
                for (part, from, proof) in &parts {
                    let at = match from {
                        None => node,
                        Some(Origin::Peer(peer)) if peer.port != self.nodes[&peer.node].port => {
                            return WorkResult::Failed(unreachable());
                        }
                        Some(Origin::Peer(peer)) => &peer.node,
                        Some(Origin::Outside(path)) => {
                            *self.read.entry(path.clone()).or_default() += size;
                            moved += size;
                            continue;
                        }
                    };
                    let there = self.nodes[at].parts.get(part);
                    assert_eq!(there, proof.as_ref(), "{part} on {at}");
                    moved += if from.is_some() { size / 4 } else { 0 };
                }
                let store = self.nodes.get_mut(node).unwrap();
                store.jobs.insert((user, job));
                if written {
                    store.written.insert((job, dataset.clone()), place);
                }
                let names = parts.iter().map(|(part, ..)| part.clone());
                let about = (slice, names.collect());
                self.slices.insert((node.to_owned(), dataset), about);
                let proof = proof_of(&parts[0].0, moved);
                WorkResult::Proven { proof, moved }
            }
            Work::Checkpoints {
                folder,
                store: place,
            } => {
                let store = self.nodes.get_mut(node).unwrap();
                store.checkpoints.insert((user, folder), place);
                WorkResult::Done
            }
            Work::Destage {
                folder,
                store: place,
            } => {
                let there = self.nodes[node].checkpoints.get(&(user, folder));
                assert_eq!(there, Some(&place));
                self.destaged.push(node.to_owned());
                WorkResult::Done
            }
            Work::Export { job, .. } => {
                let store = self.nodes.get_mut(node).unwrap();
                store.jobs.insert((user, job));
                WorkResult::Done
            }
            Work::Share { job, .. } => {
                let store = self.nodes.get_mut(node).unwrap();
                assert!(store.jobs.contains(&(user, job)), "no piece is there");
                store.shared.entry(job).or_default();
                WorkResult::Serving { port: store.port }
            }
            Work::Join { job, peers } => {
                let store = self.nodes.get_mut(node).unwrap();
                *store.shared.get_mut(&job).expect("nothing is lent") = peers;
                WorkResult::Done
            }
            Work::Publish {
                part,
                sealed,
                job,
                store: place,
                ..
            } => {
                let proof = Proof {
                    sealed,
                    ..proof_of(&part, size)
                };
                let written = &self.nodes[node].written;
                assert_eq!(written[&(job, part.dataset.clone())], place);
                self.put(node, part, &place, proof.clone());
                WorkResult::Proven { proof, moved: 0 }
            }
            Work::Move {
                part,
                from,
                to,
                proof,
                keep,
            } => {
                let is_from = self.is_stored(node, &part, &from);
                if !is_from && !self.is_stored(node, &part, &to) {
                    return WorkResult::Failed(RequestError::new(
                        Code::NotFound,
                        "it is not there",
                    ));
                }
                self.put(node, part.clone(), &to, proof.clone());
                if is_from && !keep {
                    self.drop_from(node, &part, &from);
                }
                let at = node.to_owned();
                self.moves.push((at, part.dataset, from, to));
                WorkResult::Proven { proof, moved: 0 }
            }
            Work::CheckIn(part, place) => match self.is_stored(node, &part, &place) {
                true => self.read_again(node, &part),
                false => WorkResult::Failed(RequestError::new(Code::Corrupt, "it is not there")),
            },
            Work::Send { parts, dest, owner } => {
                for (part, peer, _) in &parts {
                    let is_stale = |p: &WorkerAddress| p.port != self.nodes[&p.node].port;
                    if peer.as_ref().is_some_and(is_stale) {
                        return WorkResult::Failed(unreachable());
                    }
                    let at = peer.as_ref().map_or(node, |p| &p.node);
                    assert!(self.nodes[at].parts.contains_key(part));
                }
                let moved = parts.iter().map(|(_, _, proof)| proof.bytes).sum();
                let names = parts.iter().map(|(part, _, _)| part.clone());
                self.owners.insert(dest.clone(), owner);
                self.sent.insert(dest, names.collect());
                let proof = proof_of(&parts[0].0, moved);
                WorkResult::Proven { proof, moved }
            }
            Work::CheckDest { dest, owner } => match self.owners.get(&dest) {
                Some(other) if *other != owner => {
                    WorkResult::Failed(RequestError::new(Code::Exists, format!("it is {other}'s")))
                }
                _ => WorkResult::Done,
            },
            Work::Check(part) => match self.nodes[node].parts.contains_key(&part) {
                true => self.read_again(node, &part),
                false => WorkResult::Failed(RequestError::new(Code::Corrupt, "it is not there")),
            },
            Work::Remove(all) => {
                let store = self.nodes.get_mut(node).unwrap();
                for held in all {
                    match held {
                        StoreContent::Part(part) => {
                            // For a project, the node knows the user who has written it.
                            let whose = match part.owner {
                                Owner::User(uid) => uid,
                                Owner::Project(_) => 0,
                            };
                            assert_eq!(user, whose, "{part}");
                            store.parts.remove(&part);
                            store.places.remove(&part);
                        }
                        StoreContent::Copy(part, place) => {
                            let places = store.places.entry(part.clone()).or_default();
                            places.remove(&place);
                            if places.is_empty() {
                                store.parts.remove(&part);
                                store.places.remove(&part);
                            }
                        }
                        StoreContent::Checkpoints(folder) => {
                            store.checkpoints.remove(&(user, folder));
                        }
                        StoreContent::Job(job) => {
                            store.jobs.remove(&(user, job));
                            store.shared.remove(&job);
                        }
                    }
                }
                WorkResult::Done
            }
            Work::WrapAnew(_) => WorkResult::Done,
            Work::Inventory(_) => WorkResult::Inventory {
                holds: Vec::new(),
                partial: Vec::new(),
            },
        }
    }

    fn read_again(&self, node: &str, part: &Part) -> WorkResult {
        WorkResult::Proven {
            proof: self.nodes[node].parts[part].clone(),
            moved: 0,
        }
    }

    /// Whether a part is in this store.
    pub(crate) fn is_stored(&self, node: &str, part: &Part, place: &str) -> bool {
        let store = &self.nodes[node];
        let places = store.places.get(part);
        let is_in = places.map_or(place.is_empty(), |all| all.contains(place));
        store.parts.contains_key(part) && is_in
    }

    fn put(&mut self, node: &str, part: Part, place: &str, proof: Proof) {
        let store = self.nodes.get_mut(node).unwrap();
        assert!(!store.away.contains(place), "{place} is not mounted");
        store.parts.insert(part.clone(), proof);
        if !place.is_empty() {
            store.places.entry(part).or_default().insert(place.into());
            let full = |(name, bytes, _): &(&str, u64, bool)| self.bytes_in(node, name) > *bytes;
            let full = self.levels.iter().find(|level| full(level));
            assert_eq!(full, None, "more lies there than it holds");
        }
    }

    fn drop_from(&mut self, node: &str, part: &Part, place: &str) {
        let store = self.nodes.get_mut(node).unwrap();
        store.places.get_mut(part).unwrap().remove(place);
    }

    /// Bytes that parts take in a store.
    pub(crate) fn bytes_in(&self, node: &str, place: &str) -> u64 {
        let store = &self.nodes[node];
        let here = store
            .parts
            .iter()
            .filter(|(part, _)| self.is_stored(node, part, place));
        here.map(|(_, p)| p.bytes + 4096 * (p.entries + 1)).sum()
    }

    /// The stores of a dataset's parts on a node.
    pub(crate) fn places(&self, node: &str, dataset: &str) -> Vec<String> {
        let all = self.nodes[node].places.iter();
        let own = all.filter(|(part, _)| part.dataset == dataset);
        own.flat_map(|(_, places)| places).cloned().collect()
    }

    /// The present content of a source.
    fn origin_of(&self, path: &Path) -> Hash {
        let changes = self.changes.get(path).copied().unwrap_or(0);
        Hash(u128::from(changes))
    }

    /// Time goes by.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now += seconds * SECOND;
        self.event(SiteServiceEvent::Passed);
        self.settle();
    }

    pub(crate) fn parts_on(&self, node: &str) -> Vec<String> {
        let parts = self.nodes[node].parts.keys();
        parts
            .map(|p| format!("{}/{}.{}", p.dataset, p.version, p.part))
            .collect()
    }

    /// The log, played by a new controller, leads to the same state.
    pub(crate) fn check_replay(&self, config: Config) {
        let mut site = Site::new(config);
        for (now, event) in &self.log {
            site.step(*now, event.clone(), &mut Vec::new());
        }
        assert_eq!(format!("{site:?}"), format!("{:?}", self.site));
    }
}
