//! A rank: the driver of all this. It has the objects copied, published and de-staged, and finds them again. Threads and a monotonic
//! clock are used here and in [`crate::copy_workers`] alone; bytes, files and other ranks come through ports.
//!
//! One rank's state has all that is written to. The caller has it during a commit, the helper thread between two: the one that
//! has it finishes the other's work.

mod ahead;
mod buddy;
mod commit;
mod copy;
mod destage;
mod end;
mod exchange;
mod files;
mod flush;
mod found;
pub mod left;
mod outside;
mod parity;
mod replicate;
mod requirements;
mod restore;
mod source;
mod space;
mod wait;

use crate::arena::{Arena, ArenaError, PersistenceLevel, Version, VersionId, pinned_by_readers};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::free_space::LARGE;
use crate::layout;
use crate::manifest::{MAX_KEY, RankManifest, Shape};
pub use crate::seal::RankSealer;
use ahead::PrecopyState;
use buddy::{Buddies, BuddyStorage, RankTopology};
use exchange::{ExchangeKind, agree};
use flush::Flusher;
use found::RestartInventory;
pub use requirements::{MAX_REPLICAS, MAX_SET, VersionRequirements};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tarn_ports::{
    Carried, External, Medium, MediumError, MediumWindow, PowerFail, RankProgress, Ranks, Vault,
    WatchedMemory,
};

/// Versions that may be kept: one more is written, one flushed, and one fetched by other nodes.
pub const MAX_KEPT: usize = crate::arena::MAX_VERSIONS - 3;

/// Bytes of an arena that are mapped before the rank's state is given to a waiting caller.
const WARM: u64 = 16 << 20;
/// While somebody wants the rank's state, the thread that copies ahead checks this often whether it is free.
const YIELD: Duration = Duration::from_millis(1);
/// Of so many versions, counted back from the newest, it is known which ranks lack them. No rank is ahead of another by more.
const RECENT: u64 = 32;

/// How much of a version may be staged in memory (Fernando et al. 2016, section II): the rest goes to the persistent
/// tier during the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagingShare {
    /// None: all goes to the persistent tier at once.
    None,
    /// Half of its bytes.
    Half,
    /// All of it.
    All,
    /// At most so many bytes of it.
    Bytes(u64),
}

/// How versions are kept on other nodes too, while the program computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Replicate {
    /// They are not.
    #[default]
    None,
    /// All that a rank has is copied to so many other nodes.
    Copies(usize),
    /// In sets of about so many ranks of different nodes, any one can be made again from the others.
    Parity(usize),
}

/// Which nodes come first as buddies, and for copies of versions, where the switches over them are known (Fernando 2016, Figure 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distance {
    /// The nearest: a byte goes through the fewest switches.
    #[default]
    Near,
    /// The farthest: with a switch not all are lost.
    Far,
}

/// The options of a rank.
#[derive(Clone)]
pub struct Options {
    /// The program's name.
    pub run: Box<[u8]>,
    /// Random: the identity of the arena, should one be made.
    pub identity: u128,
    /// The bytes to stage.
    pub staging: StagingShare,
    /// How many buddies keep the staged bytes, until objects request others.
    pub buddies: usize,
    /// A buddy on the same node will do.
    pub same_node: bool,
    /// Which other nodes come first.
    pub distance: Distance,
    /// How versions are kept on other nodes too.
    pub replicate: Replicate,
    /// Every so-many-eth of them.
    pub replicate_every: u64,
    /// The longest wait for other ranks.
    pub timeout: Duration,
    /// Threads beside the caller that copy in a commit; without any, nothing is done in the background either.
    pub helpers: usize,
    /// Whether bytes that were copied ahead are compared with the object at the commit: to find writes that nobody sees, at the
    /// price of reading all of it.
    pub audit: bool,
    /// Called by a helper thread first: it goes to its processors.
    pub enter: Arc<dyn Fn() + Send + Sync>,
    /// The store for versions that outlive the nodes.
    pub external: Option<ExternalStore>,
    /// Seals versions, if they are to be sealed.
    pub seal: Option<Arc<RankSealer>>,
    /// Whether a restart may leave out objects of its version, which later versions are without.
    pub leaves_out: bool,
}

/// A store that outlives the nodes, and how versions go there.
#[derive(Clone)]
pub struct ExternalStore {
    /// The program's folder there.
    pub store: Arc<dyn External>,
    /// Versions from one that is flushed to the next; 0: none is.
    pub every: u64,
    /// Bytes a second that a rank writes and reads back; 0: as many as the store takes.
    pub rate: u64,
}

/// An object as it is now.
#[derive(Debug, Clone)]
pub struct CommitObject<'a> {
    /// Its name.
    pub key: &'a [u8],
    /// Bytes of an element.
    pub unit: u32,
    /// How it divides.
    pub shape: Shape,
    /// Its content.
    pub bytes: &'a [u8],
}

/// An object that is to be filled.
#[derive(Debug)]
pub struct Empty<'a> {
    /// Its name.
    pub key: &'a [u8],
    /// How it divides.
    pub shape: Shape,
    /// The memory to fill.
    pub bytes: &'a mut [u8],
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The version.
    pub id: VersionId,
    /// Why there are fewer copies than were requested.
    pub degraded: Option<String>,
}

/// A version that can be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restorable {
    /// The version.
    pub id: VersionId,
    /// Ranks that wrote it.
    pub ranks: u32,
    /// The least level of all ranks.
    pub level: PersistenceLevel,
    /// Bytes of this rank's objects; 0 if it has none.
    pub bytes: u64,
}

/// The work of a rank since it began: counts, bytes and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankStats {
    /// Commits.
    pub commits: u64,
    /// The time in commits.
    pub commit: Duration,
    /// The share of it for the version before to be de-staged, here and on other ranks, and for the required level.
    pub waited: Duration,
    /// Bytes committed.
    pub bytes: u64,
    /// The share of them that went to memory first.
    pub staged: u64,
    /// The share of them that was copied before the commit and not written since.
    pub ahead: u64,
    /// Bytes copied ahead in vain.
    pub twice: u64,
    /// The time of de-staging.
    pub destage: Duration,
    /// The time of the last commit.
    pub last_commit: Duration,
    /// Bytes that it staged.
    pub last_staged: u64,
    /// The time of their de-staging.
    pub last_destage: Duration,
    /// Bytes a second that the tier took from this rank, a mean of the last commits.
    pub persistent_rate: u64,
    /// Bytes a second that memory took from this rank, each copy counted.
    pub memory_rate: u64,
    /// Commits with fewer copies than were requested.
    pub degraded: u64,
    /// Damaged chunks found when de-staging, and damaged versions that a restart passed over.
    pub damaged: u64,
    /// Versions of which this rank keeps all that it is to keep for others.
    pub replicated: u64,
    /// Versions of which it could not.
    pub bare: u64,
    /// Bytes restored.
    pub restored: u64,
    /// The time in restarts.
    pub restore: Duration,
    /// Versions of which this rank's part was flushed.
    pub flushed: u64,
    /// Versions that were not flushed, as one was being flushed when their turn came.
    pub flushes_skipped: u64,
    /// Versions that could not be flushed.
    pub flush_failed: u64,
    /// The time of the last flush.
    pub last_flush: Duration,
    /// Slots that were passed over, as readers of other programs have pinned versions there.
    pub pinned: u64,
    /// Bytes that went to ranks of other nodes and came from there.
    pub carried: Carried,
}

/// One of a program's ranks.
pub struct Rank<T: Vault, M: Vault> {
    shared: Arc<RankContext<T, M>>,
    helper: Option<JoinHandle<()>>,
    /// Keeps versions for others.
    keeper: Option<JoinHandle<()>>,
    /// The end of the last commit, or the begin.
    since: Instant,
    /// The level that versions must have when their commit returns.
    persistence: PersistenceLevel,
    flusher: Option<JoinHandle<()>>,
}

/// The state that caller and helper share.
struct RankContext<T: Vault, M: Vault> {
    options: Options,
    ranks: Arc<dyn Ranks>,
    nodes: RankTopology,
    tier: Arc<T>,
    memory: Arc<M>,
    /// Versions and parts that earlier starts have left.
    world: RestartInventory,
    flusher: Option<Arc<Flusher<T>>>,
    /// Versions that were begun.
    number: AtomicU64,
    rank_state: Mutex<RankState<T::Medium, M::Medium>>,
    /// The progress of this rank.
    reached: Mutex<RankProgress>,
    /// The number of the last version that this rank could not keep for others, and why.
    why_bare: Mutex<Option<(u64, String)>>,
    stats: Mutex<RankStats>,
    /// There may be something to do for the helper.
    has_work: Mutex<bool>,
    work_added: Condvar,
    /// The caller wants the rank's state: the thread that copies ahead lets it go.
    wanted: AtomicBool,
    /// The helper is to end.
    ended: AtomicBool,
}

/// All that is written to.
struct RankState<A, S> {
    /// The version that was restored.
    base: Option<VersionId>,
    /// Remains of earlier starts that not all ranks have are gone.
    begun: bool,
    /// The reason: a version was damaged before it was de-staged. The next commit reports it.
    degraded_by: Option<String>,
    /// Up to this number versions are not kept for others any more: they took too long.
    released: u64,
    /// Remains of earlier starts on this node that nobody needs are gone.
    reclaimed: bool,
    requirements: VersionRequirements,
    arena: Option<(Arena, A)>,
    /// How much of it is mapped for sure.
    warm: u64,
    /// The arena's name.
    name: String,
    staging: Option<S>,
    buddies: Buddies<S>,
    pending: Option<PendingDestage>,
    ahead: PrecopyState,
}

/// A version of which some is staged, and not in the arena yet.
#[derive(Debug)]
struct PendingDestage {
    id: VersionId,
    /// The places of its objects once they are in the arena, in their order.
    places: Vec<u64>,
}

impl<T: Vault + 'static, M: Vault + 'static> Rank<T, M> {
    /// Begins: looks for remains of earlier starts, completes staged versions, and agrees with the other ranks on the
    /// restorable ones. All ranks call it.
    ///
    /// # Errors
    /// When ranks do not come, or folders cannot be read.
    pub fn begin(
        options: Options,
        tier: T,
        memory: M,
        ranks: Arc<dyn Ranks>,
    ) -> Result<Self, CheckpointError> {
        let length = options.run.len();
        if length == 0 || length > MAX_KEY {
            let text = format!("the run's name has {length} bytes; 1 to {MAX_KEY} are possible");
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        let (tier, memory, distance) = (Arc::new(tier), Arc::new(memory), options.distance);
        let kept = BuddyStorage::new(Arc::clone(&tier), Arc::clone(&memory));
        ranks.serve(Arc::new(kept));
        let (world, open) = found::find(&options, &*tier, &*memory, &*ranks)?;
        let rank_state = RankState::new(&world, open, &*tier, &*ranks, &options)?;
        let rank_state = Mutex::new(rank_state);
        let flusher = Flusher::begin(&options, world.start.identity, &tier, &ranks)?;
        let (flusher, flushes) = flusher.unzip();
        let shared = Arc::new(RankContext {
            flusher,
            rank_state,
            options,
            nodes: RankTopology::of(&*ranks, distance),
            ranks,
            tier,
            memory,
            world,
            number: AtomicU64::new(0),
            reached: Mutex::default(),
            why_bare: Mutex::default(),
            stats: Mutex::default(),
            has_work: Mutex::default(),
            work_added: Condvar::new(),
            wanted: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let mut rank = Self {
            shared,
            helper: None,
            keeper: None,
            since: Instant::now(),
            persistence: PersistenceLevel::Committed,
            flusher: flushes,
        };
        let thread = |name: &str, work: fn(&RankContext<T, M>)| {
            let shared = Arc::clone(&rank.shared);
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(move || work(&shared)).map_err(|e| {
                let text = format!("no thread can be made: {e}");
                CheckpointError::new(CheckpointErrorCode::NoMem, text)
            })
        };
        let options = &rank.shared.options;
        let helper = (options.helpers > 0).then(|| thread("phx-helper", RankContext::help));
        let keeps = options.replicate != Replicate::None;
        let keeper = keeps.then(|| thread("phx-keeper", RankContext::replicate));
        (rank.helper, rank.keeper) = (helper.transpose()?, keeper.transpose()?);
        Ok(rank)
    }

    /// The memory of an object is watched from now on, until it is not or another is, and copied ahead where that pays (`always`:
    /// without a prediction). Without a helper nothing is.
    pub fn watch(&mut self, key: &[u8], memory: Box<dyn WatchedMemory>, always: bool) {
        if self.helper.is_some() {
            self.shared.take().ahead.watch(key, memory, always);
        }
    }

    /// It is not watched any more: its memory may go.
    pub fn unwatch(&mut self, key: &[u8]) {
        self.shared.take().ahead.forget(key);
    }

    /// Takes the space that objects of these sizes need, and the memory that they are staged in, so that it is not missing later.
    ///
    /// # Errors
    /// When there is no space, or no memory.
    pub fn reserve(&mut self, sizes: &[u64]) -> Result<(), CheckpointError> {
        self.shared.take().reserve_space(&self.shared, sizes)
    }

    /// Keeps the state of objects as a new version. Its number counts the commits since this start, and is the same on all ranks.
    /// When it returns, the staged bytes are in memory that outlives the process, and at the buddy, and the version has reached
    /// the level that [`Rank::require`] set.
    ///
    /// # Errors
    /// When there is no space, the staged version before cannot be de-staged, or other ranks are too far behind: this rank has no
    /// such version then, and the ones before are unchanged.
    pub fn commit(&mut self, items: &[CommitObject<'_>]) -> Result<Committed, CheckpointError> {
        let mut committed = self.shared.commit_version(items);
        self.shared.notify_helper();
        if let Ok(committed) = &mut committed {
            self.reach(committed);
        }
        self.since = Instant::now();
        committed
    }

    /// Whether so long a time has gone by since the last commit, or the begin, by the clock of rank 0: the same on all ranks. All ranks
    /// call it.
    ///
    /// # Errors
    /// When ranks do not come, or are in another call.
    pub fn due(&self, interval: Duration) -> Result<bool, CheckpointError> {
        let (ranks, timeout) = (&*self.shared.ranks, self.shared.options.timeout);
        let mine = self.since.elapsed() >= interval;
        Ok(agree(ranks, ExchangeKind::Due, &mine, timeout)?[0])
    }

    /// Fills objects from a version, or from the newest that all ranks have; where that is damaged, from the one before. All ranks call
    /// it, before the first commit. None if there is no version.
    ///
    /// # Errors
    /// When objects are not as they were, or the requested version is not there.
    pub fn restart(
        &mut self,
        which: Option<VersionId>,
        objects: &mut [Empty<'_>],
    ) -> Result<Option<VersionId>, CheckpointError> {
        let restarted = self.shared.restart(which, objects);
        self.shared.notify_helper();
        restarted
    }

    /// The versions of earlier starts that can be restored, oldest first.
    pub fn restorable(&self) -> Vec<Restorable> {
        let restorable = self.shared.world.restorable(self.shared.ranks.rank());
        restorable.into_iter().map(|(_, version)| version).collect()
    }

    /// The work done so far.
    pub fn stats(&self) -> RankStats {
        let mut stats = *lock(&self.shared.stats);
        if let Some(flusher) = &self.shared.flusher {
            flusher.count(&mut stats);
        }
        stats.carried = self.shared.ranks.carried();
        stats
    }

    /// This start of the program: the generation of its commits.
    pub fn generation(&self) -> u64 {
        self.shared.world.start.generation
    }

    /// When durable versions outlive a loss of power; none before space was taken.
    pub fn power_fail(&self) -> Option<PowerFail> {
        let rank_state = self.shared.take();
        let arena = rank_state.arena.as_ref();
        arena.map(|(_, medium)| medium.promises().power_fail)
    }
}

impl<T: Vault, M: Vault> RankContext<T, M> {
    fn rank_state(&self) -> MutexGuard<'_, RankState<T::Medium, M::Medium>> {
        lock(&self.rank_state)
    }

    /// The rank's state, for the caller: a helper that copies ahead lets it go.
    fn take(&self) -> MutexGuard<'_, RankState<T::Medium, M::Medium>> {
        self.wanted.store(true, Ordering::Release);
        let rank_state = self.rank_state();
        self.wanted.store(false, Ordering::Release);
        rank_state
    }

    fn stats(&self) -> MutexGuard<'_, RankStats> {
        lock(&self.stats)
    }

    /// There may be something to do for the helper.
    fn notify_helper(&self) {
        *lock(&self.has_work) = true;
        self.work_added.notify_all();
    }

    /// The helper: after each commit it de-stages, and then copies ahead. After a restart, or else the first commit, it
    /// has the arena mapped.
    fn help(&self) {
        (self.options.enter)();
        let mut next: Option<Instant> = None;
        loop {
            let mut has_work = lock(&self.has_work);
            while !*has_work {
                let left = next.map(|n| n.saturating_duration_since(Instant::now()));
                // A caller that wants the rank's state has it first.
                let wanted = self.wanted.load(Ordering::Acquire);
                let left = left.map(|left| if wanted { left.max(YIELD) } else { left });
                has_work = match left {
                    Some(Duration::ZERO) => break,
                    Some(left) => self
                        .work_added
                        .wait_timeout(has_work, left)
                        .map_or_else(|e| e.into_inner().0, |w| w.0),
                    None => self
                        .work_added
                        .wait(has_work)
                        .unwrap_or_else(PoisonError::into_inner),
                };
            }
            let notified = std::mem::take(&mut *has_work);
            drop(has_work);
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            let mut rank_state = self.rank_state();
            if notified {
                rank_state.ahead.disarm();
                rank_state.ahead.look();
            }
            // The next commit tries again after an error, and reports it.
            if notified && rank_state.destage(self).is_ok() {
                let _ = rank_state.reclaim(self);
            }
            next = rank_state.look_ahead(self);
            if rank_state.warm() {
                next = Some(Instant::now());
            }
        }
    }
}

impl<A: Medium, S: Medium> RankState<A, S> {
    /// Continues with the arena that was found, if one was.
    fn new<T>(
        world: &RestartInventory,
        mut open: found::OpenArenas<A>,
        tier: &T,
        ranks: &dyn Ranks,
        options: &Options,
    ) -> Result<Self, CheckpointError>
    where
        T: Vault<Medium = A>,
    {
        let own = world.own(ranks, ranks.rank());
        let mut rank_state = Self {
            base: None,
            begun: false,
            degraded_by: None,
            released: 0,
            reclaimed: false,
            requirements: VersionRequirements {
                versions: 1,
                replicas: options.buddies,
                persistence: PersistenceLevel::Committed,
            },
            arena: None,
            // All of a new arena is mapped.
            warm: u64::MAX,
            name: own.map_or_else(
                || files::arena(world.start.generation, ranks.rank()),
                Into::into,
            ),
            staging: None,
            buddies: Buddies::default(),
            pending: None,
            ahead: PrecopyState::default(),
        };
        if own.is_some() {
            let mut medium = match open.remove(&rank_state.name) {
                Some(medium) => medium,
                None => left::open(tier, &rank_state.name, options.timeout)?,
            };
            let mut window = whole(&mut medium)?;
            let mut arena = Arena::resume(&mut window)?;
            // Before anything is computed: no later start, on any nodes, takes this one's number again.
            arena.start(&mut window, world.start)?;
            drop(window);
            rank_state.arena = Some((arena, medium));
            rank_state.warm = 0;
        }
        Ok(rank_state)
    }

    /// Has some more of an arena mapped that was there, before it is committed to: whether there is any left.
    fn warm(&mut self) -> bool {
        let Some((_, medium)) = &mut self.arena else {
            return false;
        };
        let part = self.warm..self.warm.saturating_add(WARM).min(medium.size());
        if part.is_empty() {
            return false;
        }
        self.warm = part.end;
        let windows = medium.windows(std::slice::from_ref(&part));
        windows.is_ok_and(|mut windows| {
            windows.iter_mut().for_each(MediumWindow::warm);
            true
        })
    }
}

/// Does as [`Arena::publish`], in an arena that grows if there is no space for a manifest.
fn publish<A: Medium>(
    arena: &mut Arena,
    medium: &mut A,
    new: Option<(VersionId, PersistenceLevel, RankManifest)>,
    keeps: impl Fn(&Version) -> bool,
) -> Result<(), CheckpointError> {
    debug_assert!(
        new.iter()
            .all(|(id, _, manifest)| arena.is_stored_apart(*id, manifest)),
        "a version is published that is stored where another one is"
    );
    let published = arena.publish(&mut whole(medium)?, new.clone(), &keeps);
    match published {
        Err(ArenaError::Full { wanted, .. }) => {
            grow(arena, medium, wanted)?;
            Ok(arena.publish(&mut whole(medium)?, new, keeps)?)
        }
        published => Ok(published?),
    }
}

/// Places for objects of these sizes, as in a slot, in an arena that grows if there is no space.
fn places<A: Medium>(
    arena: &mut Arena,
    medium: &mut A,
    sizes: &[u64],
) -> Result<Vec<u64>, CheckpointError> {
    let (offsets, length) = layout::slot(sizes.iter().copied()).ok_or_else(space::too_large)?;
    let places = arena.places(&whole(medium)?, &[length]);
    let at = match places {
        Err(ArenaError::Full { wanted, .. }) => {
            grow(arena, medium, wanted)?;
            arena.places(&whole(medium)?, &[length])?
        }
        places => places?,
    };
    Ok(offsets.iter().map(|offset| at[0] + offset).collect())
}

/// Makes space for so many bytes more, where gaps that objects of other sizes have left are too small.
fn grow<A: Medium>(arena: &mut Arena, medium: &mut A, bytes: u64) -> Result<(), CheckpointError> {
    let size = medium.size().checked_add(bytes);
    let size = size.and_then(|s| s.checked_add(LARGE)?.checked_next_multiple_of(LARGE));
    let size = size.ok_or_else(|| {
        CheckpointError::new(
            CheckpointErrorCode::Invalid,
            "the objects are larger than any memory",
        )
    })?;
    if let Err(e) = medium.grow(size) {
        let mut fault = CheckpointError::from(e);
        let pinned = whole(medium)?.pinned().unwrap_or_default().len();
        fault.text.push_str(&pinned_by_readers(pinned));
        return Err(fault);
    }
    arena.grown(medium.size());
    Ok(())
}

/// All of a medium.
fn whole<A: Medium>(medium: &mut A) -> Result<A::Window<'_>, MediumError> {
    let all = 0..medium.size();
    let mut windows = medium.windows(std::slice::from_ref(&all))?;
    windows.pop().ok_or(MediumError::Outside {
        range: all,
        size: 0,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
