//! The papers' synthetic producer and consumer: one writes files, the other reads and verifies them; neither does
//! anything else (Weiland 2018, section 4; Jackson 2019, section 6). Each runs as a process of its own.

use anyhow::{Context, bail, ensure};
use rustix::fs::{Advice, OFlags, fadvise, fcntl_setfl};
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tarn_types::random::mix;

/// Bytes of one read or write, and the period of the content apart from its stamps.
const BLOCK: usize = 1 << 20;
/// Every page begins with a stamp of its file and offset; file sizes are whole pages, as `O_DIRECT` wants.
pub(crate) const PAGE: usize = 4096;

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum IoRole {
    /// Write the files.
    Write,
    /// Read and verify them.
    Read,
}

/// Whether the page cache takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PageCacheUse {
    /// Files are synced when written and may be read from the cache.
    With,
    /// `O_DIRECT` where the file system has it; elsewhere files are dropped from the cache once they are synced.
    Without,
}

/// The arguments of one process.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "tarn-bench __io", no_binary_name = true)]
pub(crate) struct IoArgs {
    /// Write the files, or read them.
    pub(crate) role: IoRole,
    /// The folder of the files; a producer makes it.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// How many.
    #[arg(long)]
    pub(crate) files: u32,
    /// Bytes of each, whole pages.
    #[arg(long)]
    pub(crate) size: u64,
    /// Another seed, other content.
    #[arg(long)]
    pub(crate) seed: u64,
    /// Whether the page cache takes part.
    #[arg(long)]
    pub(crate) cache: PageCacheUse,
    /// Bytes a second that are not exceeded, to play a slow store; 0 for no limit.
    #[arg(long, default_value_t = 0)]
    pub(crate) rate: u64,
    /// The result goes to this file instead of standard output.
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
}

/// The report of a process that has ended.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct IoReport {
    /// From the first file's opening to the last one's end.
    pub(crate) seconds: f64,
    /// How the page cache took part or was avoided.
    pub(crate) method: String,
}

/// The first argument that makes a process read or write files.
pub(crate) const ARGUMENT: &str = "__io";
/// The process `tarn-bench __io`.
pub(crate) fn main() -> ExitCode {
    match io_main(std::env::args_os().skip(2)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            crate::print::message!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The same; `args` are those after `__io`.
///
/// # Errors
/// When a file cannot be written or read, or its content is not the written one.
fn io_main<I: IntoIterator<Item = OsString>>(args: I) -> anyhow::Result<()> {
    let args = <IoArgs as clap::Parser>::try_parse_from(args)?;
    let line = serde_json::to_string(&run(&args)?)? + "\n";
    match &args.report {
        Some(path) => {
            std::fs::write(path, line).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(std::io::stdout().write_all(line.as_bytes())?),
    }
}

/// Does the work of the arguments.
pub(crate) fn run(args: &IoArgs) -> anyhow::Result<IoReport> {
    ensure!(
        args.size > 0 && args.size.is_multiple_of(PAGE as u64),
        "--size {}: give whole pages of {PAGE} bytes",
        args.size
    );
    if args.role == IoRole::Write {
        std::fs::create_dir_all(&args.dir)
            .with_context(|| format!("cannot make {}", args.dir.display()))?;
    }
    let content = StampedContent::new(args.seed);
    let mut buffer = PageAlignedBuffer::new();
    let mut pace = Pace::new(args.rate);
    let mut direct = args.cache == PageCacheUse::Without;
    for index in 0..args.files {
        let path = args.dir.join(format!("file-{index:06}"));
        let mut file = open(&path, args.role, &mut direct)?;
        let context = || {
            format!(
                "cannot {} {}",
                if args.role == IoRole::Write {
                    "write"
                } else {
                    "read"
                },
                path.display()
            )
        };
        match args.role {
            IoRole::Write => {
                write(&mut file, index, args, &content, &mut buffer, &mut pace)
                    .with_context(context)?;
                file.sync_all().with_context(context)?;
                if args.cache == PageCacheUse::Without && !direct {
                    fadvise(&file, 0, None, Advice::DontNeed).with_context(context)?;
                }
            }
            IoRole::Read => {
                if args.cache == PageCacheUse::Without && !direct {
                    fadvise(&file, 0, None, Advice::DontNeed).with_context(context)?;
                }
                read(&mut file, index, args, &content, &mut buffer, &mut pace)
                    .with_context(context)?;
            }
        }
    }
    let method = match (args.cache, direct) {
        (PageCacheUse::With, _) => "synced, cached",
        (PageCacheUse::Without, true) => "O_DIRECT, synced",
        (PageCacheUse::Without, false) => "synced, dropped from the cache",
    };
    Ok(IoReport {
        seconds: pace.start.elapsed().as_secs_f64(),
        method: method.into(),
    })
}

/// Opens a file; turns `direct` off when the file system does not have `O_DIRECT`.
fn open(path: &Path, role: IoRole, direct: &mut bool) -> anyhow::Result<File> {
    let mut options = std::fs::OpenOptions::new();
    match role {
        IoRole::Write => options.write(true).create_new(true),
        IoRole::Read => options.read(true),
    };
    let file = options
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    // Set afterwards rather than on opening: a refused open would leave the new file behind.
    if *direct {
        *direct = fcntl_setfl(&file, OFlags::DIRECT).is_ok();
    }
    Ok(file)
}

fn write(
    file: &mut File,
    index: u32,
    args: &IoArgs,
    content: &StampedContent,
    buffer: &mut PageAlignedBuffer,
    pace: &mut Pace,
) -> std::io::Result<()> {
    let mut offset = 0;
    while offset < args.size {
        let block = buffer.slice(args.size - offset);
        content.fill(block, index, offset);
        file.write_all(block)?;
        offset += block.len() as u64;
        pace.advance(block.len());
    }
    Ok(())
}

fn read(
    file: &mut File,
    index: u32,
    args: &IoArgs,
    content: &StampedContent,
    buffer: &mut PageAlignedBuffer,
    pace: &mut Pace,
) -> anyhow::Result<()> {
    let mut offset = 0;
    while offset < args.size {
        let block = buffer.slice(args.size - offset);
        match file.read_exact(block) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => bail!(
                "it is shorter than the {} bytes that were written",
                args.size
            ),
            other => other?,
        }
        if let Some(at) = content.differs(block, index, offset) {
            bail!("its content differs from what was written, in the page at byte {at}");
        }
        offset += block.len() as u64;
        pace.advance(block.len());
    }
    Ok(())
}

/// The content of the files: one pseudo-random block over and over, each page stamped with its file and offset. It is cheap enough
/// to make and to check that the figures are those of the store.
struct StampedContent {
    block: Vec<u8>,
    seed: u64,
}

impl StampedContent {
    fn new(seed: u64) -> Self {
        let words = (0..(BLOCK / 8) as u64).map(|i| mix(seed.wrapping_add(i)));
        Self {
            block: words.flat_map(u64::to_le_bytes).collect(),
            seed,
        }
    }

    fn stamp(&self, file: u32, offset: u64) -> [u8; 8] {
        mix(self.seed ^ mix(u64::from(file) << 32 | 1) ^ offset).to_le_bytes()
    }

    fn fill(&self, block: &mut [u8], file: u32, offset: u64) {
        block.copy_from_slice(&self.block[..block.len()]);
        for (n, page) in block.chunks_exact_mut(PAGE).enumerate() {
            page[..8].copy_from_slice(&self.stamp(file, offset + (n * PAGE) as u64));
        }
    }

    /// The offset of the first page that is not as it was written.
    fn differs(&self, block: &[u8], file: u32, offset: u64) -> Option<u64> {
        let pages = block
            .chunks_exact(PAGE)
            .zip(self.block.chunks_exact(PAGE))
            .enumerate();
        pages
            .map(|(n, pair)| (offset + (n * PAGE) as u64, pair))
            .find(|(at, (got, want))| got[8..] != want[8..] || got[..8] != self.stamp(file, *at))
            .map(|(at, _)| at)
    }
}

/// One block, aligned to a page.
struct PageAlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl PageAlignedBuffer {
    fn new() -> Self {
        let bytes = vec![0; BLOCK + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Self { bytes, start }
    }

    /// A block, or the `left` bytes that are less.
    fn slice(&mut self, left: u64) -> &mut [u8] {
        let length = left.min(BLOCK as u64) as usize;
        &mut self.bytes[self.start..self.start + length]
    }
}

/// Holds a process back to a rate.
struct Pace {
    start: Instant,
    rate: u64,
    done: u64,
}

impl Pace {
    fn new(rate: u64) -> Self {
        Self {
            start: Instant::now(),
            rate,
            done: 0,
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.rate > 0 {
            let due = Duration::from_secs_f64(self.done as f64 / self.rate as f64);
            std::thread::sleep(due.saturating_sub(self.start.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: &Path, role: IoRole, cache: PageCacheUse) -> IoArgs {
        IoArgs {
            role,
            dir: dir.join("files"),
            files: 3,
            size: (BLOCK + 3 * PAGE) as u64,
            seed: 7,
            cache,
            rate: 0,
            report: None,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for cache in [PageCacheUse::With, PageCacheUse::Without] {
            let dir = tempfile::tempdir().unwrap();
            run(&args(dir.path(), IoRole::Write, cache)).unwrap();
            let read = run(&args(dir.path(), IoRole::Read, cache)).unwrap();
            assert!(read.seconds > 0.0 && !read.method.is_empty());
            assert_eq!(
                std::fs::read_dir(dir.path().join("files")).unwrap().count(),
                3
            );
        }
    }

    #[test]
    fn a_flipped_bit_a_short_and_a_wrong_file_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = args(dir.path(), IoRole::Write, PageCacheUse::With);
        let read = args(dir.path(), IoRole::Read, PageCacheUse::With);
        run(&write).unwrap();
        let path = write.dir.join("file-000001");
        let good = std::fs::read(&path).unwrap();

        let mut flipped = good.clone();
        flipped[BLOCK + 2 * PAGE + 17] ^= 1;
        let short = good[..good.len() - PAGE].to_vec();
        let other = std::fs::read(write.dir.join("file-000002")).unwrap();
        for (bytes, what) in [
            (flipped, "byte 1056768"),
            (short, "shorter"),
            (other, "byte 0"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let text = format!("{:#}", run(&read).unwrap_err());
            assert!(
                text.contains(what) && text.contains("file-000001"),
                "{text}"
            );
        }
        std::fs::write(&path, good).unwrap();
        assert!(run(&read).is_ok());
        assert!(run(&IoArgs { seed: 8, ..read }).is_err());
    }

    #[test]
    fn a_rate_is_not_exceeded() {
        let dir = tempfile::tempdir().unwrap();
        let slow = IoArgs {
            files: 1,
            size: BLOCK as u64,
            rate: 10 << 20,
            ..args(dir.path(), IoRole::Write, PageCacheUse::With)
        };
        assert!(run(&slow).unwrap().seconds >= 0.1);
    }

    #[test]
    fn the_process_reports() {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("report");
        let line = format!(
            "write --dir {0}/f --files 1 --size 4096 --seed 1 --cache with --report {0}/report",
            dir.path().display()
        );
        io_main(line.split(' ').map(OsString::from)).unwrap();
        let report: IoReport = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
        assert_eq!(report.method, "synced, cached");
        let odd = "write --dir /nonexistent --files 1 --size 5 --seed 1 --cache with";
        assert!(io_main(odd.split(' ').map(OsString::from)).is_err());
    }
}
