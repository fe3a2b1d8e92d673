//! Threads that copy. In a commit the caller fills memory from the end of the row, the helpers the persistent tier from its beginning, until
//! they meet. Once nothing more may be staged, the caller helps with the tier. In a restart all do the same.

use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::manifest::{CHUNK, ChunkProof};
use crate::seal::RankSealer;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::MediumWindow;

/// Fetches from other nodes at a time: while one is verified or written, others are on their way.
pub(crate) const FETCHES: usize = 4;
/// Chunks that wait to be sent to a buddy: they take memory of the program.
const WAITING: usize = 64;

/// One job with the places that it may be copied to.
#[derive(Debug)]
pub(crate) struct ChunkCopyTask<'a, T, S> {
    /// Its number in the order of the row.
    pub(crate) number: usize,
    /// The object, and which of its chunks is the first.
    pub(crate) of: (&'a [u8], u64),
    pub(crate) bytes: &'a [u8],
    /// Seals the copied bytes.
    pub(crate) seal: Option<&'a RankSealer>,
    /// In the arena.
    pub(crate) tier: T,
    /// In memory; none where there is no space for it.
    pub(crate) staged: Option<StagingTarget<S>>,
    /// Its checksums, once it is copied, and the proofs of sealed chunks.
    pub(crate) sums: Vec<u64>,
    pub(crate) proofs: Vec<ChunkProof>,
}

/// The place for the staged bytes of a job.
#[derive(Debug)]
pub(crate) struct StagingTarget<S> {
    /// Its first byte there.
    pub(crate) at: u64,
    pub(crate) own: S,
    /// The memory of buddies, where this process can write there.
    pub(crate) buddies: Vec<S>,
    /// That is where it was copied to.
    pub(crate) done: bool,
}

/// Sends buddies bytes to keep: their place, the bytes, and their checksum.
pub(crate) type BuddySender<'a> =
    dyn Fn(u64, &[u8], u64) -> Result<(), CheckpointError> + Sync + 'a;

/// The bytes and times that copying took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    /// Bytes copied to the tier.
    pub(crate) tier: u64,
    /// The time of helpers and the caller for that, added up.
    pub(crate) tier_time: Duration,
    /// Bytes staged, once each.
    pub(crate) memory: u64,
    /// The time for that, added up.
    pub(crate) memory_time: Duration,
}

impl Spent {
    fn add(&mut self, other: Self) {
        self.tier += other.tier;
        self.tier_time += other.tier_time;
        self.memory += other.memory;
        self.memory_time += other.memory_time;
    }
}

/// The result of copying.
pub(crate) struct ChunkCopyOutcome<'a, T, S> {
    /// All jobs, in their order.
    pub(crate) works: Vec<ChunkCopyTask<'a, T, S>>,
    pub(crate) spent: Spent,
    /// The reason why a buddy does not have the staged bytes.
    pub(crate) replication_failed: Option<CheckpointError>,
}

/// The state that the workers share.
struct ChunkCopyQueue<'a, T, S> {
    waiting: VecDeque<ChunkCopyTask<'a, T, S>>,
    done: Vec<ChunkCopyTask<'a, T, S>>,
    spent: Spent,
    failed: Option<CheckpointError>,
}

/// Copies all jobs; each of the helpers does `enter` first.
pub(crate) fn copy<'a, T: MediumWindow, S: MediumWindow>(
    works: Vec<ChunkCopyTask<'a, T, S>>,
    helpers: usize,
    enter: &(dyn Fn() + Sync),
    send: Option<&BuddySender<'_>>,
) -> Result<ChunkCopyOutcome<'a, T, S>, CheckpointError> {
    let count = works.len();
    let row = Mutex::new(ChunkCopyQueue {
        done: Vec::with_capacity(works.len()),
        waiting: works.into(),
        spent: Spent::default(),
        failed: None,
    });
    let replication_failed = std::thread::scope(|scope| {
        for _ in 0..helpers {
            let spawned = std::thread::Builder::new()
                .name("phx-copy".into())
                .spawn_scoped(scope, || {
                    enter();
                    run_copy_worker(&row, None);
                });
            if spawned.is_err() {
                // Without helpers the caller copies all.
                break;
            }
        }
        let Some(send) = send else {
            run_copy_worker(&row, Some(None));
            return None;
        };
        let (to, from) = sync_channel(WAITING);
        let sender = std::thread::Builder::new()
            .name("phx-send".into())
            .spawn_scoped(scope, move || {
                enter();
                sent(&from, send)
            });
        run_copy_worker(&row, Some(Some(&to)));
        drop(to);
        match sender.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(outcome)) => outcome.err(),
            _ => Some(CheckpointError::new(
                CheckpointErrorCode::NoMem,
                "no thread could be made to send to the buddy",
            )),
        }
    });
    let mut row = row.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(failed) = row.failed {
        return Err(failed);
    }
    assert_eq!(row.done.len(), count, "a job was not copied, or twice");
    row.done.sort_by_key(|work| work.number);
    Ok(ChunkCopyOutcome {
        works: row.done,
        spent: row.spent,
        replication_failed,
    })
}

/// A chunk for the buddy: where it is kept, and its checksum.
type BuddyChunk<'a> = (u64, Cow<'a, [u8]>, u64);

/// Sends chunks as they come, until there are no more or it fails.
fn sent(chunks: &Receiver<BuddyChunk<'_>>, send: &BuddySender<'_>) -> Result<(), CheckpointError> {
    chunks
        .iter()
        .try_for_each(|(at, bytes, sum)| send(at, &bytes, sum))
}

/// Copies jobs until none is left. A caller stages, and gives the staged chunks to the sender, if there is one.
fn run_copy_worker<'a, T: MediumWindow, S: MediumWindow>(
    row: &Mutex<ChunkCopyQueue<'a, T, S>>,
    caller: Option<Option<&SyncSender<BuddyChunk<'a>>>>,
) {
    let mut spent = Spent::default();
    let mut sender = caller.flatten();
    loop {
        let work = {
            let mut row = lock(row);
            let last_is_staged = row.waiting.back().is_some_and(|w| w.staged.is_some());
            match row.failed.is_none() {
                true if caller.is_some() && last_is_staged => row.waiting.pop_back(),
                true => row.waiting.pop_front().map(|mut work| {
                    work.staged = None;
                    work
                }),
                false => None,
            }
        };
        let Some(mut work) = work else { break };
        let started = Instant::now();
        let mut copied = work.copy(sender.is_some());
        let took = started.elapsed();
        match &mut work.staged {
            Some(staged) => {
                spent.memory += work.bytes.len() as u64;
                spent.memory_time += took;
                staged.done = true;
                let mut at = staged.at;
                let mut sealed = copied
                    .as_mut()
                    .map(std::mem::take)
                    .unwrap_or_default()
                    .into_iter();
                let plain = work.bytes.chunks(CHUNK as usize);
                for (chunk, sum) in plain.zip(&work.sums) {
                    let length = chunk.len() as u64;
                    // Sealed bytes are sent as ciphertext only.
                    let chunk = match (work.seal, sealed.next()) {
                        (None, _) => Cow::Borrowed(chunk),
                        (Some(_), Some(sealed)) => Cow::Owned(sealed),
                        (Some(_), None) => break,
                    };
                    // A sender that has given up has reported the reason.
                    if sender.is_some_and(|s| s.send((at, chunk, *sum)).is_err()) {
                        sender = None;
                    }
                    at += length;
                }
            }
            None => {
                spent.tier += work.bytes.len() as u64;
                spent.tier_time += took;
            }
        }
        let mut row = lock(row);
        match copied {
            Ok(_) => row.done.push(work),
            Err(fault) => row.failed = Some(fault),
        }
    }
    lock(row).spent.add(spent);
}

/// Does something in so many threads, one of them the caller's: the first of their errors. Those that cannot be made are done without.
pub(crate) fn at_once(
    threads: usize,
    name: &str,
    enter: &(dyn Fn() + Sync),
    what: &(dyn Fn() -> Result<(), CheckpointError> + Sync),
) -> Result<(), CheckpointError> {
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map_while(|_| {
                let named = std::thread::Builder::new().name(name.into());
                let entered = || {
                    enter();
                    what()
                };
                named.spawn_scoped(scope, entered).ok()
            })
            .collect();
        others.into_iter().fold(what(), |all, other| {
            let panicked = |_| {
                Err(CheckpointError::new(
                    CheckpointErrorCode::Internal,
                    format!("a {name} thread panicked"),
                ))
            };
            all.and(other.join().unwrap_or_else(panicked))
        })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: MediumWindow, S: MediumWindow> ChunkCopyTask<'_, T, S> {
    /// Copies all of it to where it goes. Sealed chunks are given back, if they are to be kept.
    pub(crate) fn copy(&mut self, keep: bool) -> Result<Vec<Vec<u8>>, CheckpointError> {
        let mut at = 0;
        let (mut kept, mut buffer) = (Vec::new(), Vec::new());
        let (key, first) = self.of;
        for (number, chunk) in (first..).zip(self.bytes.chunks(CHUNK as usize)) {
            let chunk = match self.seal {
                None => chunk,
                Some(seal) => {
                    buffer.clear();
                    buffer.extend_from_slice(chunk);
                    self.proofs.push(seal.seal(key, number, &mut buffer)?);
                    &buffer[..]
                }
            };
            let sum = match &mut self.staged {
                Some(StagingTarget { own, buddies, .. }) => match &mut buddies[..] {
                    [] => own.write(at, chunk)?,
                    [first, others @ ..] => {
                        let sum = own.write_both(first, at, chunk)?;
                        // The other copies are made while the chunk is in the caches.
                        for buddy in others {
                            buddy.write(at, chunk)?;
                        }
                        sum
                    }
                },
                None => self.tier.write(at, chunk)?,
            };
            self.sums.push(sum);
            at += chunk.len() as u64;
            if keep && self.seal.is_some() {
                kept.push(std::mem::take(&mut buffer));
            }
        }
        match &mut self.staged {
            Some(StagingTarget { own, buddies, .. }) => {
                own.persist()?;
                buddies.iter_mut().try_for_each(MediumWindow::persist)?;
            }
            None => self.tier.persist()?,
        }
        Ok(kept)
    }
}
