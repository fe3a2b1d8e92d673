//! Programs with checkpoints: processes of this program, each a rank, that commit and restart beside memcpy of the same bytes.

use super::{Args, MIB, RankRole};
use crate::figure::{BenchFigure, median};
use crate::processes;
use crate::scratch::ScratchFolder;
use anyhow::ensure;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_checkpoint_core::seal::RankSealer;
use tarn_checkpoint_core::split::StagingRates;
use tarn_checkpoint_core::{
    CommitObject, Distance, Empty, Options, PersistenceLevel, Rank, Replicate, Shape, StagingShare,
    VersionId,
};
use tarn_dirty_pages::Tracker;
use tarn_media::{Device, Folder, MappedFile, Profile};
use tarn_ports::{Medium, Ranks};
use tarn_ranks::Meeting;
use tarn_seal::SealError;
use tarn_sys::private::random;
use tarn_types::key::{DataKey, KEY_BYTES, KeyId};
use tarn_types::units::{Bytes, SECOND};

/// The longest wait of a rank for the others.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// Rounds that are not measured: until rates are known, and all memory was touched.
pub(super) const WARM: u32 = 3;
/// Objects of a rank, at most.
const OBJECTS: usize = 47;
/// A large page.
const LARGE: usize = 2 << 20;
/// Bytes that a rank of GTC writes in a checkpoint, and the share of its computing time that a checkpoint takes which copies all at
/// once (Fernando 2016, section III).
pub(super) const GTC: (u64, f64) = (235_000_000, 0.37);
/// The same of CM1; it writes all until the checkpoint.
const CM1: f64 = 0.07;
/// The part of GTC's bytes that is written early in a cycle. The paper does not say. Its figures are a checkpoint twice as fast when half
/// is staged, and twelve times with copies ahead: 2 / (1 - share) = 12.
const EARLY: f64 = 5.0 / 6.0;
/// Early bytes are written until this part of a cycle; the rest until its end (examples/checkpoints/proxies.conf).
const EARLY_UNTIL: f64 = 0.25;
/// Cycles before precopies are measured: they learn when each page is written.
pub(super) const LEARN: u32 = 6;
/// A key that guards nothing.
const KEY: [u8; 32] = [0x2a; 32];

/// The work of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct BenchRankSpec {
    pub(super) dir: PathBuf,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) bytes: u64,
    pub(super) rounds: u32,
    /// Rounds before those.
    pub(super) warm: u32,
    pub(super) profile: Option<String>,
    pub(super) staging: StagedShare,
    pub(super) buddy: bool,
    pub(super) restart: bool,
    pub(super) helpers: u32,
    pub(super) cycle: Option<ComputeCycle>,
    /// HOST:PORT of rank 0, if each is on a node of its own.
    pub(super) meet: Option<String>,
    /// Other nodes that have all of a version.
    pub(super) copies: usize,
    /// Whether versions are.
    pub(super) encrypt: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StagedShare {
    Nothing,
    Half,
    All,
}

/// A rank's computing between two commits.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct ComputeCycle {
    nanos: u64,
    /// The part of its bytes that is written early.
    early: f64,
    ahead: bool,
}

/// A rank's times, in seconds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RankTimes {
    memcpy: Vec<f64>,
    memcpy_back: Vec<f64>,
    commit: Vec<f64>,
    destage: Vec<f64>,
    staged: Vec<f64>,
    cycle: Vec<f64>,
    restart: Vec<f64>,
    restart_cold: Vec<f64>,
}

/// One rank, in a process of its own.
///
/// # Errors
/// When anything fails.
pub(super) fn rank(does: &BenchRankSpec) -> anyhow::Result<()> {
    let bytes = usize::try_from(does.bytes)?;
    let (memory, watches) = match does.cycle {
        Some(_) => Tracker::probe()?.leak(bytes, object(bytes))?,
        None => (vec![0; bytes].leak(), Vec::new()),
    };
    fill(memory, does.rank, 0);
    let ahead = does.cycle.is_some_and(|c| c.ahead);
    let mut plain = MappedFile::create(&does.dir.join(format!("plain.{}", does.rank)), does.bytes)?;
    let all = 0..does.bytes;
    let all = std::slice::from_ref(&all);
    let mut took = RankTimes::default();
    let mut last = None;
    {
        let meeting = does.meeting()?;
        let mut program = does.begin(&meeting)?;
        for (n, watch) in watches.into_iter().enumerate().filter(|_| ahead) {
            program.watch(&key(n), Box::new(watch), false);
        }
        for round in 0..does.warm + does.rounds {
            let together = || meeting.exchange(b"", TIMEOUT);
            let measured = round >= does.warm;
            if does.cycle.is_none() {
                together()?;
                let began = Instant::now();
                plain.windows(all)?[0].bytes().copy_from_slice(memory);
                push(&mut took.memcpy, measured, began);
                together()?;
                let began = Instant::now();
                memory.copy_from_slice(plain.windows(all)?[0].bytes());
                push(&mut took.memcpy_back, measured, began);
            }
            together()?;
            let began = Instant::now();
            if let Some(cycle) = does.cycle {
                compute(memory, cycle, round);
                push(&mut took.cycle, measured, began);
            }
            together()?;
            let began = Instant::now();
            let committed = program.commit(&items(memory))?;
            push(&mut took.commit, measured, began);
            ensure!(committed.degraded.is_none(), "{:?}", committed.degraded);
            last = Some(committed.id);
            if does.cycle.is_none() {
                program.wait(committed.id, PersistenceLevel::Durable, TIMEOUT)?;
            }
            if measured {
                let stats = program.stats();
                took.destage.push(stats.last_destage.as_secs_f64());
                took.staged.push(stats.last_staged as f64);
            }
        }
        program.end()?;
    }
    if does.restart {
        time_restarts(does, memory, last, &mut took)?;
    }
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &took)?;
    Ok(out.flush()?)
}

/// Restores the last version as often as there are rounds, into warm and into fresh memory.
fn time_restarts(
    does: &BenchRankSpec,
    memory: &mut [u8],
    last: Option<VersionId>,
    took: &mut RankTimes,
) -> anyhow::Result<()> {
    let wanted = memory.to_vec();
    for round in 0..does.rounds {
        memory.fill(0xff);
        took.restart.push(restart(does, memory, last)?);
        ensure!(memory == wanted, "what came back is not what was committed");
        // Fresh pages: never touched.
        let mut cold = vec![0; memory.len()];
        took.restart_cold.push(restart(does, &mut cold, last)?);
        ensure!(
            round > 0 || cold == wanted,
            "what came back is not what was committed"
        );
    }
    Ok(())
}

fn push(to: &mut Vec<f64>, measured: bool, began: Instant) {
    if measured {
        to.push(began.elapsed().as_secs_f64());
    }
}

impl BenchRankSpec {
    /// The folder of a rank's node.
    pub(super) fn node(&self) -> PathBuf {
        match &self.meet {
            Some(_) => self.dir.join(format!("node{}", self.rank)),
            None => self.dir.clone(),
        }
    }

    /// Meets the others.
    pub(super) fn meeting(&self) -> anyhow::Result<Arc<Meeting>> {
        let nodes = self.meet.as_ref();
        Ok(Meeting::join(tarn_ranks::Options {
            folder: self.node().join("meet"),
            rank: self.rank,
            ranks: self.ranks,
            meet: self.meet.clone(),
            node: nodes.map(|_| format!("node{}", self.rank)),
            switches: None,
            key: nodes.map(|_| KEY),
            timeout: TIMEOUT,
        })?)
    }

    pub(super) fn begin(&self, meeting: &Arc<Meeting>) -> anyhow::Result<Rank<Folder, Folder>> {
        let node = self.node();
        let device = match &self.profile {
            Some(profile) => {
                let profile = Profile::named(profile)?;
                Device::shared(profile, &node.join("meet/nvram"))?
            }
            None => Device::new(Profile::none()),
        };
        let memory = Arc::new(Device::new(Profile::none()));
        let options = Options {
            run: b"bench".as_slice().into(),
            identity: u128::from(self.rank) + 1,
            staging: match self.staging {
                StagedShare::Nothing => StagingShare::None,
                StagedShare::Half => StagingShare::Half,
                StagedShare::All => StagingShare::All,
            },
            buddies: usize::from(self.buddy),
            replicate: match self.copies {
                0 => Replicate::None,
                copies => Replicate::Copies(copies),
            },
            replicate_every: 1,
            same_node: self.meet.is_none(),
            distance: Distance::Near,
            timeout: TIMEOUT,
            helpers: self.helpers as usize,
            audit: false,
            enter: Arc::new(|| ()),
            external: None,
            leaves_out: false,
            seal: self.encrypt.then(sealing).transpose()?,
        };
        let tier = Folder::new(&node.join("tier"), Arc::new(device))?;
        let memory = Folder::new(&node.join("memory"), memory)?;
        let ranks: Arc<dyn Ranks> = Arc::clone(meeting) as Arc<dyn Ranks>;
        Ok(Rank::begin(options, tier, memory, ranks)?)
    }
}

/// Seconds of a restart, without the preparation.
fn restart(
    does: &BenchRankSpec,
    memory: &mut [u8],
    last: Option<VersionId>,
) -> anyhow::Result<f64> {
    let meeting = does.meeting()?;
    let mut program = does.begin(&meeting)?;
    meeting.exchange(b"", TIMEOUT)?;
    let began = Instant::now();
    let restored = restored(&mut program, memory)?;
    let took = began.elapsed().as_secs_f64();
    ensure!(restored == last, "{restored:?} instead of {last:?}");
    Ok(took)
}

/// Fills memory from the newest version: which that is.
pub(super) fn restored(
    program: &mut Rank<Folder, Folder>,
    memory: &mut [u8],
) -> anyhow::Result<Option<VersionId>> {
    let size = object(memory.len());
    let keys: Vec<Vec<u8>> = (0..OBJECTS).map(key).collect();
    let parts = memory.chunks_mut(size).zip(&keys);
    let mut objects: Vec<Empty<'_>> = parts
        .map(|(bytes, key)| Empty {
            key,
            shape: Shape::Own,
            bytes,
        })
        .collect();
    let restored = program.restart(None, &mut objects)?;
    ensure!(restored.is_some(), "there is no version");
    Ok(restored)
}

/// Bytes of an object, of so many in all: large pages, as objects have that were made by their own calls.
fn object(bytes: usize) -> usize {
    bytes.div_ceil(OBJECTS).next_multiple_of(LARGE)
}

fn key(number: usize) -> Vec<u8> {
    format!("object{number:02}").into_bytes()
}

/// The objects that a rank's memory is.
fn parts(memory: &[u8]) -> Vec<&[u8]> {
    memory.chunks(object(memory.len())).collect()
}

/// Keys that are as long as the program.
pub(super) fn items(memory: &[u8]) -> Vec<CommitObject<'_>> {
    static KEYS: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    let keys = KEYS.get_or_init(|| (0..OBJECTS).map(key).collect());
    let item = |(bytes, key)| CommitObject {
        key,
        unit: 1,
        shape: Shape::Own,
        bytes,
    };
    parts(memory)
        .into_iter()
        .zip(keys.iter().map(Vec::as_slice))
        .map(item)
        .collect()
}

pub(super) fn fill(memory: &mut [u8], rank: u32, round: u32) {
    for (n, word) in memory.chunks_mut(8).enumerate() {
        let value = (n as u64 ^ u64::from(rank) << 40 ^ u64::from(round) << 48)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// A cycle: the early objects are written in its first part, one after the other, the others in each quarter, as by gtc.f90 among the
/// proxies. Between two writes it sleeps, as if it computed elsewhere.
fn compute(memory: &mut [u8], cycle: ComputeCycle, round: u32) {
    let began = Instant::now();
    let length = Duration::from_nanos(cycle.nanos);
    let size = object(memory.len());
    let early = (memory.len().div_ceil(size) as f64 * cycle.early) as usize;
    let (early, late) = memory.split_at_mut((early * size).min(memory.len()));
    let count = early.len().div_ceil(size).max(1) as f64;
    for (n, object) in early.chunks_mut(size).enumerate() {
        touch(object, round);
        sleep_until(began + length.mul_f64(EARLY_UNTIL * (n + 1) as f64 / count));
    }
    const QUARTERS: u32 = 4;
    for n in 1..=QUARTERS {
        sleep_until(began + length * n / QUARTERS);
        touch(late, round * QUARTERS + n);
    }
}

fn sleep_until(when: Instant) {
    std::thread::sleep(when.saturating_duration_since(Instant::now()));
}

/// Writes some of each page.
fn touch(memory: &mut [u8], value: u32) {
    for page in memory.chunks_mut(4096) {
        for byte in page.iter_mut().step_by(64) {
            *byte = byte.wrapping_add(value as u8 | 1);
        }
    }
}

/// Runs all ranks; returns their times, each that of the slowest.
fn run(args: &Args, does: &BenchRankSpec) -> anyhow::Result<RankTimes> {
    let scratch = ScratchFolder::new(&args.dir)?;
    let outputs = processes::outputs((0..does.ranks).map(|rank| {
        let dir = scratch.path().to_owned();
        let does = BenchRankSpec {
            dir,
            rank,
            ..does.clone()
        };
        RankRole::Commits(does).command(None)
    }))?;
    let all = outputs.iter().map(|output| serde_json::from_slice(output));
    let all: Vec<RankTimes> = all.collect::<Result<_, _>>()?;
    let slowest = |of: fn(&RankTimes) -> &Vec<f64>| -> Vec<f64> {
        let rounds = all.iter().map(|t| of(t).len()).min().unwrap_or(0);
        (0..rounds)
            .map(|n| all.iter().map(|t| of(t)[n]).fold(0.0, f64::max))
            .collect()
    };
    Ok(RankTimes {
        memcpy: slowest(|t| &t.memcpy),
        memcpy_back: slowest(|t| &t.memcpy_back),
        commit: slowest(|t| &t.commit),
        destage: slowest(|t| &t.destage),
        staged: slowest(|t| &t.staged),
        cycle: slowest(|t| &t.cycle),
        restart: slowest(|t| &t.restart),
        restart_cold: slowest(|t| &t.restart_cold),
    })
}

impl BenchRankSpec {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            dir: PathBuf::new(),
            rank: 0,
            ranks: args.threads,
            bytes: args.mib * MIB,
            rounds: args.rounds,
            warm: WARM,
            profile: None,
            staging: StagedShare::Nothing,
            buddy: false,
            restart: false,
            helpers: args.helpers,
            cycle: None,
            meet: None,
            copies: 0,
            encrypt: false,
        }
    }

    fn all(&self) -> f64 {
        self.bytes as f64 * f64::from(self.ranks)
    }

    fn size(&self) -> String {
        format!("{} ranks, {} each", self.ranks, Bytes(self.bytes))
    }
}

/// Bytes a second.
fn rate(bytes: f64, seconds: &[f64]) -> f64 {
    bytes / median(seconds) / 1e9
}

/// Checkpoints and restarts on the tier itself.
pub(super) fn commit(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let does = BenchRankSpec {
        restart: true,
        ..BenchRankSpec::new(args)
    };
    let (all, size) = (does.all(), does.size());
    let mut figures = Vec::new();
    for (encrypt, how) in [(false, ""), (true, ", encrypted")] {
        let took = run(
            args,
            &BenchRankSpec {
                encrypt,
                ..does.clone()
            },
        )?;
        let measured = [
            (
                "commit, with checksums, to a mapped file",
                &took.commit,
                &took.memcpy,
            ),
            (
                "restart into memory that was touched",
                &took.restart,
                &took.memcpy_back,
            ),
            (
                "restart into memory that was not",
                &took.restart_cold,
                &took.memcpy_back,
            ),
        ];
        figures.extend(measured.map(|(what, ours, plain)| BenchFigure {
            name: format!("{what}{how}, {size}"),
            value: rate(all, ours),
            unit: "GB/s",
            against: Some(("memcpy".into(), rate(all, plain))),
        }));
    }
    Ok(figures)
}

/// With a key that guards nothing: its wrapped form is the key.
fn sealing() -> anyhow::Result<Arc<RankSealer>> {
    let key = |secret: &[u8]| {
        let secret = <[u8; KEY_BYTES]>::try_from(secret).map_err(|_| SealError::OtherKey)?;
        Ok(DataKey::new(KeyId([0; 16]), secret.into()))
    };
    let secret: [u8; KEY_BYTES] = random()?;
    let own = key(&secret)?;
    Ok(Arc::new(RankSealer::new(
        &own,
        secret.into(),
        Arc::new(key),
        false,
    )?))
}

/// An NVRAM with a part of memory's rate.
pub(super) fn emulated_profile(memcpy: f64, part: u32) -> String {
    format!("device={}B/s", (memcpy * 1e9 / f64::from(part)) as u64)
}

/// The rate at which two processes copy together by memcpy, in GB/s.
pub(super) fn memory_rate(args: &Args, does: &BenchRankSpec) -> anyhow::Result<f64> {
    let took = run(args, does)?;
    Ok(rate(does.all(), &took.memcpy))
}

/// Checkpoints to a slower tier, some of them staged, with a copy in the memory of a buddy on this machine.
pub(super) fn split(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let plain = BenchRankSpec::new(args);
    let memory = memory_rate(args, &plain)?;
    let mut figures = Vec::new();
    for part in [4, 8] {
        let does = BenchRankSpec {
            profile: Some(emulated_profile(memory, part)),
            ..plain.clone()
        };
        let naive = run(args, &does)?;
        let half = run(
            args,
            &BenchRankSpec {
                staging: StagedShare::Half,
                buddy: true,
                ..does.clone()
            },
        )?;
        let auto = run(
            args,
            &BenchRankSpec {
                staging: StagedShare::All,
                buddy: true,
                ..does.clone()
            },
        )?;
        let all = does.all();
        let p = memory * 1e9 / f64::from(part);
        let rates = StagingRates {
            persistent: p as u64,
            memory: (memory * 1e9) as u64,
            copies: 2,
        };
        let bound = rates.time(rates.split(all as u64, u64::MAX)) as f64 / SECOND as f64;
        let name = |what: &str| {
            format!(
                "{what}, tier of 1/{part} of memory ({}), {}",
                does.profile.as_deref().unwrap_or_default(),
                does.size()
            )
        };
        let seconds = |took: &RankTimes| median(&took.commit);
        figures.extend([
            BenchFigure {
                name: name("checkpoint, half of it staged and at a buddy"),
                value: seconds(&half),
                unit: "s",
                against: Some(("all to the tier".into(), seconds(&naive))),
            },
            BenchFigure {
                name: name("checkpoint, staged as much as pays"),
                value: seconds(&auto),
                unit: "s",
                against: Some(("the least there can be".into(), bound)),
            },
            BenchFigure {
                name: name("its de-staging"),
                value: median(&auto.destage),
                unit: "s",
                against: Some((
                    "its bytes at the tier's rate".into(),
                    median(&auto.staged) * f64::from(does.ranks) / p,
                )),
            },
        ]);
    }
    Ok(figures)
}

/// Checkpoints of GTC's pattern, for several parts that are written early, and of CM1's.
pub(super) fn precopy(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let plain = BenchRankSpec::new(args);
    let memory = memory_rate(args, &plain)?;
    let part = 4;
    let gtc = BenchRankSpec {
        bytes: GTC.0,
        warm: WARM + LEARN,
        profile: Some(emulated_profile(memory, part)),
        ..plain
    };
    let naive_seconds = gtc.all() / (memory * 1e9 / f64::from(part));
    let cycle = |share: f64, early: f64, ahead: bool| ComputeCycle {
        nanos: (naive_seconds / share * 1e9) as u64,
        early,
        ahead,
    };
    let mut figures = Vec::new();
    let mut measure = |name: String, share: f64, early: f64| -> anyhow::Result<()> {
        let with = |staging, ahead| BenchRankSpec {
            staging,
            buddy: staging != StagedShare::Nothing,
            cycle: Some(cycle(share, early, ahead)),
            ..gtc.clone()
        };
        let naive = run(args, &with(StagedShare::Nothing, false))?;
        let half = run(args, &with(StagedShare::Half, false))?;
        let ahead = run(args, &with(StagedShare::Half, true))?;
        let slower = |took: &RankTimes| median(&took.cycle);
        figures.extend([
            BenchFigure {
                name: format!("{name}: checkpoint, half staged, copied ahead"),
                value: median(&ahead.commit),
                unit: "s",
                against: Some(("all to the tier".into(), median(&naive.commit))),
            },
            BenchFigure {
                name: format!("{name}: the same"),
                value: median(&ahead.commit),
                unit: "s",
                against: Some(("half staged".into(), median(&half.commit))),
            },
            BenchFigure {
                name: format!("{name}: a cycle of computing beside de-staging and copying ahead"),
                value: slower(&ahead),
                unit: "s",
                against: Some(("without".into(), slower(&naive))),
            },
        ]);
        Ok(())
    };
    let tier = gtc.profile.as_deref().unwrap_or_default();
    for early in [EARLY, 0.0, 0.5, 0.75, 0.9, 1.0] {
        let what = format!(
            "GTC-like, {:.0} % written early, tier of 1/{part} ({tier})",
            early * 100.0
        );
        measure(what, GTC.1, early)?;
    }
    measure(format!("CM1-like, tier of 1/{part} ({tier})"), CM1, 0.0)?;
    Ok(figures)
}
