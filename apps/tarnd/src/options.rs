//! The command line.

use anyhow::{Context, anyhow, ensure};
use clap::Parser;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tarn_data_plane::Transport;
use tarn_proto::local::{Access, SpaceSpec, UserId};
use tarn_types::units::{parse_rate, parse_size};

/// Serves the programs of this node: copies, moves and removes files for them, between dataspaces, memory and outside.
///
/// Programs find it by $TARN_SOCKET. It ends on SIGTERM; exit codes: docs/reference/exit-codes.md.
/// On a site under Slurm: `tarnd --controller --help` for the controller's host, `tarnd --site --help` for its nodes.
#[derive(Debug, Parser)]
#[command(name = "tarnd", version)]
pub(crate) struct Options {
    /// The unix socket that programs connect to; made, mode 0600
    #[arg(long, env = "TARN_SOCKET", required_unless_present_any = ["node", "step"])]
    pub(crate) socket: Option<PathBuf>,
    /// The folder of the journal; made if it does not exist
    #[arg(long, required_unless_present_any = ["node", "step"])]
    pub(crate) state: Option<PathBuf>,
    /// Serves `tarn run` as one of its nodes, and no programs: keys come on standard input
    #[arg(long)]
    pub(crate) node: bool,
    /// Serves COMMAND in a step of a run, with the step's datasets as dataspaces: docs/guide/tasks.md
    #[arg(long, conflicts_with = "node")]
    pub(crate) step: bool,
    /// With --node: seconds that the run's data here is kept when the run does not answer any more
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) keep_for: u64,
    /// A dataspace: an existing folder, its capacity, and the share of one user. May be given several times
    #[arg(long = "space", value_name = "NAME=PATH:SIZE[:QUOTA]", value_parser = space)]
    pub(crate) spaces: Vec<(String, SpaceSpec)>,
    /// Tasks at a time that read or write one dataspace
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) slots: u32,
    /// Tasks at a time that read or write outside
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) external_slots: u32,
    /// The rate at which all tasks together may move data from and to outside, such as `200 MB/s`
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) external_rate: Option<u64>,
    /// The file that names the other nodes' tarnds and has the key that all know, mode 0600: docs/guide/tasks.md
    #[arg(long, value_name = "FILE")]
    pub(crate) peers: Option<PathBuf>,
    #[allow(rustdoc::broken_intra_doc_links)] // a help text
    /// How content travels to and from other nodes: tcp; sealed: TCP encrypted by AES-256-GCM, also where the other tarnd has not asked for it;
    /// or libfabric[:PROVIDER], for partitions, where the other tarnd was started with the same, which needs libtarnfabric.so beside tarnd or in
    /// ../lib/tarn: docs/guide/direct-access.md
    #[arg(long, value_name = "TRANSPORT", default_value_t = Transport::Tcp, requires = "peers", conflicts_with_all = ["node", "step"])]
    pub(crate) transport: Transport,
    /// A persistent tier of programs with checkpoints, and their folder in memory [default: /dev/shm]: data that dead programs left there
    /// is copied to the tier. May be given several times
    #[arg(long, value_name = "TIER[:MEMORY]", value_parser = checkpoints, conflicts_with_all = ["node", "step"])]
    pub(crate) checkpoints: Vec<(PathBuf, PathBuf)>,
    /// A user's share, if it is not 1. May be given several times
    #[arg(long = "weight", value_name = "UID=N", value_parser = weight)]
    pub(crate) weights: Vec<(UserId, u32)>,
    /// Other users may connect too, but only to open the partitions whose access lists name them: docs/guide/direct-access.md
    #[arg(long, conflicts_with_all = ["node", "step"])]
    pub(crate) guests: bool,
    /// Only processes of registered jobs may submit
    #[arg(long)]
    pub(crate) jobs_only: bool,
    /// This node's name [default: Slurm's, or the host's]
    #[arg(long, value_name = "NAME", env = "SLURMD_NODENAME")]
    pub(crate) node_name: Option<String>,
    /// The level of the log on standard error: error, warn, info, debug
    #[arg(long, default_value = "info")]
    pub(crate) log_level: tracing::Level,
    /// How
    #[arg(long, value_enum, default_value_t = DaemonLogFormat::Text)]
    pub(crate) log_format: DaemonLogFormat,
    /// Starts this with $TARN_SOCKET, and ends when it has ended and its tasks have; with its exit code
    #[arg(last = true, conflicts_with = "node")]
    pub(crate) command: Vec<OsString>,
}

impl Options {
    /// The socket; there is one unless a run is served.
    pub(crate) fn socket(&self) -> &Path {
        self.socket.as_deref().unwrap_or(Path::new(""))
    }

    /// The folder of the journal; there is one unless a run is served.
    pub(crate) fn state(&self) -> &Path {
        self.state.as_deref().unwrap_or(Path::new(""))
    }
}

/// How the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DaemonLogFormat {
    /// A line for people
    Text,
    /// A JSON object a line
    Json,
}

/// `NAME=PATH:SIZE[:QUOTA]`; the path may hold colons.
fn space(text: &str) -> anyhow::Result<(String, SpaceSpec)> {
    let (name, rest) = text
        .split_once('=')
        .context("give NAME=PATH:SIZE, such as fast=/dev/shm/x:4GiB")?;
    let (before, last) = rest
        .rsplit_once(':')
        .context("a size is missing: NAME=PATH:SIZE, such as fast=/dev/shm/x:4GiB")?;
    let (path, capacity, quota) = match before.rsplit_once(':') {
        Some((path, middle)) if parse_size(middle).is_ok() => {
            (path, parse_size(middle)?, parse_size(last)?)
        }
        _ => (before, parse_size(last)?, 0),
    };
    let root = folder(path)?;
    let everyone = Access {
        read: true,
        write: true,
        manage: false,
    };
    let spec = SpaceSpec {
        root: root.as_os_str().as_bytes().into(),
        capacity,
        quota,
        slots: 0,
        everyone,
        users: Vec::new(),
    };
    tarn_tasks::check_space(name, &spec)?;
    Ok((name.to_owned(), spec))
}

/// A folder that there is, by its full path.
fn folder(path: &str) -> anyhow::Result<PathBuf> {
    let found = std::fs::canonicalize(path).map_err(|e| anyhow!("{path}: {e}"))?;
    ensure!(found.is_dir(), "{path} is not a folder");
    Ok(found)
}

/// `TIER[:MEMORY]`; a tier that is there may have colons in its name.
fn checkpoints(text: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (tier, memory) = match text.rsplit_once(':') {
        Some(both) if !Path::new(text).is_dir() => both,
        _ => (text, "/dev/shm"),
    };
    Ok((folder(tier)?, folder(memory)?))
}

/// A rate that is not nothing.
pub(crate) fn rate(text: &str) -> anyhow::Result<u64> {
    let rate = parse_rate(text)?;
    ensure!(rate > 0, "a rate of nothing; leave it out for no limit");
    Ok(rate)
}

fn weight(text: &str) -> anyhow::Result<(UserId, u32)> {
    let (user, weight) = text.split_once('=').context("give UID=N, such as 1000=2")?;
    let number = |text: &str| text.parse::<u32>().map_err(|e| anyhow!("{text}: {e}"));
    let weight = number(weight)?;
    ensure!(
        weight > 0,
        "a share of 0 would never be served: give at least 1"
    );
    Ok((number(user)?, weight))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn spaces_are_read_strictly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a:b");
        std::fs::create_dir(&path).unwrap();
        let path = path.display();
        let (name, spec) = space(&format!("fast={path}:1GiB:512MiB")).unwrap();
        assert_eq!(
            (&*name, spec.capacity, spec.quota),
            ("fast", 1 << 30, 1 << 29)
        );
        let (_, spec) = space(&format!("fast={path}:1GiB")).unwrap();
        assert_eq!((spec.capacity, spec.quota), (1 << 30, 0));
        for bad in [
            format!("{path}:1GiB"),
            format!("fast={path}"),
            format!("fast={path}:1"),
            format!("fast={path}/no:1GiB"),
            format!("fast={path}:1GiB:2GiB"),
            format!("a/b={path}:1GiB"),
            format!("={path}:1GiB"),
        ] {
            assert!(space(&bad).is_err(), "{bad}");
        }
        let plain = folder.path().display().to_string();
        let (tier, memory) = (folder.path().to_owned(), PathBuf::from("/dev/shm"));
        assert_eq!(checkpoints(&plain).unwrap(), (tier.clone(), memory.clone()));
        let colons = checkpoints(&path.to_string()).unwrap();
        assert_eq!(colons, (tier.join("a:b"), memory));
        let both = checkpoints(&format!("{path}:{plain}")).unwrap();
        assert_eq!(both, (tier.join("a:b"), tier));
        assert!(checkpoints("/nowhere").is_err() && checkpoints(&format!("{plain}:/no")).is_err());
        assert!(weight("5=0").is_err() && weight("x=1").is_err());
        assert_eq!(weight("5=2").unwrap(), (5, 2));
        assert!(rate("0 B/s").is_err() && rate("1 MB/s").unwrap() == 1_000_000);
    }
}
