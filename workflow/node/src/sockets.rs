//! Processor sockets divided among steps, and threads kept near what they move.
//!
//! Only processors are bound. Memory follows: Linux takes a page from the node of the processor that touches it first. A
//! policy of our own would do the same, and take from programs their own settings (`numactl`) and from the kernel the balancing
//! between nodes.

use crate::topology::{allowed, socket_of};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tarn_types::cluster::{Cluster, Socket};
use tarn_types::id::NodeId;
use tarn_types::nodes::OwnedNodes;

/// The sockets of a host.
#[derive(Debug)]
pub struct Sockets {
    all: Vec<Socket>,
    taken: Mutex<BTreeSet<u32>>,
}

impl Sockets {
    /// Those of the host that the own nodes are on, with the processors that this process may use. `None` where there is nothing
    /// to choose from: then the system is not queried.
    pub fn of(cluster: &Cluster, own: &OwnedNodes) -> Option<Self> {
        let nodes = (0..).map(NodeId).zip(&cluster.nodes);
        let hosts: BTreeSet<u32> = nodes
            .filter(|(id, _)| own.has(*id))
            .map(|(_, n)| n.host)
            .collect();
        let host = hosts.first().filter(|_| hosts.len() == 1)?;
        Self::divided(&cluster.hosts.get(*host as usize)?.sockets)
    }

    /// These, in the same way.
    pub fn divided(sockets: &[Socket]) -> Option<Self> {
        if sockets.len() < 2 {
            return None;
        }
        Self::within(sockets, &allowed().ok()?)
    }

    fn within(sockets: &[Socket], allowed: &BTreeSet<u32>) -> Option<Self> {
        let mut all = sockets.to_vec();
        for socket in &mut all {
            socket.cpus.retain(|cpu| allowed.contains(cpu));
        }
        all.retain(|s| !s.cpus.is_empty());
        (all.len() > 1).then(|| Self {
            all,
            taken: Mutex::default(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, tier: &str) -> Option<usize> {
        let has = |s: &Socket| s.tiers.iter().any(|t| t == tier);
        self.all.iter().position(has)
    }

    /// This thread, and what it starts, runs on the socket of a tier as long as the guard is there; `None` for a tier that
    /// is on none.
    pub fn near(&self, tier: &str) -> Option<Near> {
        Near::to(&self.all[self.with(tier)?].cpus)
    }

    /// Processors for a step: of the socket that its tier is on, or else of the one with most free, if there are enough;
    /// otherwise of as few sockets as can be, whole ones first. They are its own until the claim is dropped. If too few are free
    /// (they are taken by steps that the ledger does not count any more), it may use all.
    pub(crate) fn take(&self, cores: u32, tier: &str) -> CpuAllocation<'_> {
        let home = self.with(tier);
        let mut taken = self.taken();
        let free = |s: &Socket| -> Vec<u32> {
            s.cpus
                .iter()
                .filter(|c| !taken.contains(c))
                .copied()
                .collect()
        };
        let mut free: Vec<Vec<u32>> = self.all.iter().map(free).collect();
        let mut need = cores as usize;
        let mut own = Vec::new();
        if free.iter().map(Vec::len).sum::<usize>() >= need {
            while need > 0 {
                let best = |at: &usize| {
                    let (has, is_home) = (free[*at].len(), Some(*at) == home);
                    (is_home && has >= need, has, is_home, Reverse(*at))
                };
                let Some(at) = (0..free.len()).max_by_key(best) else {
                    break;
                };
                let some = need.min(free[at].len());
                own.extend(free[at].drain(..some));
                need -= some;
            }
        }
        debug_assert!(own.iter().all(|cpu| !taken.contains(cpu)));
        taken.extend(&own);
        let everything = || {
            self.all
                .iter()
                .flat_map(|s| s.cpus.iter().copied())
                .collect()
        };
        CpuAllocation {
            sockets: self,
            cpus: if own.is_empty() {
                everything()
            } else {
                own.clone()
            },
            own,
        }
    }
}

/// The processors of a step.
#[derive(Debug)]
pub(crate) struct CpuAllocation<'a> {
    sockets: &'a Sockets,
    pub(crate) cpus: Vec<u32>,
    /// Those of them that no other step uses.
    own: Vec<u32>,
}

impl Drop for CpuAllocation<'_> {
    fn drop(&mut self) {
        let mut taken = self.sockets.taken();
        debug_assert!(self.own.iter().all(|cpu| taken.contains(cpu)));
        taken.retain(|cpu| !self.own.contains(cpu));
    }
}

/// A thread that is bound; dropping this takes it back to where it was before.
#[derive(Debug)]
pub struct Near {
    before: CpuSet,
    /// It is this thread's.
    here: PhantomData<*const ()>,
}

impl Near {
    /// Binds this thread; `None` if the system refuses, and nothing has changed.
    fn to(cpus: &[u32]) -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        bind(cpus).ok()?;
        Some(Self {
            before,
            here: PhantomData,
        })
    }

    /// Near a folder, if that is on one of these sockets.
    pub fn folder(folder: &Path, sockets: &[Socket]) -> Option<Self> {
        Self::to(&sockets[socket_of(folder, sockets)?].cpus)
    }

    /// It stays there.
    pub fn for_good(self) {
        std::mem::forget(self);
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        // If it may not go back, the kernel has taken processors away and chosen others.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// This thread, and what it starts, runs on these processors only.
pub(crate) fn bind(cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU) {
        set.set(*cpu as usize);
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sockets of these processors; tier `near` is on the last.
    fn sockets(cpus: &[&[u32]]) -> Vec<Socket> {
        let last = cpus.len() - 1;
        let socket = |(at, cpus): (usize, &&[u32])| Socket {
            number: at as u32,
            cpus: cpus.to_vec(),
            numa: vec![at as u32],
            memory: 0,
            tiers: (at == last)
                .then(|| "near".to_owned())
                .into_iter()
                .collect(),
        };
        cpus.iter().enumerate().map(socket).collect()
    }

    fn all_of(cpus: &[&[u32]]) -> Sockets {
        let allowed = cpus.concat().into_iter().collect();
        Sockets::within(&sockets(cpus), &allowed).expect("several")
    }

    const TWO: &[&[u32]] = &[&[0, 1, 2, 3], &[4, 5, 6, 7]];

    #[test]
    fn steps_get_processors_of_one_socket_and_nobody_elses() {
        let sockets = all_of(TWO);
        let near = sockets.take(2, "near");
        assert_eq!(near.cpus, [4, 5], "where its tier is");
        let other = sockets.take(3, "near");
        assert_eq!(other.cpus, [0, 1, 2], "there is no space for it");
        let third = sockets.take(1, "elsewhere");
        assert_eq!(third.cpus, [6], "where most is free");
        let rest = sockets.take(2, "near");
        assert_eq!(rest.cpus, [7, 3], "what is left, wherever it is");
        let late = sockets.take(1, "near");
        assert_eq!(late.cpus, TWO.concat(), "none is left: it may use all");
        drop((near, late));
        assert_eq!(sockets.take(2, "elsewhere").cpus, [4, 5], "given back");
        drop((other, third, rest));
        assert!(sockets.taken().is_empty());
    }

    #[test]
    fn steps_larger_than_a_socket_get_whole_ones_first() {
        let sockets = all_of(TWO);
        let large = sockets.take(6, "near");
        assert_eq!(large.cpus, [4, 5, 6, 7, 0, 1]);
        assert_eq!(sockets.take(2, "near").cpus, [2, 3]);
        drop(large);
        assert_eq!(sockets.take(8, "").cpus.len(), 8);
        assert_eq!(sockets.take(9, "").cpus.len(), 8, "more than there are");
        let uneven = all_of(&[&[0], &[1, 2, 3], &[4]]);
        assert_eq!(uneven.take(2, "near").cpus, [1, 2], "its own has too few");
        assert_eq!(
            uneven.take(4, "near").cpus,
            [1, 2, 3, 4],
            "its own before others"
        );
    }

    #[test]
    fn only_what_is_allowed_is_divided() {
        let some = |cpus: &[u32]| Sockets::within(&sockets(TWO), &cpus.iter().copied().collect());
        let uneven = some(&[3, 4, 5, 6]).expect("several");
        assert_eq!(uneven.take(1, "").cpus, [4]);
        assert_eq!(uneven.take(3, "").cpus.len(), 3);
        assert!(
            some(&[0, 1, 2, 3]).is_none(),
            "one socket: nothing to choose from"
        );
    }

    #[test]
    fn a_thread_goes_to_a_socket_and_back() {
        let allowed: Vec<u32> = allowed().unwrap().into_iter().collect();
        let [first, second, ..] = allowed[..] else {
            return eprintln!("skipped: it takes two processors");
        };
        let here = || super::allowed().unwrap().into_iter().collect::<Vec<u32>>();
        let sockets = all_of(&[&[first], &[second]]);
        {
            let _near = sockets.near("near").expect("a socket");
            assert_eq!(here(), [second]);
            let started = std::thread::spawn(move || super::allowed().unwrap());
            assert_eq!(
                started.join().unwrap(),
                [second].into(),
                "what it starts stays with it"
            );
        }
        assert_eq!(here(), allowed);
        assert!(sockets.near("elsewhere").is_none());
    }
}
