//! The account of a tier that several runs share: a file `ledger` at the tier's root, changed under a lock.
//!
//! Every run publishes what it uses and has reserved before it moves or starts anything; together they never
//! exceed the tier. A run that died keeps its use counted as long as its folder is there: the bytes are.

use crate::store::{failure, io_failure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tarn_base::cluster::Cluster;
use tarn_base::event::{Failure, FailureKind};
use tarn_base::id::{NodeId, Spot, TierId};
use tarn_base::part::StoreKey;
use tarn_base::units::Bytes;

/// How often a run that waits looks at what others have changed.
pub(crate) const POLL: Duration = Duration::from_millis(200);
/// How long a transfer or step waits for room that another run holds before it fails. The engine hears of the
/// lack at once and may make room meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// A change of what others leave is told to the engine from this fraction of the tier on: every telling is a
/// record of the log.
const TELL_FROM: u64 = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Page {
    entries: Vec<Claim>,
}

/// What one run claims of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    workspace: String,
    pid: i32,
    /// Start time of the process in ticks since boot, which tells it from a later one of the same id.
    start: u64,
    /// What the run takes the tier's size for.
    limit: u64,
    used: u64,
    reserved: u64,
}

impl Claim {
    fn alive(&self) -> bool {
        tarn_sys::process::start_time(self.pid) == Some(self.start)
    }
}

/// One tier root.
#[derive(Debug)]
struct Account {
    root: PathBuf,
    state: Mutex<Mine>,
}

#[derive(Debug)]
struct Mine {
    claim: Claim,
    others: u64,
    /// The least of all live runs' limits.
    limit: u64,
    told: u64,
}

impl Account {
    /// Reads the page, applies `change` to this run's claim if `allow` agrees to the sums, and writes it back.
    fn update(
        &self,
        change: impl FnOnce(&mut Claim),
        allow: impl FnOnce(&Mine) -> bool,
    ) -> io::Result<bool> {
        let mut mine = self
            .state
            .lock()
            .map_err(|_| io::Error::other("poisoned"))?;
        let lock = File::create(self.root.join("ledger.lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let found = self.read()?;
        let mut page = found.clone();
        page.entries.retain(|c| {
            let ours = c.workspace == mine.claim.workspace;
            !ours && (c.alive() || (c.used > 0 && self.root.join(&c.workspace).is_dir()))
        });
        let weight = |c: &Claim| match c.alive() {
            true => c.used.saturating_add(c.reserved),
            false => c.used,
        };
        mine.others = page.entries.iter().map(weight).fold(0, u64::saturating_add);
        let limits = page.entries.iter().filter(|c| c.alive()).map(|c| c.limit);
        mine.limit = limits.fold(mine.claim.limit, u64::min);
        let before = mine.claim.clone();
        change(&mut mine.claim);
        let allowed = allow(&mine);
        if !allowed {
            mine.claim = before;
        }
        if mine.claim.used > 0 || mine.claim.reserved > 0 {
            page.entries.push(mine.claim.clone());
        }
        // Claims are compared in one order: a look must not rewrite the file.
        page.entries.sort_by(|a, b| a.workspace.cmp(&b.workspace));
        if page != found {
            self.write(&page)?;
        }
        Ok(allowed)
    }

    /// A page that cannot be read (it is replaced by renames, so only a foreign hand can have damaged it) counts
    /// as empty: every live run writes its claim anew with its next change.
    fn read(&self) -> io::Result<Page> {
        match std::fs::read(self.root.join("ledger")) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Page::default()),
            Err(e) => Err(e),
        }
    }

    fn write(&self, page: &Page) -> io::Result<()> {
        let path = self.root.join("ledger");
        if page.entries.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
        }
        let temporary = self.root.join("ledger.tmp");
        std::fs::write(&temporary, serde_json::to_vec(page)?)?;
        std::fs::rename(&temporary, path)
    }
}

/// The accounts of all tier roots that a run uses.
#[derive(Debug)]
pub(crate) struct Ledgers {
    accounts: Vec<Account>,
    /// Spot, its account, its capacity at the start.
    spots: BTreeMap<Spot, (usize, u64)>,
    replicas: Mutex<BTreeMap<(Spot, StoreKey), u64>>,
}

/// Room claimed on a tier; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    ledgers: &'a Ledgers,
    account: usize,
    bytes: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // A ledger that cannot be written now is written with the next change, or counts as a dead run's.
            let _ = self.ledgers.accounts[self.account]
                .update(|c| c.reserved -= self.bytes.min(c.reserved), |_| true);
        }
    }
}

impl Ledgers {
    /// Opens the ledger of every tier root of the cluster, creating the roots.
    pub(crate) fn open(cluster: &Cluster, workspace: &str) -> Result<Self, Failure> {
        let mut accounts: Vec<Account> = Vec::new();
        let mut spots = BTreeMap::new();
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let start = tarn_sys::process::start_time(pid)
            .ok_or_else(|| failure(FailureKind::Io, "/proc is not mounted; tarn needs it"))?;
        for (n, node) in (0..).zip(&cluster.nodes) {
            for (t, tier) in (0..).zip(&node.tiers) {
                let at = accounts
                    .iter()
                    .position(|a| a.root == tier.root)
                    .unwrap_or(accounts.len());
                if at == accounts.len() {
                    crate::store::make_folder(&tier.root)?;
                    let claim = Claim {
                        workspace: workspace.to_owned(),
                        pid,
                        start,
                        limit: 0,
                        used: 0,
                        reserved: 0,
                    };
                    accounts.push(Account {
                        root: tier.root.clone(),
                        state: Mutex::new(Mine {
                            claim,
                            others: 0,
                            limit: 0,
                            told: 0,
                        }),
                    });
                }
                if let Ok(mine) = accounts[at].state.get_mut() {
                    mine.claim.limit = mine.claim.limit.saturating_add(tier.capacity);
                }
                let spot = Spot {
                    node: NodeId(n),
                    tier: TierId(t),
                };
                spots.insert(spot, (at, tier.capacity));
            }
        }
        let ledgers = Self {
            accounts,
            spots,
            replicas: Mutex::default(),
        };
        for account in &ledgers.accounts {
            account
                .update(|_| {}, |_| true)
                .map_err(|e| io_failure("write the ledger of the tier", &account.root, &e))?;
        }
        Ok(ledgers)
    }

    /// Claims room before something is written. Waits for other runs, up to a bound.
    pub(crate) fn reserve(
        &self,
        spot: Spot,
        bytes: u64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Reservation<'_>, Failure> {
        let Some(&(at, _)) = self.spots.get(&spot) else {
            return Err(failure(
                FailureKind::Io,
                format!("there is no tier {} of node {}", spot.tier, spot.node),
            ));
        };
        let account = &self.accounts[at];
        let since = Instant::now();
        loop {
            // Without others, the engine's own account of the tier decides.
            let allow = |m: &Mine| {
                let sum = [m.claim.used, m.claim.reserved, m.others];
                m.others == 0 || sum.iter().fold(0u64, |a, b| a.saturating_add(*b)) <= m.limit
            };
            let claimed = bytes == 0
                || account
                    .update(|c| c.reserved = c.reserved.saturating_add(bytes), allow)
                    .map_err(|e| io_failure("write the ledger of the tier", &account.root, &e))?;
            if claimed {
                return Ok(Reservation {
                    ledgers: self,
                    account: at,
                    bytes,
                });
            }
            if cancelled() {
                return Err(failure(
                    FailureKind::Cancelled,
                    "stopped while waiting for room",
                ));
            }
            if since.elapsed() > PATIENCE {
                return Err(failure(
                    FailureKind::NoSpace,
                    format!(
                        "other runs hold the room on the tier at {}: {} are wanted; wait for them, or give this run a tier of its own",
                        account.root.display(),
                        Bytes(bytes)
                    ),
                ));
            }
            std::thread::sleep(POLL);
        }
    }

    /// A replica has come, with the space it takes.
    pub(crate) fn arrived(&self, spot: Spot, key: &StoreKey, stored: u64) {
        self.change(spot, key, Some(stored));
    }

    /// A replica has gone.
    pub(crate) fn left(&self, spot: Spot, key: &StoreKey) {
        self.change(spot, key, None);
    }

    fn change(&self, spot: Spot, key: &StoreKey, stored: Option<u64>) {
        let (Some(&(at, _)), Ok(mut replicas)) = (self.spots.get(&spot), self.replicas.lock())
        else {
            return;
        };
        let id = (spot, key.clone());
        let before = match stored {
            Some(bytes) => replicas.insert(id, bytes),
            None => replicas.remove(&id),
        };
        let (plus, minus) = (stored.unwrap_or(0), before.unwrap_or(0));
        if plus != minus {
            // As for reservations: the next change writes it again.
            let _ = self.accounts[at].update(
                |c| c.used = c.used.saturating_add(plus).saturating_sub(minus),
                |_| true,
            );
        }
    }

    /// What this run may use of each tier, where that has changed enough since it was told last.
    pub(crate) fn news(&self) -> Vec<(Spot, u64)> {
        let mut news = Vec::new();
        for (at, account) in self.accounts.iter().enumerate() {
            if account.update(|_| {}, |_| true).is_err() {
                continue;
            }
            let Ok(mut mine) = account.state.lock() else {
                continue;
            };
            let own = mine.claim.limit.max(1);
            let taken = (own - mine.limit.min(own)).saturating_add(mine.others);
            let changed =
                taken.abs_diff(mine.told) > own / TELL_FROM || (taken == 0 && mine.told != 0);
            if !changed {
                continue;
            }
            mine.told = taken;
            let left = u128::from(own.saturating_sub(taken));
            for (spot, (_, capacity)) in self.spots.iter().filter(|(_, (a, _))| *a == at) {
                let share = u128::from(*capacity) * left / u128::from(own);
                news.push((*spot, u64::try_from(share).unwrap_or(*capacity)));
            }
        }
        news
    }
}

impl Drop for Ledgers {
    fn drop(&mut self) {
        for account in &self.accounts {
            let _ = account.update(|c| c.reserved = 0, |_| true);
        }
    }
}

fn claims(root: &Path) -> Vec<Claim> {
    let bytes = std::fs::read(root.join("ledger")).unwrap_or_default();
    serde_json::from_slice::<Page>(&bytes)
        .unwrap_or_default()
        .entries
}

/// Bytes of the tier at `root` that other workspaces' runs use or have reserved, for planning before a run.
pub fn held_by_others(root: &Path, workspace: &str) -> u64 {
    let weight = |c: &Claim| match c.alive() {
        true => c.used.saturating_add(c.reserved),
        false if root.join(&c.workspace).is_dir() => c.used,
        false => 0,
    };
    let all = claims(root);
    let others = all.iter().filter(|c| c.workspace != workspace);
    others.map(weight).fold(0, u64::saturating_add)
}

/// Bytes on the tier at `root` that are accounted to any workspace: they count as room of the tier that is taken,
/// not as room that it lacks.
pub(crate) fn used_by_all(root: &Path) -> u64 {
    let all = claims(root);
    let there = all
        .iter()
        .filter(|c| c.alive() || root.join(&c.workspace).is_dir());
    there.map(|c| c.used).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::cluster::{Host, Link, Node, Tier};

    fn cluster(root: &Path, nodes: u32, capacity: u64) -> Cluster {
        let link = Link {
            read: 1,
            write: 1,
            latency: 0,
            streams: 1,
            emulated: false,
        };
        let node = |i: u32| Node {
            name: format!("n{i}"),
            host: 0,
            cores: 1,
            memory: 0,
            gpus: 0,
            tiers: vec![Tier {
                name: "t".into(),
                root: root.into(),
                capacity,
                read: 1,
                write: 1,
            }],
        };
        Cluster {
            hosts: vec![Host {
                name: "h".into(),
                cores: 1,
                memory: 0,
            }],
            nodes: (0..nodes).map(node).collect(),
            external: link.clone(),
            peer: link,
        }
    }

    const SPOT: Spot = Spot {
        node: NodeId(0),
        tier: TierId(0),
    };

    #[test]
    fn two_runs_never_exceed_one_tier() {
        let root = tempfile::tempdir().unwrap();
        let a = Ledgers::open(&cluster(root.path(), 2, 1000), "a").unwrap();
        let b = Ledgers::open(&cluster(root.path(), 2, 1000), "b").unwrap();
        let held = a.reserve(SPOT, 1500, &|| false).unwrap();
        assert_eq!(
            b.news().iter().map(|(_, n)| *n).collect::<Vec<_>>(),
            [250, 250]
        );
        assert!(b.news().is_empty());
        assert!(b.reserve(SPOT, 400, &|| true).is_ok());
        let refused = b.reserve(SPOT, 600, &|| true).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Cancelled);
        a.arrived(SPOT, &StoreKey("k".into()), 700);
        drop(held);
        assert_eq!(held_by_others(root.path(), "b"), 700);
        assert!(b.reserve(SPOT, 1300, &|| true).is_ok());
        assert!(b.reserve(SPOT, 1301, &|| true).is_err());
        a.left(SPOT, &StoreKey("k".into()));
        assert_eq!(
            b.news().iter().map(|(_, n)| *n).collect::<Vec<_>>(),
            [1000, 1000]
        );
    }

    #[test]
    fn the_dead_keep_what_they_use_as_long_as_their_folder_is_there() {
        let root = tempfile::tempdir().unwrap();
        let claim = Claim {
            workspace: "gone".into(),
            pid: i32::MAX,
            start: 1,
            limit: 10,
            used: 300,
            reserved: 500,
        };
        let page = Page {
            entries: vec![claim],
        };
        std::fs::write(
            root.path().join("ledger"),
            serde_json::to_vec(&page).unwrap(),
        )
        .unwrap();
        std::fs::create_dir(root.path().join("gone")).unwrap();
        let b = Ledgers::open(&cluster(root.path(), 1, 1000), "b").unwrap();
        assert!(b.reserve(SPOT, 701, &|| true).is_err());
        assert!(b.reserve(SPOT, 700, &|| true).is_ok());
        std::fs::remove_dir(root.path().join("gone")).unwrap();
        assert!(b.reserve(SPOT, 1000, &|| true).is_ok());
    }

    #[test]
    fn threads_of_two_runs_race_for_the_last_bytes() {
        let root = tempfile::tempdir().unwrap();
        let runs: Vec<_> = ["a", "b"]
            .iter()
            .map(|w| Ledgers::open(&cluster(root.path(), 1, 1000), w).unwrap())
            .collect();
        // So that each has a claim that the other sees.
        let base: Vec<_> = runs
            .iter()
            .map(|r| r.reserve(SPOT, 1, &|| true).unwrap())
            .collect();
        let held = std::sync::atomic::AtomicU64::new(2);
        std::thread::scope(|s| {
            for run in &runs {
                for _ in 0..2 {
                    s.spawn(|| {
                        for _ in 0..50 {
                            if let Ok(r) = run.reserve(SPOT, 400, &|| true) {
                                let sum =
                                    held.fetch_add(400, std::sync::atomic::Ordering::SeqCst) + 400;
                                assert!(sum <= 1000, "{sum}");
                                held.fetch_sub(400, std::sync::atomic::Ordering::SeqCst);
                                drop(r);
                            }
                        }
                    });
                }
            }
        });
        drop(base);
    }
}
