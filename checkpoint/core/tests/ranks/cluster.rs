//! A program on nodes that are folders, and its ranks' commits.

use crate::flush::Store;
use crate::hall::Hall;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tarn_checkpoint_core::manifest::CHUNK;
use tarn_checkpoint_core::rank::Replicate;
use tarn_checkpoint_core::seal::RankSealer;
use tarn_checkpoint_core::{
    Arena, CheckpointError, CommitObject, Distance, Empty, Options, PersistenceLevel, Rank, Shape,
    StagingShare, VersionId, VersionRequirements,
};
use tarn_media::{Device, Folder, Profile};
use tarn_seal::SealError;
use tarn_types::key::{DataKey, KeyId};

pub(crate) type LocalRank = Rank<Folder, Folder>;

/// Bytes a second that a tier takes from all: much less than memory, also of a program that is not optimized.
pub(crate) const SLOW: u64 = 100_000_000;
pub(crate) const MOST: Duration = Duration::from_secs(30);
/// Two of them.
pub(crate) const VERSIONS: VersionRequirements = VersionRequirements {
    versions: 2,
    replicas: 0,
    persistence: PersistenceLevel::Committed,
};

/// A new key for a rank, wrapped with a secret: its number and the secret's byte will do here.
pub(crate) fn sealing(secret: u8, number: u64, clear: bool) -> Arc<RankSealer> {
    let key = move |number: &[u8]| {
        let mut bytes = [secret; 32];
        bytes[..8].copy_from_slice(number);
        DataKey::new(KeyId([0; 16]), bytes.into())
    };
    let unwrap = move |wrapped: &[u8]| match wrapped {
        [number @ .., by] if *by == secret => Ok(key(number)),
        [_, _, _, _, _, _, _, _, _] => Err(SealError::OtherKey),
        _ => Err(SealError::Unknown),
    };
    let wrapped = [&number.to_le_bytes()[..], &[secret]].concat();
    let own = key(&number.to_le_bytes());
    Arc::new(RankSealer::new(&own, wrapped.into(), Arc::new(unwrap), clear).unwrap())
}

/// A cluster in a folder: nodes with a tier and a memory each.
pub(crate) struct Cluster {
    pub(crate) folder: tempfile::TempDir,
    /// The node of each rank.
    pub(crate) nodes: Vec<&'static str>,
    pub(crate) staging: StagingShare,
    pub(crate) buddies: usize,
    pub(crate) helpers: usize,
    pub(crate) same_node: bool,
    pub(crate) replicate: Replicate,
    pub(crate) replicate_every: u64,
    /// Bytes a second that tiers take.
    pub(crate) tier: u64,
    pub(crate) store: Store,
    /// The secret that versions are sealed with.
    pub(crate) secret: Option<u8>,
    /// Whether programs that seal take versions in clear.
    pub(crate) clear: bool,
}

impl Cluster {
    pub(crate) fn new(nodes: &[&'static str]) -> Self {
        Self {
            folder: tempfile::tempdir_in("/dev/shm").unwrap(),
            nodes: nodes.to_vec(),
            staging: StagingShare::Half,
            buddies: 0,
            helpers: 1,
            same_node: false,
            replicate: Replicate::None,
            replicate_every: 1,
            tier: SLOW,
            store: Store::default(),
            secret: Some(1),
            clear: false,
        }
    }

    pub(crate) fn tier_of(&self, node: &str) -> PathBuf {
        self.folder.path().join(node).join("tier")
    }

    pub(crate) fn memory_of(&self, node: &str) -> PathBuf {
        self.folder.path().join(node).join("memory")
    }

    pub(crate) fn begin(&self, hall: &Arc<Hall>, rank: u32) -> Result<LocalRank, CheckpointError> {
        let node = self.nodes[rank as usize];
        let profile = Profile {
            device: self.tier,
            ..Profile::none()
        };
        let device = |profile| Arc::new(Device::new(profile));
        let tier = Folder::new(&self.tier_of(node), device(profile)).unwrap();
        let memory = Folder::new(&self.memory_of(node), device(Profile::none())).unwrap();
        let seed = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_nanos();
        let options = Options {
            run: b"run".as_slice().into(),
            identity: seed << 16 | u128::from(rank),
            staging: self.staging,
            buddies: self.buddies,
            same_node: self.same_node,
            distance: Distance::Near,
            replicate: self.replicate,
            replicate_every: self.replicate_every,
            timeout: MOST,
            helpers: self.helpers,
            audit: false,
            enter: Arc::new(|| ()),
            external: self.store.of(self.folder.path(), rank),
            leaves_out: true,
            seal: self
                .secret
                .map(|secret| sealing(secret, seed as u64, self.clear)),
        };
        Rank::begin(options, tier, memory, hall.seat(rank))
    }

    /// A start of the program: all ranks do the same, each in a thread of its own.
    pub(crate) fn start<R: Send>(
        &self,
        each: impl Fn(u32, LocalRank, &Hall) -> R + Sync,
    ) -> Vec<R> {
        let hall = Hall::new(&self.nodes);
        std::thread::scope(|scope| {
            let each = &each;
            let threads: Vec<_> = (0..self.nodes.len() as u32)
                .map(|rank| {
                    let hall = Arc::clone(&hall);
                    scope.spawn(move || each(rank, self.begin(&hall, rank).unwrap(), &hall))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }
}

pub(crate) const KEYS: [&[u8]; 4] = [b"empty", b"large", b"odd", b"small"];
pub(crate) const SIZES: [usize; 4] = [0, 9 * CHUNK as usize + 77, 3 * CHUNK as usize, 100];

/// The content of a rank's object in a step.
pub(crate) fn filled(object: usize, rank: u32, step: u64) -> Vec<u8> {
    let seed = (object as u64) << 48 | u64::from(rank) << 40 | step << 32;
    let word = |i: usize| {
        let mixed = (seed | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let mut bytes = vec![0; SIZES[object]];
    for (i, eight) in bytes.chunks_mut(8).enumerate() {
        eight.copy_from_slice(&word(i).to_be_bytes()[..eight.len()]);
    }
    bytes
}

pub(crate) fn state(rank: u32, step: u64) -> Vec<Vec<u8>> {
    (0..KEYS.len())
        .map(|object| filled(object, rank, step))
        .collect()
}

pub(crate) fn items(state: &[Vec<u8>]) -> Vec<CommitObject<'_>> {
    let item = |(key, bytes): (&&'static [u8], _)| CommitObject {
        key,
        unit: 1,
        shape: Shape::Own,
        bytes,
    };
    KEYS.iter()
        .zip(state.iter().map(Vec::as_slice))
        .map(item)
        .collect()
}

pub(crate) fn commit(rank: &mut LocalRank, of: u32, step: u64) -> VersionId {
    rank.commit(&items(&state(of, step))).unwrap().id
}

/// A version, and the content of each object.
pub(crate) type Restored = (VersionId, Vec<Vec<u8>>);

pub(crate) fn restart(rank: &mut LocalRank) -> Result<Option<Restored>, CheckpointError> {
    let mut state: Vec<Vec<u8>> = SIZES.iter().map(|size| vec![0xaa; *size]).collect();
    let mut objects: Vec<Empty<'_>> = KEYS
        .iter()
        .zip(&mut state)
        .map(|(key, bytes)| Empty {
            key,
            shape: Shape::Own,
            bytes,
        })
        .collect();
    let id = rank.restart(None, &mut objects)?;
    Ok(id.map(|id| (id, state)))
}

/// All ranks restart, and have the state of this step.
pub(crate) fn restarts(cluster: &Cluster, id: VersionId, step: u64) {
    cluster.start(|of, mut rank, _| {
        let (found, state_now) = restart(&mut rank).unwrap().expect("a version");
        assert_eq!(found, id, "rank {of}");
        assert!(state_now == state(of, step), "rank {of} has another state");
    });
}

/// The begin of a version's object in an arena.
pub(crate) fn place(arena: &Path, version: VersionId, key: &[u8]) -> u64 {
    let file = tarn_media::Reader::open(arena).unwrap();
    let arena = Arena::open(&file).unwrap();
    let found = arena.versions().iter().find(|v| v.id == version).unwrap();
    let mut objects = found.manifest.objects.iter();
    let object = objects.find(|o| *o.key == *key).unwrap();
    object.pieces[0].extent().unwrap().start
}

/// So many ranks meet here before any continues; one that does not come fails the others.
pub(crate) struct Gate(u32, AtomicU32);

impl Gate {
    pub(crate) fn new(ranks: u32) -> Self {
        Self(ranks, AtomicU32::new(0))
    }

    pub(crate) fn wait(&self) {
        let mine = self.1.fetch_add(1, SeqCst);
        let all = (mine / self.0 + 1) * self.0;
        soon(|| self.1.load(SeqCst) >= all);
    }
}

/// Waits until something is so.
pub(crate) fn soon(is: impl Fn() -> bool) {
    let until = Instant::now() + MOST;
    while !is() {
        assert!(Instant::now() < until, "it has not come to that");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn id(generation: u64, number: u64) -> VersionId {
    VersionId { generation, number }
}

/// Some byte of a file is changed.
pub(crate) fn damage(file: &Path, range: Range<u64>) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    for at in range {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    }
}
