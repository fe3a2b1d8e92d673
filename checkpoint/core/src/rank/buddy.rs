//! Copies of staged bytes, in the memory of a rank of another node: this rank's, and those that it keeps for others.

use super::source::RemoteMedium;
use super::{Distance, RankContext, files, lock};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::manifest::CHUNK;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use tarn_ports::ranks::OpenWindow;
use tarn_ports::{
    KeepAliveGuard, Medium, MediumError, MediumWindow, PowerFail, RankService, RankServiceError,
    Ranks, ReadableMedium, Vault,
};
use tarn_types::crc::joined;

/// The ranks that keep copies of this rank's staged bytes, each on a node of its own.
#[derive(Debug)]
pub(super) struct Buddies<S> {
    granted: Vec<Granted<S>>,
    /// Ranks that failed.
    lost: BTreeSet<u32>,
}

/// Memory at a buddy.
#[derive(Debug)]
struct Granted<S> {
    by: u32,
    bytes: u64,
    /// It is on this node: it is written to directly.
    near: Option<S>,
}

impl<S> Default for Buddies<S> {
    fn default() -> Self {
        Self {
            granted: Vec::new(),
            lost: BTreeSet::new(),
        }
    }
}

impl<S: Medium> Buddies<S> {
    /// Gets grants of memory for so many bytes from as many buddies as are wanted, with the head that names the owner.
    pub(super) fn ready<T, M>(
        &mut self,
        shared: &RankContext<T, M>,
        wanted: usize,
        bytes: u64,
        head: &[u8],
    ) -> Result<(), CheckpointError>
    where
        T: Vault,
        M: Vault<Medium = S>,
    {
        let ranks = &*shared.ranks;
        self.granted.retain(|g| g.bytes >= bytes);
        self.granted.truncate(wanted);
        let mut why = None;
        let by_node = shared.nodes.from(ranks.rank(), shared.options.same_node);
        for by in by_node.flatten() {
            let taken = |g: &Granted<S>| ranks.node(g.by) == ranks.node(by);
            if self.granted.len() == wanted {
                break;
            }
            if self.lost.contains(&by) || self.granted.iter().any(taken) {
                continue;
            }
            match grant(shared, by, bytes, head) {
                Ok(granted) => self.granted.push(granted),
                Err(fault) => {
                    self.lost.insert(by);
                    why = Some(fault);
                }
            }
        }
        debug_assert!(
            self.granted
                .iter()
                .enumerate()
                .all(|(n, one)| self.granted[..n]
                    .iter()
                    .all(|other| ranks.node(one.by) != ranks.node(other.by))),
            "two buddies are on one node"
        );
        if self.granted.len() == wanted {
            return Ok(());
        }
        Err(why.unwrap_or_else(|| few(wanted, self.granted.len())))
    }

    /// Windows on the memory of those that are on this node, range by range.
    pub(super) fn windows(
        &mut self,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Vec<S::Window<'_>>>, MediumError> {
        let mut all: Vec<Vec<S::Window<'_>>> = ranges.iter().map(|_| Vec::new()).collect();
        for near in self.granted.iter_mut().filter_map(|g| g.near.as_mut()) {
            for (of, window) in all.iter_mut().zip(near.windows(ranges)?) {
                of.push(window);
            }
        }
        Ok(all)
    }

    /// The ranks that get chunks to keep: those of other nodes.
    pub(super) fn far(&self) -> Vec<u32> {
        let far = self.granted.iter().filter(|g| g.near.is_none());
        far.map(|g| g.by).collect()
    }

    /// One failed: another is looked for.
    pub(super) fn give_up(&mut self, by: u32) {
        self.granted.retain(|g| g.by != by);
        self.lost.insert(by);
    }

    /// Their memory is not used any more.
    pub(super) fn forget(&mut self) {
        self.granted.clear();
    }

    /// Whether one of them has a chunk as it was, which is filled then.
    pub(super) fn read<T: Vault, M: Vault>(
        &mut self,
        shared: &RankContext<T, M>,
        at: u64,
        into: &mut [u8],
        sum: u64,
    ) -> Result<bool, CheckpointError> {
        let name = files::kept(shared.ranks.rank());
        for granted in &mut self.granted {
            let far = RemoteMedium {
                ranks: &*shared.ranks,
                from: granted.by,
                name: name.as_str().into(),
                size: granted.bytes,
                timeout: shared.options.timeout,
            };
            let read = match &mut granted.near {
                Some(near) => Some(super::whole(near)?.read(at, into)?),
                None => far.read(at, into).ok(),
            };
            if read == Some(sum) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn grant<T: Vault, M: Vault>(
    shared: &RankContext<T, M>,
    by: u32,
    bytes: u64,
    head: &[u8],
) -> Result<Granted<M::Medium>, CheckpointError> {
    let (ranks, timeout) = (&shared.ranks, shared.options.timeout);
    let name = ranks.grant(by, shared.world.start.generation, bytes, timeout)?;
    let mut granted = Granted {
        by,
        bytes,
        near: None,
    };
    if ranks.node(by) == ranks.node(ranks.rank()) {
        let mut near = shared.memory.open(&name)?;
        let mut window = super::whole(&mut near)?;
        window.warm();
        window.write(0, head)?;
        window.persist()?;
        drop(window);
        granted.near = Some(near);
    } else {
        ranks.put(by, shared.world.start.generation, 0, head, timeout)?;
    }
    Ok(granted)
}

pub(super) fn few(wanted: usize, left: usize) -> CheckpointError {
    let text = format!(
        "{wanted} ranks of other nodes, each of another one, are to keep copies of what is staged, and {left} are left: start ranks on more \
         nodes, or ask for fewer replicas (one on the same node can be allowed, for tests)"
    );
    CheckpointError::new(CheckpointErrorCode::Unsupported, text)
}

/// Lowest switches that are distinguished.
const MAX_SWITCHES: usize = 1_024;

/// Which ranks are on which node, and which nodes below which switch.
#[derive(Debug)]
pub(super) struct RankTopology {
    /// Ranks, by node; a node comes with its first rank.
    nodes: Vec<Vec<u32>>,
    /// By rank: its node, and the how many-eth it is there.
    places: Vec<(usize, usize)>,
    /// Nodes below the same lowest switch; all of them where switches are not known.
    groups: Vec<Vec<usize>>,
    /// By node: its group, and the how many-eth it is there.
    homes: Vec<(usize, usize)>,
    /// By group: all groups, those first whose nodes are to keep its nodes' staged bytes.
    order: Vec<Vec<usize>>,
    distance: Distance,
}

impl RankTopology {
    pub(super) fn of(ranks: &dyn Ranks, distance: Distance) -> Self {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut switches: Vec<&str> = Vec::new();
        let (mut nodes, mut places) = (Vec::new(), Vec::new());
        let (mut groups, mut homes) = (Vec::new(), Vec::new());
        for rank in 0..ranks.ranks() {
            let node = *numbers.entry(ranks.node(rank)).or_insert(nodes.len());
            if node == nodes.len() {
                nodes.push(Vec::new());
                let above = ranks.switches(rank);
                let group = switches.iter().position(|known| *known == above);
                // Of too many none is distinguished from the last one.
                let group = group.unwrap_or(switches.len()).min(MAX_SWITCHES - 1);
                if group == groups.len() {
                    switches.push(above);
                    groups.push(Vec::new());
                }
                homes.push((group, groups[group].len()));
                groups[group].push(node);
            }
            places.push((node, nodes[node].len()));
            nodes[node].push(rank);
        }
        let order = (0..switches.len()).map(|of| ordered(&switches, of, distance));
        let order = order.collect();
        Self {
            nodes,
            places,
            groups,
            homes,
            order,
            distance,
        }
    }

    /// Whether copies are to be on another switch than the original.
    pub(super) fn are_far(&self) -> bool {
        self.distance == Distance::Far
    }

    /// The ranks that may keep something for a rank, node by node, the best first: the next node of its group and so on, and of
    /// other groups the node with the same index as this one, in the order that the distance requests. Of a node first the rank
    /// with the same index there as this one here, then the others. So all have as much to keep. Last come ranks of this node, if
    /// that will do.
    pub(super) fn from(
        &self,
        me: u32,
        same_node: bool,
    ) -> impl Iterator<Item = impl Iterator<Item = u32>> {
        let (here, place) = self.places[me as usize];
        let (home, seat) = self.homes[here];
        let others = self.order[home].iter().flat_map(move |group| {
            let nodes = &self.groups[*group];
            let (first, then) = match *group == home {
                true => (&nodes[seat + 1..], &nodes[..seat]),
                false => (&nodes[seat % nodes.len()..], &nodes[..seat % nodes.len()]),
            };
            first.iter().chain(then).map(|node| &self.nodes[*node])
        });
        let others = others.map(move |of| (&of[place % of.len()..], &of[..place % of.len()]));
        let own = &self.nodes[here];
        let own = same_node.then(|| (&own[place + 1..], &own[..place]));
        others
            .chain(own)
            .map(|(first, then)| first.iter().chain(then).copied())
    }

    /// The place of a rank's node in an order in which neighbours are on different switches.
    pub(super) fn apart(&self, rank: u32) -> (usize, usize) {
        let (home, seat) = self.homes[self.places[rank as usize].0];
        (seat, home)
    }

    /// How many copies of a rank's staged bytes there can be, each on a node of its own.
    pub(super) fn replicas(&self, me: u32, same_node: bool) -> usize {
        let by_node = self.from(me, same_node);
        by_node.filter_map(|mut of| of.next()).count()
    }
}

/// All groups as one of them has them, by how many switches are over both. Of those that are alike each group begins with another one.
fn ordered(switches: &[&str], of: usize, distance: Distance) -> Vec<usize> {
    let mut alike: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (group, above) in switches.iter().enumerate() {
        let both = switches[of].split('.').zip(above.split('.'));
        let common = both.take_while(|(a, b)| a == b).count();
        // One that shares all of them is the group itself.
        let common = common + usize::from(group == of);
        alike.entry(common).or_default().push(group);
    }
    let mut runs: Vec<Vec<usize>> = alike.into_values().collect();
    if distance == Distance::Near {
        runs.reverse();
    }
    for run in &mut runs {
        let first = of % run.len();
        run.rotate_left(first);
    }
    runs.concat()
}

/// Memory that was kept for others is given back; one rank of each node does it.
pub(super) fn give_back<M: Vault>(memory: &M, ranks: &dyn Ranks) -> Result<(), CheckpointError> {
    let me = ranks.rank();
    if (0..me).all(|r| ranks.node(r) != ranks.node(me)) {
        for name in memory.list()?.iter().filter(|n| n.ends_with(".buddy")) {
            memory.remove(name)?;
        }
    }
    Ok(())
}

/// Memory that was granted to a rank.
struct MemoryGrant<S> {
    generation: u64,
    /// Once it is written to from here.
    medium: Option<S>,
    own: GrantWindow,
}

/// The granted rank's own access to the memory.
#[derive(Default)]
struct GrantWindow {
    window: Option<KeepAliveGuard>,
    /// Bytes that it has written, read here for the check.
    seen: Vec<u8>,
}

/// The memory that this rank keeps for others, and the arenas that it reads for them.
pub(super) struct BuddyStorage<T, M: Vault> {
    tier: Arc<T>,
    memory: Arc<M>,
    /// By rank.
    granted: Mutex<BTreeMap<u32, MemoryGrant<M::Medium>>>,
}

impl<T: Vault, M: Vault> BuddyStorage<T, M> {
    pub(super) fn new(tier: Arc<T>, memory: Arc<M>) -> Self {
        Self {
            tier,
            memory,
            granted: Mutex::default(),
        }
    }

    /// Does something with the memory that was granted to a start of a rank.
    fn with<R>(
        &self,
        of: u32,
        generation: u64,
        what: impl FnOnce(&mut GrantWindow, &mut M::Medium) -> Result<R, RankServiceError>,
    ) -> Result<R, RankServiceError> {
        let mut granted = lock(&self.granted);
        let Some(grant) = granted.get_mut(&of).filter(|g| g.generation == generation) else {
            return unserved("no memory was granted to this start of the program");
        };
        let medium = match &mut grant.medium {
            Some(medium) => medium,
            none => {
                let medium = none.insert(self.memory.open(&files::kept(of))?);
                super::whole(medium)?.warm();
                medium
            }
        };
        what(&mut grant.own, medium)
    }
}

fn unserved<R>(why: &'static str) -> Result<R, RankServiceError> {
    Err(RankServiceError::Unserved(why))
}

impl<T: Vault, M: Vault> RankService for BuddyStorage<T, M> {
    fn grant(&self, of: u32, generation: u64, bytes: u64) -> Result<String, RankServiceError> {
        let mut granted = lock(&self.granted);
        if granted.get(&of).is_some_and(|g| g.generation > generation) {
            return unserved("a later start of the program has its memory");
        }
        let name = files::kept(of);
        // Its window is closed, and a process that still has the memory mapped writes to memory without a name.
        granted.remove(&of);
        let made = self.memory.remove(&name);
        let made = made.and_then(|()| self.memory.create(&name, bytes, &mut |_| Ok(())));
        made?;
        let grant = MemoryGrant {
            generation,
            medium: None,
            own: GrantWindow::default(),
        };
        granted.insert(of, grant);
        Ok(name)
    }

    fn put(
        &self,
        of: u32,
        generation: u64,
        at: u64,
        bytes: &[u8],
    ) -> Result<u64, RankServiceError> {
        self.with(of, generation, |own, medium| {
            // A rank that sends has given up its own writing: those bytes must not arrive later.
            own.window = None;
            let mut whole = super::whole(medium)?;
            let sum = whole.write(at, bytes)?;
            whole.persist()?;
            Ok(sum)
        })
    }

    fn window(
        &self,
        of: u32,
        generation: u64,
        open: &mut OpenWindow<'_>,
    ) -> Result<(), RankServiceError> {
        self.with(of, generation, |own, medium| {
            own.window = None;
            if medium.promises().power_fail != PowerFail::Lost {
                return unserved(
                    "its folder in memory is on a medium that has to be synced or flushed",
                );
            }
            let file = self.memory.file(&files::kept(of), true)?;
            own.window = Some(open(file.as_fd(), medium.size())?);
            Ok(())
        })
    }

    fn landed(
        &self,
        of: u32,
        generation: u64,
        at: u64,
        bytes: u64,
    ) -> Result<u64, RankServiceError> {
        self.with(of, generation, |own, medium| {
            if own.window.is_none() {
                return unserved("its window was closed");
            }
            let whole = super::whole(medium)?;
            let (mut sum, mut read) = (0, 0);
            own.seen.resize(CHUNK as usize, 0);
            while read < bytes {
                let part = (bytes - read).min(CHUNK);
                let place = at
                    .checked_add(read)
                    .ok_or(RankServiceError::Unserved("it ends nowhere"))?;
                let piece = whole.read(place, &mut own.seen[..part as usize]);
                sum = joined(sum, piece?, part);
                read += part;
            }
            Ok(sum)
        })
    }

    fn file(&self, medium: &str) -> Result<OwnedFd, RankServiceError> {
        let file = match files::on_tier(medium) {
            true => self.tier.file(medium, false),
            false => self.memory.file(medium, false),
        };
        Ok(file?)
    }
}
