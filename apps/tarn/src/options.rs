//! The options of commands about workflows, their runs and data.

use crate::argument::{parse_rate_limit, parse_version_number};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tarn_data_plane::Transport;
use tarn_types::event::Verify;
use tarn_types::named::{NamedDataset, Whose};
use tarn_types::policy::Policy;
use tarn_types::units::{parse_rate, parse_time};

/// The machine: how many nodes, with which tiers.
#[derive(Debug, Clone, Args)]
pub(crate) struct MachineArgs {
    /// Nodes to divide this machine into [default: 1]; in an allocation of Slurm: how many of its nodes [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) nodes: Option<u32>,
    /// Also in an allocation of Slurm: this machine only, not the allocation's nodes
    #[arg(long)]
    pub(crate) local: bool,
    /// On one machine: each node has as many cores as the whole machine, and steps share them. To try out a larger machine with steps that
    /// wait more than they compute
    #[arg(long)]
    pub(crate) oversubscribe: bool,
    /// A tier, fast to slow; may be given several times. Its folder is made, but not on the root disk [default: a tmpfs, sized by the memory that is free]
    #[arg(long = "tier", value_name = "NAME=PATH[:SIZE]")]
    pub(crate) tiers: Vec<String>,
    /// Emulate a slow external store: limit tarn's own transfers to and from it to this rate, all together
    /// (a program's own reads and writes are not slowed)
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) external_rate: Option<u64>,
    /// Emulate a slow external store: add this much to every file; alone, it limits no rate
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) external_latency: Option<u64>,
    /// Limit the transfers that each node of an allocation receives from other nodes to this rate, all together; on one machine, where
    /// nodes read the same memory or disk, it has no effect
    #[arg(long, value_name = "RATE", value_parser = parse_rate_limit)]
    pub(crate) peer_rate: Option<u64>,
    /// Transfers to and from the external store at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) external_streams: u32,
    /// In an allocation: the substitute for a tier that a node does not have: its own memory, or part of the tier of a node that has one,
    /// over the network, which needs GlusterFS: docs/guide/shared-namespace.md
    #[arg(long, value_enum, default_value_t = WithoutTier::StandIn)]
    pub(crate) without_tier: WithoutTier,
    /// Whether steps get their own namespaces: `off` keeps them in the caller's, and refuses steps of
    /// several nodes
    #[arg(long, value_enum, default_value_t = IsolationArg::Auto)]
    pub(crate) isolation: IsolationArg,
    /// Where a machine has several processor sockets: whether steps get their own cores, of one socket, and tarn moves
    /// data near the tier that it is on
    #[arg(long, value_enum, default_value_t = BindArg::Socket)]
    pub(crate) bind: BindArg,
    #[allow(rustdoc::broken_intra_doc_links)] // a help text
    /// In an allocation: how nodes read each other's files: tcp; sealed: TCP encrypted by AES-256-GCM; or libfabric[:PROVIDER]
    /// [default provider: tcp;ofi_rxm], which needs libtarnfabric.so beside tarnd or in ../lib/tarn
    #[arg(long, value_name = "TRANSPORT", default_value_t = Transport::Tcp)]
    pub(crate) transport: Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BindArg {
    /// Nothing is bound
    None,
    /// Steps and movement are
    Socket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WithoutTier {
    /// Its own memory, or a folder of the state folder
    StandIn,
    /// Part of another node's
    Borrow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationArg {
    /// Where the system allows it
    Auto,
    /// Never
    Off,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// The workflow file; or sbatch scripts with `#TARN` lines, which are a workflow together
    #[arg(required = true, value_name = "FILE")]
    pub(crate) workflow: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// Which step starts when and where, and where its data goes: fcfs, greedy[:max-wait=TIME], easy, sjf-easy, heft
    /// or same-nodes, each with +stage-through (the usual) or +cache; data (data stays on the nodes, steps go to it); energy
    /// (within a run like data: no node is put to sleep). `stage-through` alone is heft+stage-through
    #[arg(long, value_name = "POLICY", default_value = "data")]
    pub(crate) policy: Policy,
    /// The least verification of transfers
    #[arg(long, value_enum, default_value_t = VerifyArg::Copy)]
    pub(crate) verify: VerifyArg,
    /// Share of each tier for cached data, in percent. Later runs use it again; it is removed when space is needed. 0 caches nothing,
    /// as in an allocation of Slurm
    #[arg(long, value_name = "PERCENT", default_value_t = CACHE, env = "TARN_CACHE", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) cache: u8,
    /// Start nothing new once a step has failed for good. By default, steps that do not need its output still run
    #[arg(long)]
    pub(crate) fail_fast: bool,
    /// Write the report here as well
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// In an allocation of Slurm: the run is interrupted so many seconds before the allocation ends, to copy out the data that must not
    /// be lost
    #[arg(long, value_name = "SECONDS", default_value_t = MARGIN)]
    pub(crate) margin: u64,
}

/// Percent of a tier that cached data may take, unless somebody says otherwise.
pub(crate) const CACHE: u8 = 25;

/// Seconds that a run leaves to itself before its allocation ends.
pub(crate) const MARGIN: u64 = 60;

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum VerifyArg {
    /// Not at all
    None,
    /// Data that was read is hashed and compared
    Copy,
    /// Data that was written is read again
    Readback,
}

impl From<VerifyArg> for Verify {
    fn from(v: VerifyArg) -> Self {
        match v {
            VerifyArg::None => Self::None,
            VerifyArg::Copy => Self::Copy,
            VerifyArg::Readback => Self::Readback,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) which: WhichRun,
    /// Write the report here as well
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// As for `tarn run`
    #[arg(long, value_enum, default_value_t = IsolationArg::Auto)]
    pub(crate) isolation: IsolationArg,
    /// As for `tarn run` [default: sealed if the run began so, else tcp]
    #[arg(long, value_name = "TRANSPORT")]
    pub(crate) transport: Option<Transport>,
    /// As for `tarn run`
    #[arg(long, value_name = "SECONDS", default_value_t = MARGIN)]
    pub(crate) margin: u64,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WhichRun {
    /// The run [default: the newest]
    run: Option<String>,
    /// The run, given as an option
    #[arg(long = "run", value_name = "RUN", conflicts_with = "run")]
    named: Option<String>,
}

impl WhichRun {
    pub(crate) fn name(&self) -> Option<&String> {
        self.run.as_ref().or(self.named.as_ref())
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) which: WhichRun,
    /// Refresh every second until the run ends: a display in a terminal, a line a second elsewhere, an object a second
    /// with --json. Works wherever the state folder can be read
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WhyArgs {
    #[allow(rustdoc::broken_intra_doc_links)] // a help text
    /// A step, step[index], step[item], dataset, node or tier; nothing for the run itself; outside of a run, the number of a job of Slurm
    #[arg(default_value = "")]
    pub(crate) what: String,
    /// The run [default: the newest]
    #[arg(long)]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// List the datasets that are stored on nodes or were delivered: of the runs here; on a site, where there are none here, of the site
    Ls {
        /// Those of the site (docs/guide/on-a-site.md)
        #[arg(long)]
        site: bool,
        /// Those of the site that are a user's, or a project's: `alice`, `@climate`
        #[arg(long, value_name = "WHOSE", conflicts_with = "orphans")]
        of: Option<String>,
        /// Data on the nodes of the site that belongs to no known dataset
        #[arg(long)]
        orphans: bool,
    },
    /// A dataset of a site: its versions, where they are stored and for how long, who may read it
    Show {
        /// The dataset: `foam/mesh`, `alice/foam/mesh`, `@climate/forcing`
        dataset: NamedDataset,
    },
    /// Let a user or a group read a dataset of a site
    Grant {
        /// The dataset
        dataset: NamedDataset,
        /// The user or project: `bob`, `@climate`
        who: Whose,
    },
    /// Take the right to read a dataset of a site from a user or a group; jobs that have started keep it
    Revoke {
        /// The dataset
        dataset: NamedDataset,
        /// The user or project
        who: Whose,
    },
    /// Keep a dataset of a site for some time from now on
    Keep {
        /// The dataset
        dataset: NamedDataset,
        /// A time such as 7d, or `forever`
        time: String,
    },
    /// Where the replicas of a dataset are, those of older versions too
    Where {
        /// The dataset: `mesh`, or `foam/mesh` where several workflows have one
        dataset: String,
    },
    /// Read all replicas of a dataset again, and compare them with what was published
    Verify(DataVerifyArgs),
    /// Copy a tree into a tier, as a separate named dataset; with --object, a file into the node's object store.
    /// Older data of that name is removed when the new data is complete; data that is already there, unchanged, stays
    Put(DataPutArgs),
    /// Copy a dataset out of the nodes (if some instances of its step have failed: the output of the others, with exit code 1); with
    /// --object, an object out of the node's store, or from another node into it
    Get(DataGetArgs),
    /// Copy a tree or a file with this process's own rights, whole or not at all, read back and compared: for stores that only a
    /// job's own steps reach (docs/guide/on-a-site.md), and from and to object stores (docs/guide/object-stores.md)
    Copy {
        /// The tree or file to copy; a link is copied, not followed. Of an object store `s3://BUCKET/KEY`, or a tree: `s3://BUCKET/PREFIX/`
        from: PathBuf,
        /// The destination; in a folder that exists: under its own name. Of an object store, a folder is that tree, and a file is in it
        to: PathBuf,
        /// Replace an existing destination in one step; a tree of an object store is replaced object by object
        #[arg(long)]
        replace: bool,
    },
    /// The newest versions of all objects in the node's store (docs/guide/objects.md)
    Objects {
        /// The folder of the object store [default: $TARN_OBJECTS]
        #[arg(long, value_name = "DIR")]
        store: Option<PathBuf>,
    },
    /// All versions of an object
    Versions {
        /// The object's key
        key: String,
        /// The folder of the object store [default: $TARN_OBJECTS]
        #[arg(long, value_name = "DIR")]
        store: Option<PathBuf>,
    },
    /// Remove a dataset from the nodes, or leftovers of dead runs; with --object, an object from the node's store
    Rm(DataRmArgs),
    /// Keep a dataset until somebody removes it
    Pin {
        /// The dataset: `mesh`, or `foam/mesh` where several workflows have one
        dataset: String,
    },
    /// Allow a dataset that nobody needs to be removed now, with all its versions: the opposite of `pin`
    Release {
        /// The dataset: `mesh`, or `foam/mesh` where several workflows have one
        dataset: String,
    },
    /// Copy a dataset to the external store, verify it there and free its space on the nodes
    Drain {
        /// The dataset: `mesh`, or `foam/mesh` where several workflows have one
        dataset: String,
        /// A folder that does not exist yet, or a tree of an object store where nothing is yet: `s3://BUCKET/PREFIX/`
        dest: PathBuf,
        /// As this run has made it [default: the newest that has made any of it]
        #[arg(long)]
        run: Option<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DataVerifyArgs {
    /// The dataset: `mesh`, `foam/mesh` where several workflows have one, or one of the site's that is yours
    pub(crate) dataset: String,
    /// As this run has made it [default: the newest that has made any of it]
    #[arg(long)]
    pub(crate) run: Option<String>,
    /// The version of a site's dataset [default: all of them]
    #[arg(long, value_name = "N")]
    pub(crate) number: Option<u64>,
    /// The site's (docs/guide/on-a-site.md): names with a `/` that no run here has mean those anyhow
    #[arg(long)]
    pub(crate) site: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DataPutArgs {
    /// The folder, or an object's file; a folder may be a tree of an object store outside, `s3://BUCKET/PREFIX/`
    pub(crate) path: PathBuf,
    /// The dataset's name, or the object's key
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// A description of the object for its readers
    #[arg(long, value_name = "TEXT", requires = "object", default_value = "")]
    pub(crate) about: String,
    /// The object's content is encrypted in the store, with the key that `tarn key new` makes
    #[arg(long, requires = "object")]
    pub(crate) encrypt: bool,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// How long it is kept: a time such as 7d, or `forever`
    #[arg(long, default_value = "forever", value_name = "TIME")]
    pub(crate) keep: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DataGetArgs {
    /// The dataset (`mesh`, `foam/mesh`), or the object's key
    pub(crate) dataset: String,
    /// A folder (of an object: a file) that does not exist yet [default of an object: none; its verified file is named];
    /// or of a dataset a tree of an object store outside, `s3://BUCKET/PREFIX/`, where nothing is yet
    #[arg(required_unless_present = "object")]
    pub(crate) dest: Option<PathBuf>,
    /// As this run has made it [default: the newest that has made any of it]
    #[arg(long, conflicts_with = "object")]
    pub(crate) run: Option<String>,
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// The version of an object [default: the newest]
    #[arg(long, value_name = "N", requires = "object", value_parser = parse_version_number)]
    pub(crate) number: Option<u64>,
    /// The node's tarnd ($TARN_SOCKET) first brings the object from the same store of this node
    #[arg(long, value_name = "NODE", requires = "object")]
    pub(crate) from: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DataRmArgs {
    /// The dataset (`mesh`, `foam/mesh`), or the object's key
    #[arg(required_unless_present = "orphans")]
    pub(crate) dataset: Option<String>,
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// The version of an object, or of a site's dataset [default: all of them]
    #[arg(long, value_name = "N")]
    pub(crate) number: Option<u64>,
    /// Of a site: your data on its nodes that belongs to no known dataset. Elsewhere,
    /// of all workflows of this state folder without an active run: the data in their folders on the tiers that any of their runs
    /// used, except data to be kept and data that the newest run needs to resume. On this machine, and
    /// inside an allocation on its nodes
    #[arg(long, conflicts_with_all = ["dataset", "object"])]
    pub(crate) orphans: bool,
    /// The site's (docs/guide/on-a-site.md): names with a `/` that no run here has mean those anyhow
    #[arg(long, conflicts_with = "object")]
    pub(crate) site: bool,
}

/// Whether the name is an object's, and where the object is.
#[derive(Debug, Clone, Args)]
pub(crate) struct ObjectArgs {
    /// It is an object of the node's store, not a dataset (docs/guide/objects.md)
    #[arg(long)]
    pub(crate) object: bool,
    /// The folder of the object store [default: $TARN_OBJECTS]
    #[arg(long, value_name = "DIR", requires = "object")]
    pub(crate) store: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EnterArgs {
    /// The command
    #[arg(trailing_var_arg = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct NodeExecArgs {
    /// The node
    pub(crate) node: String,
    /// The command
    #[arg(trailing_var_arg = true, required = true)]
    pub(crate) command: Vec<String>,
}
