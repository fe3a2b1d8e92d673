//! `tarn h5`: programs whose HDF5 files are partitions of storage memory, and such files as ordinary ones. docs/guide/hdf5.md.

mod copy;
mod exec;
mod list;
mod store;
mod writer;

use crate::error::CliResult;
use crate::globals::Globals;
use clap::Subcommand;
use std::path::PathBuf;
use std::time::Duration;
use tarn_types::units::{UnitError, parse_size, parse_time};

#[derive(Debug, Subcommand)]
pub(crate) enum H5Command {
    /// Run a program whose HDF5 files are partitions of storage memory (docs/guide/hdf5.md)
    Exec(exec::H5ExecArgs),
    /// Copy a file out of its partition into an ordinary .h5
    Export {
        /// The partition; several that hold the file block by block, in their order, with commas between them
        #[arg(value_delimiter = ',', required = true)]
        partitions: Vec<PathBuf>,
        /// A file that does not exist yet
        file: PathBuf,
    },
    /// Copy an ordinary .h5 into a partition that does not exist yet
    Import {
        /// The file
        file: PathBuf,
        /// The partition; several that are to hold it block by block, with commas between them
        #[arg(value_delimiter = ',', required = true)]
        partitions: Vec<PathBuf>,
        /// Bytes in one of several partitions before the next one follows: a multiple of 4 KiB
        #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1 MiB")]
        block: u64,
    },
    /// The HDF5 files in partitions of a folder
    Ls {
        /// The folder
        folder: PathBuf,
    },
    /// Wait until a file has been changed, and print how often that was
    Wait {
        /// Its partition, the first of several
        partition: PathBuf,
        /// More often than so many times [default: than now]
        #[arg(long, value_name = "N")]
        newer_than: Option<u64>,
        /// Give up after this
        #[arg(long, alias = "patience", value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
        timeout: Duration,
    },
}

pub(crate) fn h5(globals: &Globals, command: &H5Command) -> CliResult {
    let all = |partitions: &[PathBuf]| -> Vec<_> {
        partitions.iter().map(|name| exec::meant(name)).collect()
    };
    match command {
        H5Command::Exec(args) => exec::exec(args),
        H5Command::Export { partitions, file } => copy::export(globals, &all(partitions), file),
        H5Command::Import {
            file,
            partitions,
            block,
        } => copy::import(globals, file, &all(partitions), *block),
        H5Command::Ls { folder } => list::ls(globals, &exec::meant(folder)),
        H5Command::Wait {
            partition,
            newer_than,
            timeout,
        } => list::wait(globals, &exec::meant(partition), *newer_than, *timeout),
    }
}

fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    parse_time(text).map(Duration::from_nanos)
}
