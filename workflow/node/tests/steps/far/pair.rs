//! Two worlds that carry messages to each other, and a mover that can be made to fail.

use crate::bench::{Bench, Machine, held, part_ref, tier_ref};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tarn_mover::Trees;
use tarn_ports::{
    Control, CopyJob, CopyReport, Followers, Mover, MoverError, NodeWorld, TreeCapabilities, World,
};
use tarn_types::action::NodeReplica;
use tarn_types::event::{AttemptOutcome, Event, Usage};
use tarn_types::id::NodeId;
use tarn_types::manifest::Manifest;
use tarn_types::nodes::{AttemptId, OwnedNodes};
use tarn_types::part::{PartInfo, Place};

/// A message on its way: from, to, about, what.
type FromLeader = (NodeId, NodeId, AttemptId, Vec<u8>);

/// Sends for one node.
struct Wire {
    from: NodeId,
    letters: Sender<FromLeader>,
    cut: Arc<AtomicBool>,
}

impl Followers for Wire {
    fn send(&self, to: NodeId, step: AttemptId, message: Vec<u8>) -> bool {
        !self.cut.load(Ordering::SeqCst)
            && self.letters.send((self.from, to, step, message)).is_ok()
    }
}

/// Node 0, which leads, and node 1. Each world believes the other's tier to be where nothing is.
pub(super) struct Pair {
    pub(super) leader: Option<Machine>,
    pub(super) follower: Option<Machine>,
    pub(super) letters: Receiver<FromLeader>,
    pub(super) cut: Arc<AtomicBool>,
    pub(super) events: Vec<Event>,
}

impl Pair {
    pub(super) fn new(bench: &Bench) -> Self {
        Self::with(bench, [&bench.mover, &bench.mover])
    }

    pub(super) fn with(bench: &Bench, movers: [&Arc<dyn Mover>; 2]) -> Self {
        Self::owning(bench, movers, [&[0], &[1]])
    }

    pub(super) fn owning(bench: &Bench, movers: [&Arc<dyn Mover>; 2], own: [&[u32]; 2]) -> Self {
        let (sender, letters) = channel();
        let cut = Arc::new(AtomicBool::new(false));
        let world = |number: usize| {
            let mut config = bench.config("ws");
            config.own = OwnedNodes::Some(own[number].iter().map(|n| NodeId(*n)).collect());
            config.followers = Some(Arc::new(Wire {
                from: NodeId(own[number][0]),
                letters: sender.clone(),
                cut: Arc::clone(&cut),
            }));
            // Both are this machine, which neither knows.
            let here = |n: &u32| (NodeId(*n), "127.0.0.1".to_owned());
            config.addresses = own.iter().flat_map(|o| o.iter().map(here)).collect();
            config.mover = Arc::clone(movers[number]);
            for other in own[1 - number] {
                let root = bench.path(&format!("elsewhere{number}"));
                config.cluster.nodes[*other as usize].tiers[0].root = root;
            }
            Machine::new(config)
        };
        Self {
            leader: Some(world(0)),
            follower: Some(world(1)),
            letters,
            cut,
            events: Vec::new(),
        }
    }

    pub(super) fn leader(&mut self) -> &mut Machine {
        self.leader.as_mut().expect("the leader")
    }

    pub(super) fn follower(&mut self) -> &mut Machine {
        self.follower.as_mut().expect("the follower")
    }

    /// Carries messages until the leader reports how the attempt has ended.
    pub(super) fn ended(&mut self) -> (AttemptOutcome, Usage) {
        self.until(|pair| {
            let event = pair.leader().local.poll()?.1;
            match event {
                Event::Ended { ended, usage, .. } => Some((ended, usage)),
                other => {
                    pair.events.push(other);
                    None
                }
            }
        })
    }

    pub(super) fn until<T>(&mut self, mut check: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            self.carry();
            if let Some(found) = check(self) {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "it hangs");
        }
    }

    /// Hands over what comes within a moment.
    pub(super) fn carry(&mut self) {
        let first = self.letters.recv_timeout(Duration::from_millis(1)).ok();
        let more: Vec<FromLeader> = first.into_iter().chain(self.letters.try_iter()).collect();
        for (from, to, step, message) in more {
            let world = match to {
                NodeId(0) => self.leader.as_mut(),
                _ => self.follower.as_mut(),
            };
            if let Some(world) = world.filter(|_| !self.cut.load(Ordering::SeqCst)) {
                world.local.follower(from, step, &message);
            }
        }
    }

    /// The two nodes get no messages of each other any more.
    pub(super) fn part(&mut self) {
        self.cut.store(true, Ordering::SeqCst);
        self.leader().local.lose_node(NodeId(1));
        self.follower().local.lose_node(NodeId(0));
    }

    /// Waits until a file is there.
    pub(super) fn there(&mut self, path: &Path) {
        self.until(|_| path.exists().then_some(()));
    }

    /// Lists dataset 0 and brings its ranks and what is common to their nodes.
    pub(super) fn stage(&mut self) -> Vec<Vec<NodeReplica>> {
        let infos = self.leader().list(0).expect("a source");
        let mut views = Vec::new();
        for node in 0..2 {
            // Common and its own rank; the classes sort ranks first.
            let own = [infos[node as usize].clone(), infos[2].clone()];
            self.bring(node, &own);
            views.push(held(0, 0, &own, node));
        }
        views
    }

    pub(super) fn bring(&mut self, node: u32, infos: &[PartInfo]) {
        let world = match node {
            0 => self.leader(),
            _ => self.follower(),
        };
        let known = infos.iter().map(|i| (part_ref(0, 0, i.seq), i.clone()));
        world.local.know(known.collect()).unwrap();
        let to = Place::Node(tier_ref(node));
        world
            .transfer(0, 0, infos, &Place::Source, &to)
            .expect("a transfer");
    }
}

/// Does something before it divides a tree for the n-th time; and hashes so slowly that it must be cancelled.
pub(super) struct Hooked {
    trees: Trees,
    divided: AtomicUsize,
    hook: Box<dyn Fn(usize) -> Done<()> + Send + Sync>,
    slow: bool,
}

pub(super) type Done<T> = Result<T, MoverError>;

impl Hooked {
    pub(super) fn mover(
        hook: impl Fn(usize) -> Done<()> + Send + Sync + 'static,
    ) -> Arc<dyn Mover> {
        Arc::new(Self {
            trees: Trees::new(),
            divided: AtomicUsize::new(0),
            hook: Box::new(hook),
            slow: false,
        })
    }

    pub(super) fn slow() -> Arc<dyn Mover> {
        Arc::new(Self {
            trees: Trees::new(),
            divided: AtomicUsize::new(0),
            hook: Box::new(|_| Ok(())),
            slow: true,
        })
    }
}

impl Mover for Hooked {
    fn capabilities(&self, folder: &Path) -> Done<TreeCapabilities> {
        self.trees.capabilities(folder)
    }
    fn list(&self, root: &Path, control: &Control) -> Done<Manifest> {
        self.trees.list(root, control)
    }
    fn digest(&self, root: &Path, control: &Control) -> Done<Manifest> {
        let begun = Instant::now();
        while self.slow && !control.cancelled() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.trees.digest(root, control)
    }
    fn verify(&self, root: &Path, manifest: &Manifest, control: &Control) -> Done<()> {
        self.trees.verify(root, manifest, control)
    }
    fn copy(&self, job: &CopyJob, control: &Control) -> Done<CopyReport> {
        self.trees.copy(job, control)
    }
    fn link_view(&self, roots: &[(PathBuf, Manifest)], dest: &Path) -> Done<()> {
        self.trees.link_view(roots, dest)
    }
    fn clone_view(
        &self,
        roots: &[(PathBuf, Manifest)],
        dest: &Path,
        control: &Control,
    ) -> Done<u64> {
        self.trees.clone_view(roots, dest, control)
    }
    fn split(&self, root: &Path, parts: &[(&Manifest, PathBuf)]) -> Done<()> {
        (self.hook)(self.divided.fetch_add(1, Ordering::SeqCst))?;
        self.trees.split(root, parts)
    }
    fn remove(&self, root: &Path) -> Done<()> {
        self.trees.remove(root)
    }
    fn stored(&self, root: &Path) -> Done<u64> {
        self.trees.stored(root)
    }
}
