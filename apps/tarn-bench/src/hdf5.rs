//! `tarn bench hdf5`: HDF5 through tarn's file driver, beside its own drivers for files (sec2) and for memory (core). After the HDF5 benchmark
//! of Schürmann et al. 2014, section 5. The programs that it measures are `plugins/hdf5/bench`.

use crate::error::{CliError, CliResult, ExitWith};
use crate::figure::{BenchFigure, median};
use crate::scratch::ScratchFolder;
use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tarn_console::hdf5::{configure_driver, plugin_folder};
use tarn_types::codes::Exit;

/// The program in C, beside the plug-in.
const PROGRAM: &str = "bench";
/// The program in Python.
const SCRIPT: &str = include_str!("../../../plugins/hdf5/bench/bench.py");
/// Says which HDF5 h5py has loaded.
const ASK: &str = "
import h5py
names = {line.split()[-1] for line in open('/proc/self/maps') if '/libhdf5' in line and '_hl' not in line}
print(h5py.version.hdf5_version, *sorted(names))
";
const MIB: f64 = 1_048_576.0;

/// Options of `tarn bench hdf5`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Cases to measure; all when not given
    #[arg(long = "case", value_enum)]
    cases: Vec<Hdf5Case>,
    /// Measured rounds; one more is for warming up
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// A folder on the tier to measure, for files and partitions
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// A Python with h5py 3.10 or later; the program in C uses its HDF5, too
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// MiB of a file
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Reads or writes of 4 KiB a round
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    operations: u64,
    /// Partitions that hold a file together; each number is measured
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u32).range(1..=64))]
    partitions: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Hdf5Case {
    /// 1 MiB after 1 MiB of an open file that was written before
    SeqWrite,
    /// 1 MiB after 1 MiB of an open file that was read before
    SeqRead,
    /// 4 KiB anywhere in an open file
    #[value(name = "random-4k")]
    Random4k,
    /// A new file, from its creation until it is closed
    ColdWrite,
    /// A file, from its opening until it is closed
    ColdRead,
}

/// A program's language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    C,
    Python,
}

impl Hdf5Case {
    fn name(self) -> &'static str {
        match self {
            Self::SeqWrite => "seq-write",
            Self::SeqRead => "seq-read",
            Self::Random4k => "random-4k",
            Self::ColdWrite => "cold-write",
            Self::ColdRead => "cold-read",
        }
    }

    /// The measurements of a case: their names, and the words of a round.
    fn rounds(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::SeqWrite => &[("", &["seq-write"])],
            Self::SeqRead => &[("", &["seq-read"])],
            Self::Random4k => &[(" read", &["random-read"]), (" write", &["random-write"])],
            Self::ColdWrite => &[("", &["create", "close"])],
            Self::ColdRead => &[("", &["open", "seq-read", "close"])],
        }
    }

    /// Whether a round begins without an open file.
    fn is_cold(self) -> bool {
        matches!(self, Self::ColdWrite | Self::ColdRead)
    }

    /// HDF5's own drivers that it is measured beside.
    fn beside(self, language: Language) -> &'static [&'static str] {
        match (self, language) {
            (Self::SeqRead, _) => &["core", "sec2"],
            (Self::Random4k, Language::C) => &["sec2", "nosieve"],
            _ => &["sec2"],
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When the plug-in, h5py or space is missing.
pub(crate) fn run(args: &Args) -> CliResult<Vec<BenchFigure>> {
    use clap::ValueEnum;
    let cases = match &args.cases[..] {
        [] => Hdf5Case::value_variants(),
        some => some,
    };
    let plugin = plugin_folder()?;
    let (version, library) = library(&args.python)?;
    let bench = Hdf5Bench {
        args,
        plugin,
        library,
        version,
    };
    let mut figures = Vec::new();
    for (language, prefix) in [(Language::C, ""), (Language::Python, "h5py-")] {
        for case in cases {
            // The division of a file matters little to a program as slow as Python.
            let counts = match (language, case) {
                (Language::C, Hdf5Case::SeqWrite | Hdf5Case::SeqRead | Hdf5Case::Random4k) => {
                    &args.partitions
                }
                _ => &vec![1],
            };
            for count in counts {
                let found = bench.measure(*case, language, prefix, *count);
                figures.extend(found.exit(Exit::State)?);
            }
        }
    }
    Ok(figures)
}

/// The HDF5 that h5py has, its version and its file.
fn library(python: &Path) -> CliResult<(String, PathBuf)> {
    let output = Command::new(python).args(["-c", ASK]).output();
    let output = output.with_context(|| format!("cannot run {}", python.display()))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let found = stdout.trim().split_once(' ');
    let (version, library) = found.ok_or_else(|| {
        let text = format!(
            "{} has no h5py: give one that has it as --python, such as that of `scripts/hdf5-python.sh DIR`, DIR/new/bin/python",
            python.display()
        );
        CliError::new(Exit::NotFound, text)
    })?;
    Ok((version.to_owned(), PathBuf::from(library)))
}

struct Hdf5Bench<'a> {
    args: &'a Args,
    plugin: PathBuf,
    library: PathBuf,
    version: String,
}

impl Hdf5Bench<'_> {
    fn measure(
        &self,
        case: Hdf5Case,
        language: Language,
        prefix: &str,
        count: u32,
    ) -> anyhow::Result<Vec<BenchFigure>> {
        // Which file is made first decides which memory it gets, and that how fast it is: each is the first once.
        let once = self.medians(case, language, count, false)?;
        let again = self.medians(case, language, count, true)?;
        let mut figures = Vec::new();
        for ((more, _), (once, again)) in case.rounds().iter().zip(once.iter().zip(&again)) {
            let both = once.iter().zip(again);
            let rates: Vec<_> = both
                .map(|(once, again)| self.rate(case, once.midpoint(*again)))
                .collect();
            for (driver, rate) in case.beside(language).iter().zip(&rates[1..]) {
                figures.push(BenchFigure {
                    name: format!(
                        "{prefix}{}{more}, HDF5 {}, {count} partitions, {} MiB",
                        case.name(),
                        self.version,
                        self.args.mib
                    ),
                    value: rates[0].0,
                    unit: rates[0].1,
                    against: Some((plain(driver).to_owned(), rate.0)),
                });
            }
        }
        Ok(figures)
    }

    /// Seconds of each of a case's parts, by tarn and by all that it is measured beside, whose files were made in that order, or
    /// `backwards`.
    fn medians(
        &self,
        case: Hdf5Case,
        language: Language,
        count: u32,
        backwards: bool,
    ) -> anyhow::Result<Vec<Vec<f64>>> {
        let scratch = ScratchFolder::new(&self.args.dir)?;
        let names: Vec<_> = (0..count)
            .map(|n| scratch.path().join(format!("p{n}")).display().to_string())
            .collect();
        let block = if count == 1 { "" } else { ";block=1M" };
        let config = format!("partitions={}{block}", names.join(","));
        let mut workers = vec![self.worker(language, "tarn", scratch.path(), Some(config))?];
        for driver in case.beside(language) {
            workers.push(self.worker(language, driver, scratch.path(), None)?);
        }
        if backwards {
            workers.reverse();
        }
        for worker in &mut workers {
            worker.ask("create")?;
        }
        let mut all = Vec::new();
        for (_, words) in case.rounds() {
            let mut took = vec![Vec::new(); workers.len()];
            for number in 0..=self.args.rounds {
                for (worker, took) in workers.iter_mut().zip(&mut took) {
                    if case.is_cold() {
                        worker.ask("close")?;
                    }
                    if case == Hdf5Case::ColdWrite {
                        // Else a new file would be an old one that is written over.
                        let file = match worker.driver {
                            "tarn" => "p0.partition",
                            driver => driver,
                        };
                        std::fs::remove_file(scratch.path().join(file))?;
                    }
                    let seconds = worker.all(words)?;
                    if number > 0 {
                        took.push(seconds);
                    }
                }
            }
            let mut medians: Vec<_> = took.iter().map(|took| median(took)).collect();
            if backwards {
                medians.reverse();
            }
            all.push(medians);
        }
        Ok(all)
    }

    fn rate(&self, case: Hdf5Case, seconds: f64) -> (f64, &'static str) {
        match case {
            Hdf5Case::Random4k => (self.args.operations as f64 / seconds / 1e3, "k/s"),
            _ => (self.args.mib as f64 * MIB / seconds / 1e6, "MB/s"),
        }
    }

    fn worker(
        &self,
        language: Language,
        driver: &'static str,
        folder: &Path,
        config: Option<String>,
    ) -> anyhow::Result<Hdf5Program> {
        let mut command = match language {
            Language::C => {
                let mut command = Command::new(self.plugin.join(PROGRAM));
                // Wheels have the libraries that HDF5 needs beside it.
                command
                    .arg(&self.library)
                    .env("LD_LIBRARY_PATH", self.library.parent().unwrap_or(folder));
                command
            }
            Language::Python => {
                let mut command = Command::new(&self.args.python);
                command.args(["-c", SCRIPT]);
                command
            }
        };
        command
            .arg(driver)
            .arg(folder.join(driver))
            .args([self.args.mib.to_string(), self.args.operations.to_string()]);
        match config {
            Some(config) => configure_driver(&mut command, &self.plugin, &config)?,
            None => _ = command.env_remove("HDF5_DRIVER"),
        }
        Hdf5Program::start(command, driver)
    }
}

/// The name of a driver of HDF5 in results.
fn plain(driver: &str) -> &str {
    match driver {
        "nosieve" => "sec2 without its sieve buffer",
        other => other,
    }
}

/// A program that measures.
struct Hdf5Program {
    driver: &'static str,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Hdf5Program {
    fn start(mut command: Command, driver: &'static str) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a program has no pipes");
        };
        Ok(Self {
            driver,
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    /// Has it do something; the seconds that it took.
    fn ask(&mut self, word: &str) -> anyhow::Result<f64> {
        let mut line = String::new();
        writeln!(self.stdin, "{word}")?;
        self.stdout.read_line(&mut line)?;
        ensure!(
            !line.is_empty(),
            "HDF5 with {} has ended at `{word}`; its output is above",
            self.driver
        );
        line.trim().parse().context("a program prints no seconds")
    }

    fn all(&mut self, words: &[&str]) -> anyhow::Result<f64> {
        words.iter().map(|word| self.ask(word)).sum()
    }
}

impl Drop for Hdf5Program {
    fn drop(&mut self) {
        // It holds files of a folder that goes now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
