//! The account of a tier that several runs share: a file `ledger` at the tier's root, changed under a lock.
//!
//! Every run publishes what it uses and has reserved before it moves or starts anything; together they never
//! exceed the tier. A run that died keeps its use counted as long as its folder is there: the bytes are.

mod cache;
mod held_space;
mod leftovers;
mod page;
mod vacate;

use crate::storage::store::{failure, io_failure};
use crate::storage::tier_folder::{make_private_folder, make_root};
use cache::uncache;
pub use cache::uncache_replicas;
use held_space::HeldSpace;
use leftovers::Leftover;
#[cfg(test)]
pub(crate) use page::left_by_the_dead;
use page::{TierClaims, WorkspaceClaim};
pub use page::{held_by_others, held_of};
pub(crate) use page::{record_export, used_by_all};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tarn_types::cluster::Cluster;
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::id::{NodeId, TierId, TierRef};
use tarn_types::nodes::{OwnedNodes, SpaceWaitCause};
use tarn_types::part::StoreKey;
use tarn_types::units::Bytes;
pub use vacate::vacate;

/// How often a run that waits looks at what others have changed.
const POLL: Duration = Duration::from_millis(200);
/// The same while no other run is there and this one waits for nothing: a node that only computes is left alone.
const POLL_ALONE: Duration = Duration::from_secs(1);
/// How long a run waits for space that only dead runs hold: they do not give it back by themselves.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long an older run waits before a younger one, which waits as well, gives its space to it.
const GIVE_WAY: Duration = Duration::from_secs(2);
/// A change of what others leave is reported to the engine from this fraction of the tier on: every report is a
/// record of the log.
const REPORT_FROM: u64 = 64;
/// While no other run is on a tier, this fraction of it is reserved beyond what is held: most changes of a run of
/// short steps are then covered by the claim on the page already, and cost no access to it.
const MARGIN: u64 = 4096;

/// One tier root.
#[derive(Debug)]
struct TierAccount {
    root: PathBuf,
    state: Mutex<Mine>,
    /// The engine knows the bytes that are kept here from earlier runs.
    counts_kept: AtomicBool,
}

/// This run's part of a tier. The claims of others are read from a file that they write: sums of them saturate.
#[derive(Debug)]
struct Mine {
    /// As the page has it, but for the bytes, which are in `space`.
    claim: WorkspaceClaim,
    space: HeldSpace,
    /// The bytes of the tier that this run has exported, beside its limit.
    exported: u64,
    others: u64,
    /// Bytes of what the others claim that are cached.
    others_cached: u64,
    /// Another live run waits for space here.
    others_wait: bool,
    /// The least of all live runs' limits.
    limit: u64,
    reported: u64,
    /// The claim of this run on the page, if no other run was on it then.
    published: Option<WorkspaceClaim>,
    /// Threads of this run that wait for space here.
    waiters: u64,
    /// This run has nothing to do but to wait, and others hold space here.
    idle: bool,
    /// The longest that an older run waits for space while it holds some: it has the right of way, so that two
    /// runs that hold a part each of what both need do not wait for each other for ever.
    elder_waits: Option<Duration>,
    /// The workspaces of dead runs that hold space, while no live run does.
    held_by_dead: Vec<String>,
}

/// Milliseconds since boot: the same for all processes of the machine.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (s, ns) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    s.saturating_mul(1000).saturating_add(ns / 1_000_000)
}

impl Mine {
    fn new(workspace: &str, pid: i32, start: u64) -> Self {
        Self {
            claim: WorkspaceClaim {
                workspace: workspace.to_owned(),
                pid,
                start,
                limit: 0,
                used: 0,
                reserved: 0,
                cached: 0,
                waiting: None,
            },
            space: HeldSpace::default(),
            exported: 0,
            others: 0,
            others_cached: 0,
            others_wait: false,
            limit: 0,
            reported: 0,
            published: None,
            waiters: 0,
            idle: false,
            elder_waits: None,
            held_by_dead: Vec::new(),
        }
    }

    /// Whether what this run and the others hold exceeds the tier.
    fn exceeds(&self) -> bool {
        self.space.total().saturating_add(self.others) > self.limit
    }

    /// Takes in the claims of others. This run's exports are none of them: its own limit is without.
    fn look(&mut self, claims: &[WorkspaceClaim]) {
        let exported = claims
            .iter()
            .filter(|c| c.is_export_of(&self.claim.workspace));
        self.exported = exported
            .map(WorkspaceClaim::weight)
            .fold(0, u64::saturating_add);
        let others = claims
            .iter()
            .filter(|c| !c.is_export_of(&self.claim.workspace));
        let others: Vec<&WorkspaceClaim> = others.collect();
        let weights = others.iter().map(|c| c.weight());
        self.others = weights.fold(0, u64::saturating_add);
        let cached = others.iter().map(|c| c.cached.min(c.used));
        self.others_cached = cached.fold(0, u64::saturating_add);
        self.others_wait = others.iter().any(|c| c.waiting.is_some() && c.alive());
        let limits = others.iter().filter(|c| c.alive()).map(|c| c.limit);
        self.limit = limits.fold(self.claim.limit, u64::min);
        let now = now_ms();
        let elders = others
            .iter()
            .filter(|c| c.seniority() < self.claim.seniority() && c.weight() > 0 && c.alive());
        self.elder_waits = elders
            .filter_map(|c| c.waiting)
            .map(|since| Duration::from_millis(now.saturating_sub(since)))
            .max();
        let live = others.iter().any(|c| c.alive() && c.weight() > 0);
        let dead = others.iter().filter(|c| !live && c.used > c.cached);
        self.held_by_dead = dead.map(|c| c.workspace.clone()).collect();
    }

    /// Whether the claim on the page is true enough: no less than the held bytes, and not much more.
    fn covered(&self) -> bool {
        let margin = self.claim.limit / MARGIN;
        self.published.as_ref().is_some_and(|p| {
            let published = p.used.checked_add(p.reserved);
            let surplus = published.and_then(|all| all.checked_sub(self.space.total()));
            surplus.is_some_and(|s| s <= 2 * margin)
                && p.used.abs_diff(self.space.used()) <= margin
                && p.cached.abs_diff(self.claim.cached) <= margin
                && p.waiting.is_none()
                && !self.waits()
        })
    }

    /// The claim to publish; `alone`: no other run is on the page.
    fn to_publish(&self, alone: bool) -> WorkspaceClaim {
        let mut claim = self.claim.clone();
        claim.limit = claim.limit.saturating_add(self.exported);
        claim.used = self.space.used();
        claim.reserved = self.space.reserved();
        if alone && claim.reserved > 0 && claim.waiting.is_none() {
            let left = self.claim.limit.checked_sub(self.space.total());
            claim.reserved += left.unwrap_or(0).min(self.claim.limit / MARGIN);
        }
        claim
    }

    /// So many bytes that were cached are not any more.
    fn uncache(&mut self, bytes: u64) {
        assert!(
            bytes <= self.claim.cached,
            "{bytes} bytes of cached data go, and {} are there",
            self.claim.cached
        );
        self.claim.cached -= bytes;
    }

    /// Whether this run stands in the way of an older one, and waits itself.
    fn must_give_way(&self) -> bool {
        self.waits() && self.elder_waits.is_some_and(|waited| waited > GIVE_WAY)
    }

    fn waits(&self) -> bool {
        self.waiters > 0 || self.idle
    }
}

impl TierAccount {
    /// Applies `change` to this run's claim. If the claim on the page does not cover it, and `allow` agrees to the sums of the
    /// page, writes it there; if `allow` disagrees, takes it back.
    fn update(
        &self,
        change: impl FnOnce(&mut Mine),
        allow: impl FnOnce(&Mine) -> bool,
    ) -> io::Result<bool> {
        let mut mine = self
            .state
            .lock()
            .map_err(|_| io::Error::other("poisoned"))?;
        let before = (mine.claim.clone(), mine.space);
        change(&mut mine);
        if mine.covered() {
            return Ok(true);
        }
        self.publish(&mut mine, before, allow)
    }

    /// Applies `change` to this run's account alone; the page has it with the next change.
    fn adjust(&self, change: impl FnOnce(&mut Mine)) {
        if let Ok(mut mine) = self.state.lock() {
            change(&mut mine);
        }
    }

    /// Looks at the page, and writes this run's claim to it, or what it was `before` if `allow` disagrees.
    ///
    /// # Errors
    /// The page cannot be read or written. The change stays in the account then.
    fn publish(
        &self,
        mine: &mut Mine,
        before: (WorkspaceClaim, HeldSpace),
        allow: impl FnOnce(&Mine) -> bool,
    ) -> io::Result<bool> {
        let _lock = page::lock(&self.root)?;
        let found = TierClaims::read(&self.root)?;
        let mut page = found.clone();
        page.entries
            .retain(|c| c.workspace != mine.claim.workspace && c.counts(&self.root));
        mine.look(&page.entries);
        let is_export = |c: &WorkspaceClaim| c.is_export_of(&mine.claim.workspace);
        let alone = page.entries.iter().all(is_export);
        let allowed = allow(mine);
        if !allowed {
            (mine.claim, mine.space) = before;
        }
        mine.claim.waiting = match mine.waits() {
            true => mine.claim.waiting.or_else(|| Some(now_ms())),
            false => None,
        };
        if mine.space.total() > 0 || mine.claim.waiting.is_some() {
            page.entries.push(mine.to_publish(alone));
        }
        let own = |c: &&WorkspaceClaim| alone && c.workspace == mine.claim.workspace;
        mine.published = page.entries.iter().find(own).cloned();
        // Claims are compared in one order: a look must not rewrite the file.
        page.entries.sort_by(|a, b| a.workspace.cmp(&b.workspace));
        if page != found
            && let Err(e) = page.write(&self.root)
        {
            // The page has an older claim: the next change writes it, however small.
            mine.published = None;
            // A change that is taken back already is no error: on an error the caller takes it back.
            if allowed {
                return Err(e);
            }
        }
        Ok(allowed)
    }

    fn refresh(&self) -> io::Result<bool> {
        let mine = self.state.lock();
        let mut mine = mine.map_err(|_| io::Error::other("poisoned"))?;
        let unchanged = (mine.claim.clone(), mine.space);
        self.publish(&mut mine, unchanged, |_| true)
    }
}

/// A thread that waits for space, until it is dropped: others see that this run waits.
struct Waiter<'a> {
    account: &'a TierAccount,
    since: Instant,
}

impl<'a> Waiter<'a> {
    fn new(account: &'a TierAccount) -> io::Result<Self> {
        let waiter = Self {
            account,
            since: Instant::now(),
        };
        // If the page cannot be written, dropping it takes the change back.
        account.update(|m| m.waiters += 1, |_| true)?;
        Ok(waiter)
    }

    /// Why it must not wait any longer, if so.
    fn hopeless(&self, bytes: u64) -> Option<RunError> {
        let mine = self.account.state.lock().ok()?;
        if mine.must_give_way() {
            return Some(failure(
                RunErrorKind::Cancelled,
                "an older run waits for space on the same tier and goes first; this is tried again",
            ));
        }
        let dead = !mine.held_by_dead.is_empty() && self.since.elapsed() > TIMEOUT;
        dead.then(|| failure(RunErrorKind::NoSpace, self.account.dead_text(&mine, bytes)))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let leave = |m: &mut Mine| {
            assert!(m.waiters > 0, "a thread that did not wait waits no longer");
            m.waiters -= 1;
        };
        // As for reservations.
        let _ = self.account.update(leave, |_| true);
    }
}

impl TierAccount {
    fn dead_text(&self, mine: &Mine, bytes: u64) -> String {
        let folders: Vec<_> = mine
            .held_by_dead
            .iter()
            .map(|w| self.root.join(w).display().to_string())
            .collect();
        let wanted = match bytes {
            0 => String::new(),
            _ => format!(", and {} are wanted", Bytes(bytes)),
        };
        format!(
            "{} of the tier at {} are held by what dead runs have left in {}{wanted}: finish those with `tarn resume` in \
             their folders or remove their data with `tarn data rm`, then `tarn resume` here",
            Bytes(mine.others),
            self.root.display(),
            folders.join(", ")
        )
    }
}

/// The accounts of all tier roots that a run uses.
#[derive(Debug)]
pub(crate) struct Ledgers {
    accounts: Vec<TierAccount>,
    /// TierRef, its account, its capacity at the start.
    tier_refs: BTreeMap<TierRef, (usize, u64)>,
    replicas: Mutex<BTreeMap<(TierRef, StoreKey), u64>>,
    /// Those of them that earlier runs have left, and this run has not taken over.
    leftovers: Mutex<BTreeMap<(TierRef, StoreKey), Leftover>>,
    /// Bytes on tiers that are not this run's at all.
    aside: Mutex<BTreeMap<TierRef, u64>>,
    /// The space that this run uses and has claimed on each tier of each node.
    budgets: Mutex<BTreeMap<TierRef, TierBudget>>,
    cached: Mutex<cache::CachedParts>,
}

/// Bytes of one tier of one node.
#[derive(Debug, Default)]
struct TierBudget {
    /// All that may be there, what is not this run's included.
    limit: u64,
    space: HeldSpace,
}

/// Space claimed on a tier; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    ledgers: &'a Ledgers,
    account: usize,
    tier_ref: TierRef,
    bytes: u64,
}

impl Reservation<'_> {
    /// The claimed bytes that have not arrived.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Claims `bytes` in all, if all that is on the tier or is on its way there leaves so much; else what that takes. Of
    /// several requests at once, one is the first.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), u64> {
        let more = bytes.max(self.bytes) - self.bytes;
        let mut others = 0;
        let mut fits = true;
        self.ledgers.on(self.tier_ref, |budget| {
            let all = budget.space.total();
            assert!(self.bytes <= all, "a claim is larger than all claims");
            others = all - self.bytes;
            let sum = others.checked_add(bytes);
            fits = sum.is_some_and(|sum| sum <= budget.limit) && budget.space.claim(more);
        });
        if !fits {
            return Err(others);
        }
        let mut foreign = 0;
        let claimed = Cell::new(true);
        let allow = |m: &Mine| {
            foreign = m.others;
            claimed.get() && (foreign == 0 || !m.exceeds())
        };
        let claim = |m: &mut Mine| claimed.set(m.space.claim(more));
        let updated = self.ledgers.accounts[self.account].update(claim, allow);
        // A ledger that cannot be written now is written with the next change.
        if claimed.get() && updated.unwrap_or(true) {
            self.bytes += more;
            return Ok(());
        }
        self.ledgers
            .on(self.tier_ref, |budget| budget.space.release(more));
        Err(others.saturating_add(foreign))
    }

    /// A replica has come, with the space it takes: as much of the reservation becomes used in the same step, so that
    /// nothing is ever counted twice.
    pub(crate) fn arrived(&mut self, key: &StoreKey, stored: u64) {
        self.ledgers
            .change(self.tier_ref, key, Some(stored), &mut self.bytes);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.ledgers
                .on(self.tier_ref, |budget| budget.space.release(self.bytes));
            // A ledger that cannot be written now is written with the next change, or counts as a dead run's.
            let account = &self.ledgers.accounts[self.account];
            let _ = account.update(|m| m.space.release(self.bytes), |_| true);
        }
    }
}

impl Ledgers {
    /// Opens the ledger of every tier root of the own nodes, creating the roots.
    pub(crate) fn open(
        cluster: &Cluster,
        own: &OwnedNodes,
        workspace: &str,
    ) -> Result<Self, RunError> {
        let mut accounts: Vec<TierAccount> = Vec::new();
        let mut tier_refs = BTreeMap::new();
        let mut budgets = BTreeMap::new();
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let start = tarn_sys::process::start_time(pid)
            .ok_or_else(|| failure(RunErrorKind::Io, "/proc is not mounted; tarn needs it"))?;
        let nodes = (0..).zip(&cluster.nodes);
        for (n, node) in nodes.filter(|(n, _)| own.has(NodeId(*n))) {
            for (t, tier) in (0..).zip(&node.tiers) {
                let at = accounts
                    .iter()
                    .position(|a| a.root == tier.root)
                    .unwrap_or(accounts.len());
                if at == accounts.len() {
                    make_root(&tier.root)
                        .map_err(|e| io_failure("use the tier", &tier.root, &e))?;
                    let own = tier.root.join(workspace);
                    make_private_folder(&own)
                        .map_err(|e| io_failure("use the folder", &own, &e))?;
                    accounts.push(TierAccount {
                        root: tier.root.clone(),
                        state: Mutex::new(Mine::new(workspace, pid, start)),
                        counts_kept: AtomicBool::new(false),
                    });
                }
                if let Ok(mine) = accounts[at].state.get_mut() {
                    mine.claim.limit = mine.claim.limit.saturating_add(tier.capacity);
                }
                let tier_ref = TierRef {
                    node: NodeId(n),
                    tier: TierId(t),
                };
                tier_refs.insert(tier_ref, (at, tier.capacity));
                let limit = tier.capacity;
                budgets.insert(
                    tier_ref,
                    TierBudget {
                        limit,
                        ..TierBudget::default()
                    },
                );
            }
        }
        let ledgers = Self {
            accounts,
            tier_refs,
            replicas: Mutex::default(),
            leftovers: Mutex::default(),
            aside: Mutex::default(),
            budgets: Mutex::new(budgets),
            cached: Mutex::default(),
        };
        for account in &ledgers.accounts {
            uncache(&account.root, workspace)
                .and_then(|()| account.refresh())
                .map_err(|e| io_failure("write the ledger of the tier", &account.root, &e))?;
        }
        Ok(ledgers)
    }

    fn on(&self, tier_ref: TierRef, change: impl FnOnce(&mut TierBudget)) {
        if let Ok(mut budgets) = self.budgets.lock() {
            change(budgets.entry(tier_ref).or_default());
        }
    }

    /// Claims space before something is written. Waits for other runs, up to a bound.
    pub(crate) fn reserve(
        &self,
        tier_ref: TierRef,
        bytes: u64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Reservation<'_>, RunError> {
        let Some(&(at, _)) = self.tier_refs.get(&tier_ref) else {
            return Err(failure(
                RunErrorKind::Io,
                format!(
                    "there is no tier {} of node {}",
                    tier_ref.tier, tier_ref.node
                ),
            ));
        };
        let account = &self.accounts[at];
        let unwritable =
            |e: io::Error| io_failure("write the ledger of the tier", &account.root, &e);
        let mut waiter = None;
        loop {
            // Without others, the engine's own account of the tier decides.
            let claimed = Cell::new(true);
            let allow = |m: &Mine| {
                claimed.get() && (m.others == 0 || (m.elder_waits.is_none() && !m.exceeds()))
            };
            let claim = |m: &mut Mine| claimed.set(m.space.claim(bytes));
            let allowed = bytes == 0
                || account.update(claim, allow).map_err(|e| {
                    if claimed.get() {
                        account.adjust(|m| m.space.release(bytes));
                    }
                    unwritable(e)
                })?;
            let too_large = || {
                let text = format!("no tier can hold {} more", Bytes(bytes));
                failure(RunErrorKind::NoSpace, text)
            };
            if !claimed.get() {
                return Err(too_large());
            }
            if allowed {
                self.on(tier_ref, |budget| claimed.set(budget.space.claim(bytes)));
                if !claimed.get() {
                    account.adjust(|m| m.space.release(bytes));
                    return Err(too_large());
                }
                return Ok(Reservation {
                    ledgers: self,
                    account: at,
                    tier_ref,
                    bytes,
                });
            }
            if cancelled() {
                return Err(failure(
                    RunErrorKind::Cancelled,
                    "stopped while waiting for space",
                ));
            }
            let waiter = match &mut waiter {
                Some(waiter) => waiter,
                none => none.insert(Waiter::new(account).map_err(unwritable)?),
            };
            if let Some(failure) = waiter.hopeless(bytes) {
                return Err(failure);
            }
            std::thread::sleep(POLL);
        }
    }

    /// How often the pages are to be looked at now.
    pub(crate) fn pause(&self) -> Duration {
        let alone = |a: &TierAccount| a.state.lock().is_ok_and(|m| m.others == 0 && !m.waits());
        match self.accounts.iter().all(alone) {
            true => POLL_ALONE,
            false => POLL,
        }
    }

    /// Threads that wait for space.
    pub(crate) fn waiters(&self) -> u64 {
        let waiting = |a: &TierAccount| a.state.lock().map_or(0, |m| m.waiters);
        self.accounts.iter().map(waiting).sum()
    }

    /// Notes since when this run has nothing to do but to wait for space, if it has; returns the causes that are here.
    pub(crate) fn idle(&self, since: Option<Instant>) -> SpaceWaitCause {
        let tired = since.is_some_and(|s| s.elapsed() > TIMEOUT);
        let mut waits = SpaceWaitCause::default();
        for account in &self.accounts {
            let Ok(mut mine) = account.state.lock() else {
                continue;
            };
            mine.idle = since.is_some() && mine.others > 0;
            if tired && !mine.held_by_dead.is_empty() && waits.dead.is_none() {
                waits.dead = Some(account.dead_text(&mine, 0));
            }
            waits.others |= mine.others > 0;
        }
        let kept = |(at, account): (usize, &TierAccount)| match self.counted_at(at) {
            0 => None,
            kept => Some(account.kept_text(kept)),
        };
        if tired {
            waits.kept = self.accounts.iter().enumerate().find_map(kept);
        }
        waits
    }

    /// Replicas of this run that stand in the way of an older run on the same tier.
    pub(crate) fn in_the_way(&self) -> Vec<(TierRef, StoreKey)> {
        let must = |a: &TierAccount| a.state.lock().is_ok_and(|m| m.must_give_way());
        let accounts: Vec<bool> = self.accounts.iter().map(must).collect();
        let Ok(replicas) = self.replicas.lock() else {
            return Vec::new();
        };
        let on = |tier_ref: &TierRef| {
            self.tier_refs
                .get(tier_ref)
                .is_some_and(|(at, _)| accounts[*at])
        };
        let all = replicas.keys().filter(|(tier_ref, _)| on(tier_ref));
        all.cloned().collect()
    }

    /// A replica was found, with the space it takes.
    pub(crate) fn found(&self, tier_ref: TierRef, key: &StoreKey, stored: u64) {
        self.change(tier_ref, key, Some(stored), &mut 0);
    }

    /// A replica has gone.
    pub(crate) fn left(&self, tier_ref: TierRef, key: &StoreKey) {
        self.change(tier_ref, key, None, &mut 0);
    }

    /// A replica that was found under one name has another.
    pub(crate) fn renamed(&self, tier_ref: TierRef, from: &StoreKey, to: &StoreKey) {
        if let Ok(mut replicas) = self.replicas.lock()
            && let Some(stored) = replicas.remove(&(tier_ref, from.clone()))
        {
            let before = replicas.insert((tier_ref, to.clone()), stored);
            debug_assert_eq!(before, None, "two replicas have one name");
        }
    }

    /// Records a replica's bytes. Growth is taken from the reservation, as far as that goes.
    fn change(&self, tier_ref: TierRef, key: &StoreKey, stored: Option<u64>, reserved: &mut u64) {
        let (Some(&(at, _)), Ok(mut replicas)) =
            (self.tier_refs.get(&tier_ref), self.replicas.lock())
        else {
            return;
        };
        let id = (tier_ref, key.clone());
        let before = match stored {
            Some(bytes) => replicas.insert(id, bytes),
            None => replicas.remove(&id),
        };
        let cached = match stored {
            Some(_) => 0,
            None => self.unmark(&(tier_ref, key.clone())),
        };
        let (plus, minus) = (stored.unwrap_or(0), before.unwrap_or(0));
        if plus == minus {
            return;
        }
        let settled = (plus.max(minus) - minus).min(*reserved);
        *reserved -= settled;
        self.on(tier_ref, |budget| budget.space.settle(minus, plus, settled));
        let change = |m: &mut Mine| {
            m.space.settle(minus, plus, settled);
            m.uncache(cached);
        };
        // As for reservations: the next change writes it again.
        let _ = self.accounts[at].update(change, |_| true);
        debug_assert!(self.is_balanced(at, &replicas));
    }

    /// Whether an account, and the budgets of its tiers, have just the replicas that are there.
    fn is_balanced(&self, account: usize, replicas: &BTreeMap<(TierRef, StoreKey), u64>) -> bool {
        let (Ok(mine), Ok(budgets)) = (self.accounts[account].state.lock(), self.budgets.lock())
        else {
            return true;
        };
        let tier_refs = self.tier_refs.iter().filter(|(_, (at, _))| *at == account);
        let mut used = 0;
        for (tier_ref, _) in tier_refs {
            let there = replicas.iter().filter(|((s, _), _)| s == tier_ref);
            let stored: u64 = there.map(|(_, bytes)| *bytes).sum();
            if budgets
                .get(tier_ref)
                .is_some_and(|b| b.space.used() != stored)
            {
                return false;
            }
            used += stored;
        }
        mine.space.used() == used
    }

    /// The bytes of each tier that this run may use, if they have changed enough since the last report.
    pub(crate) fn report_capacities(&self) -> Vec<(TierRef, u64)> {
        let mut capacities = Vec::new();
        for (at, account) in self.accounts.iter().enumerate() {
            if account.refresh().is_err() {
                continue;
            }
            let kept = self.counted_at(at);
            let Ok(mut mine) = account.state.lock() else {
                continue;
            };
            let own = mine.claim.limit.max(1);
            // Cached data of others goes when this run needs the space.
            assert!(
                mine.others_cached <= mine.others,
                "more is cached than is used"
            );
            let others = mine.others - mine.others_cached;
            let mut taken = (own - mine.limit.min(own)).saturating_add(others);
            if mine.elder_waits.is_some() {
                // Nothing new for this run before the older one has what it waits for.
                taken = taken.max(own.saturating_sub(mine.space.total()));
            }
            let lacking = taken.saturating_add(kept);
            let changed = lacking.abs_diff(mine.reported) > own / REPORT_FROM
                || (lacking == 0 && mine.reported != 0);
            if !changed {
                continue;
            }
            mine.reported = lacking;
            drop(mine);
            let left = u128::from(own.saturating_sub(taken));
            for (tier_ref, (_, capacity)) in self.tier_refs.iter().filter(|(_, (a, _))| *a == at) {
                let whole = capacity.saturating_sub(self.aside(*tier_ref));
                let share = u128::from(whole) * left / u128::from(own);
                let share = u64::try_from(share).unwrap_or(whole);
                capacities.push((
                    *tier_ref,
                    share.saturating_sub(self.counted_on(at, *tier_ref)),
                ));
            }
        }
        capacities
    }
}

impl Drop for Ledgers {
    fn drop(&mut self) {
        for account in &self.accounts {
            let last = |m: &mut Mine| {
                // Reservations and waiting threads borrow the ledgers: none is left.
                debug_assert_eq!((m.space.reserved(), m.waiters), (0, 0));
                m.idle = false;
                m.published = None;
            };
            let _ = account.update(last, |_| true);
        }
    }
}

#[cfg(test)]
mod tests;
