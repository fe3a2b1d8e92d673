//! `tarn bench stage`: the mover that `tarn run` uses against `cp -r`, and against two `cp -r` at once that take half of
//! the tree each. All three run in turns on the same tree, after everything is warm; medians are compared.

use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use anyhow::{Context, bail, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_types::part::Verify;

/// Rounds before the measured ones, at most: until two agree.
const MAX_WARM: u32 = 6;
/// How closely two rounds must agree to be warm.
const AGREE: f64 = 0.10;
/// Measured rounds, at most.
const MAX_ROUNDS: u32 = 100;
const MIB: u64 = 1 << 20;

/// Options of `tarn bench stage`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// A folder to measure in; cases for memory run in those on a tmpfs, cases for a disk in the others.
    #[arg(long = "dir", value_name = "DIR", default_values = ["/dev/shm", "."])]
    dirs: Vec<PathBuf>,
    /// Cases to measure; all when not given.
    #[arg(long = "case", value_enum)]
    cases: Vec<StageCase>,
    /// Measured rounds of each case.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ROUNDS)))]
    rounds: u32,
}

/// A tree and an operation on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum StageCase {
    /// 4 files of 1 GiB, in memory.
    Large,
    /// 10,000 files of 16 KiB in 100 folders, in memory.
    Small,
    /// 2 files of 1 GiB on a disk, synced.
    LargeDisk,
    /// The same, read again from the disk and compared.
    LargeReadback,
    /// Memory used for 100,000 files.
    HundredThousand,
}

const ALL: [StageCase; 5] = [
    StageCase::Large,
    StageCase::Small,
    StageCase::LargeDisk,
    StageCase::LargeReadback,
    StageCase::HundredThousand,
];

impl StageCase {
    fn name(self) -> &'static str {
        match self {
            StageCase::Large => "large (4 x 1 GiB)",
            StageCase::Small => "small (10,000 x 16 KiB in 100 folders)",
            StageCase::LargeDisk => "large-disk (2 x 1 GiB, synced)",
            StageCase::LargeReadback => "large-readback (2 x 1 GiB, synced, read again)",
            StageCase::HundredThousand => "hundred-thousand (100,000 x 512 B), peak memory",
        }
    }

    /// Top-level entries, files in each (0: the entry is the file), bytes of a file.
    fn shape(self) -> (u64, u64, u64) {
        match self {
            StageCase::Large => (4, 0, 1 << 30),
            StageCase::Small => (100, 100, 16 << 10),
            StageCase::LargeDisk | StageCase::LargeReadback => (2, 0, 1 << 30),
            StageCase::HundredThousand => (100, 1000, 512),
        }
    }

    fn bytes(self) -> u64 {
        let (entries, files, size) = self.shape();
        entries * files.max(1) * size
    }

    fn on_disk(self) -> bool {
        matches!(self, StageCase::LargeDisk | StageCase::LargeReadback)
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no space, no folder of the right kind, or a copy fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let cases: &[StageCase] = if args.cases.is_empty() {
        &ALL
    } else {
        &args.cases
    };
    let mut figures = Vec::new();
    for &case in cases {
        let mut ran = false;
        for dir in &args.dirs {
            let medium = medium(dir)?;
            if (medium == "tmpfs") != case.on_disk() {
                figures.append(&mut measure(case, dir, &medium, args.rounds)?);
                ran = true;
            }
        }
        let kind = if case.on_disk() {
            "on a disk"
        } else {
            "on a tmpfs"
        };
        ensure!(
            ran || args.cases.is_empty(),
            "no folder {kind} for `{}`; give one with --dir",
            case.name()
        );
    }
    Ok(figures)
}

/// The type of a folder's file system.
pub(super) fn medium(dir: &Path) -> anyhow::Result<String> {
    let shown = dir.display();
    let stat = rustix::fs::statfs(dir).with_context(|| format!("cannot examine `{shown}`"))?;
    Ok(match stat.f_type as u32 {
        0x0102_1994 => "tmpfs".into(),
        0xef53 => "ext4".into(),
        0x5846_5342 => "xfs".into(),
        0x9123_683e => "btrfs".into(),
        0x6969 => "nfs".into(),
        0x0bd0_0bd0 => "lustre".into(),
        0x794c_7630 => "overlayfs".into(),
        other => format!("file system {other:#x}"),
    })
}

fn measure(
    case: StageCase,
    dir: &Path,
    medium: &str,
    rounds: u32,
) -> anyhow::Result<Vec<BenchFigure>> {
    check_space(case, dir)?;
    let home = ScratchFolder::new(dir)?;
    if !case.on_disk() {
        touch(case.bytes() * 2 + case.bytes() / 8)?;
    }
    let source = home.path().join("source");
    make_tree(case, &source)?;
    let bench = StageBench {
        case,
        source,
        dest: home.path().join("dest"),
        label: format!("{}, {medium}", case.name()),
    };
    match case {
        StageCase::HundredThousand => bench.memory(),
        _ => bench.rates(rounds),
    }
}

/// Refuses a case that does not fit.
fn check_space(case: StageCase, dir: &Path) -> anyhow::Result<()> {
    let need = case.bytes() * 2 + (256 << 20);
    let stat = rustix::fs::statvfs(dir)?;
    let mut free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if !case.on_disk() {
        free = free.min(available_memory()?);
    }
    ensure!(
        free >= need,
        "`{}` needs {} MiB in `{}`, {} MiB are free; choose another case or --dir",
        case.name(),
        need / MIB,
        dir.display(),
        free / MIB
    );
    Ok(())
}

pub(super) fn available_memory() -> anyhow::Result<u64> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib: u64 = line
        .and_then(|l| l.split_whitespace().next()?.parse().ok())
        .context("no MemAvailable")?;
    Ok(kib << 10)
}

/// Touches so much memory and gives it back: a virtual machine's memory is slow the first time.
pub(super) fn touch(bytes: u64) -> anyhow::Result<()> {
    const BLOCK: usize = 64 << 20;
    let blocks = bytes.min(available_memory()? / 2) as usize / BLOCK;
    let held: Vec<Vec<u8>> = (0..=blocks).map(|i| vec![i as u8 | 1; BLOCK]).collect();
    std::hint::black_box(&held);
    Ok(())
}

fn make_tree(case: StageCase, at: &Path) -> anyhow::Result<()> {
    let (entries, files, size) = case.shape();
    std::fs::create_dir_all(at)?;
    let mut block = vec![0u8; size.min(MIB) as usize];
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for entry in 0..entries {
        let path = at.join(format!("entry{entry:03}"));
        if files == 0 {
            make_file(&path, size, &mut block, &mut seed)?;
            continue;
        }
        std::fs::create_dir(&path)?;
        for file in 0..files {
            make_file(
                &path.join(format!("file{file:05}")),
                size,
                &mut block,
                &mut seed,
            )?;
        }
    }
    rustix::fs::syncfs(File::open(at)?)?;
    Ok(())
}

pub(super) fn make_file(
    path: &Path,
    size: u64,
    block: &mut [u8],
    seed: &mut u64,
) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    let mut left = size;
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            *seed = seed
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            word.copy_from_slice(&seed.to_le_bytes());
        }
        let n = left.min(block.len() as u64);
        file.write_all(&block[..n as usize])?;
        left -= n;
    }
    Ok(())
}

struct StageBench {
    case: StageCase,
    source: PathBuf,
    dest: PathBuf,
    label: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyTool {
    Tarn,
    Cp,
    TwoCp,
}

const CONTENDERS: [CopyTool; 3] = [CopyTool::Tarn, CopyTool::Cp, CopyTool::TwoCp];

impl StageBench {
    fn rates(&self, rounds: u32) -> anyhow::Result<Vec<BenchFigure>> {
        let contenders: &[CopyTool] = match self.case {
            StageCase::LargeReadback => &CONTENDERS[..1],
            _ => &CONTENDERS,
        };
        self.warm(contenders)?;
        let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
        for round in 0..rounds {
            // Each goes first as often as the others.
            for turn in 0..contenders.len() {
                let at = (turn + round as usize) % contenders.len();
                seconds[at].push(self.once(contenders[at])?);
            }
            let shown: Vec<_> = contenders
                .iter()
                .zip(&seconds)
                .map(|(w, s)| format!("{w:?} {:.3} s", s[round as usize]))
                .collect();
            crate::print::message!(
                "{}  {}/{rounds}: {}",
                self.label,
                round + 1,
                shown.join(", ")
            );
        }
        let rate = |at: usize| {
            seconds
                .get(at)
                .map(|s| self.case.bytes() as f64 / 1e6 / median(s))
        };
        let plain = match (rate(1), rate(2)) {
            (Some(one), Some(two)) if one >= two => Some(("cp -r".to_owned(), one)),
            (_, Some(two)) => Some(("two parallel cp -r".to_owned(), two)),
            _ => None,
        };
        Ok(vec![BenchFigure {
            name: self.label.clone(),
            value: rate(0).context("nothing was measured")?,
            unit: "MB/s",
            against: plain,
        }])
    }

    /// Rounds that do not count, until two agree for everybody.
    fn warm(&self, contenders: &[CopyTool]) -> anyhow::Result<()> {
        let mut before: Option<Vec<f64>> = None;
        for _ in 0..MAX_WARM {
            let now = contenders
                .iter()
                .map(|&w| self.once(w))
                .collect::<anyhow::Result<Vec<_>>>()?;
            let agree = |b: &Vec<f64>| {
                b.iter()
                    .zip(&now)
                    .all(|(b, n)| (b - n).abs() <= AGREE * b.max(*n))
            };
            if before.as_ref().is_some_and(agree) {
                return Ok(());
            }
            before = Some(now);
        }
        crate::print::message!(
            "{}: no two rounds agreed within {:.0} %; the machine is busy",
            self.label,
            AGREE * 100.0
        );
        Ok(())
    }

    /// Seconds of one copy; the copy is removed, which is not counted.
    fn once(&self, who: CopyTool) -> anyhow::Result<f64> {
        let start = Instant::now();
        match who {
            CopyTool::Tarn => self.tarn()?,
            CopyTool::Cp => self.cp(1)?,
            CopyTool::TwoCp => self.cp(2)?,
        }
        let seconds = start.elapsed().as_secs_f64();
        Trees::new().remove(&self.dest)?;
        if self.case.on_disk() {
            rustix::fs::syncfs(File::open(&self.source)?)?;
        }
        Ok(seconds)
    }

    fn tarn(&self) -> anyhow::Result<()> {
        let source = CopySource::of(self.source.clone());
        let job = CopyJob {
            sources: vec![source],
            dest: self.dest.clone(),
            staging: self.dest.with_extension("staging"),
            replace: false,
            verify: match self.case {
                StageCase::LargeReadback => Verify::Readback,
                _ => Verify::Copy,
            },
            sync: self.case.on_disk(),
            rate: 0,
            latency: 0,
            arrivals: None,
            seal: None,
        };
        let report = Trees::new().copy(&job, &Control::default())?;
        ensure!(
            report.bytes == self.case.bytes(),
            "{} bytes were copied",
            report.bytes
        );
        Ok(())
    }

    /// `cp -r` of all entries, by so many processes; on a disk with `sync -f`.
    fn cp(&self, processes: usize) -> anyhow::Result<()> {
        if processes == 1 {
            end(Command::new("cp")
                .arg("-r")
                .arg(&self.source)
                .arg(&self.dest)
                .spawn()?)?;
        } else {
            std::fs::create_dir(&self.dest)?;
            let (entries, _, _) = self.case.shape();
            let all: Vec<PathBuf> = (0..entries)
                .map(|e| self.source.join(format!("entry{e:03}")))
                .collect();
            let shares = all.chunks(all.len().div_ceil(processes));
            let started = shares.map(|share| {
                Command::new("cp")
                    .arg("-r")
                    .args(share)
                    .arg(&self.dest)
                    .spawn()
            });
            let children = started.collect::<Result<Vec<Child>, _>>()?;
            children.into_iter().try_for_each(end)?;
        }
        if self.case.on_disk() {
            end(Command::new("sync").arg("-f").arg(&self.dest).spawn()?)?;
        }
        Ok(())
    }

    /// The largest resident set of this process while it copies.
    fn memory(&self) -> anyhow::Result<Vec<BenchFigure>> {
        // Resets the peak (proc(5)).
        std::fs::write("/proc/self/clear_refs", "5")
            .context("cannot reset the peak of memory use")?;
        self.tarn()?;
        let status = std::fs::read_to_string("/proc/self/status")?;
        let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kib: f64 = peak
            .and_then(|l| l.split_whitespace().next()?.parse().ok())
            .context("no VmHWM")?;
        Trees::new().remove(&self.dest)?;
        Ok(vec![BenchFigure {
            name: self.label.clone(),
            value: kib / 1024.0,
            unit: "MiB",
            against: Some(("bound".to_owned(), 128.0)),
        }])
    }
}

fn end(mut child: Child) -> anyhow::Result<()> {
    let status = child.wait()?;
    if !status.success() {
        bail!("the plain tool failed: {status}");
    }
    Ok(())
}
