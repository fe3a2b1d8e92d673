//! The command line, defined once: parsing, help and completions come from here.

use crate::globals::Globals;
use crate::options::{
    DataCommand, EnterArgs, MachineArgs, NodeExecArgs, ResumeArgs, RunArgs, StatusArgs, WhichRun,
    WhyArgs,
};
use clap::{Parser, Subcommand};
use std::ffi::OsString;

/// Keeps a workflow's data on the compute nodes, in the fastest memory they have.
#[derive(Debug, Parser)]
#[command(
    name = "tarn",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
#[command(
    after_help = "Exit codes: docs/reference/exit-codes.md. Keys of a workflow file: docs/reference/workflow-file.md."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: TarnCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TarnCommand {
    /// Run a workflow; what has not changed since an earlier run is not run again
    Run(RunArgs),
    /// Dry run: order, placement, bytes moved and not moved, time, capacity
    Plan(RunArgs),
    /// Continue an interrupted or failed run
    Resume(ResumeArgs),
    /// Simulate a cluster and a workload under one or more policies
    Sim(Box<crate::sim::SimArgs>),
    /// The state of a run, live or ended
    Status(StatusArgs),
    #[allow(rustdoc::broken_intra_doc_links)] // a help text
    /// Why something happened or waits: a step, step[index], a dataset, a node, or the run
    Why(WhyArgs),
    /// Stop a run; it can be resumed
    Cancel(WhichRun),
    /// Datasets on the nodes
    #[command(subcommand)]
    Data(DataCommand),
    /// Your keys, which encrypted data is sealed with (docs/admin/security.md)
    #[command(subcommand)]
    Key(crate::key::KeyCommand),
    /// Checkpoints on this node (docs/guide/checkpoints.md), and models of them
    #[command(subcommand)]
    Ckpt(crate::ckpt::CkptCommand),
    /// HDF5 files in storage memory (docs/guide/hdf5.md)
    #[command(subcommand)]
    H5(crate::h5::H5Command),
    /// Partitions of storage memory, for direct access (docs/guide/direct-access.md)
    #[command(subcommand)]
    Partition(crate::partition::PartitionCommand),
    /// RDMA verbs: programs of libibverbs and partitions of storage memory (docs/guide/verbs.md)
    #[command(subcommand)]
    Verbs(crate::verbs::VerbsCommand),
    /// A partition of storage memory as a block device (docs/guide/block.md)
    #[command(subcommand)]
    Block(crate::block::BlockCommand),
    /// Memory modes of this node: 1LM, 2LM, mixed, CXL (docs/admin/memory-modes.md)
    #[command(subcommand)]
    Mode(crate::mode::ModeCommand),
    /// Usage of a site by users and projects: node-hours, space on nodes, bytes moved (docs/guide/on-a-site.md)
    Usage(crate::usage::UsageArgs),
    /// Submits a whole workflow to a site: the steps of a file as jobs, or scripts (docs/guide/on-a-site.md)
    Submit(crate::slurm::SubmitArgs),
    /// Commands that Slurm's scripts call on a site, and the state of jobs' data (docs/guide/on-a-site.md)
    #[command(subcommand)]
    Slurm(crate::slurm::SlurmCommand),
    /// Tiers, free capacity and mode of every node
    Nodes(MachineArgs),
    /// Check this machine: its tiers, and the programs and rights that tarn can use
    Doctor(crate::doctor::DoctorArgs),
    /// Measure tarn beside the plain tools: the program tarn-bench (`tarn bench --help`)
    #[command(disable_help_flag = true)]
    Bench {
        /// The benchmark, and its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Run the papers' experiments on this machine, and write a page of their results: `tarn-bench reproduce`
    #[command(disable_help_flag = true)]
    Reproduce {
        /// The experiments, and options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Inside a step: run a command on another of its nodes (mpirun's remote agent)
    Exec(NodeExecArgs),
    /// In a task that srun has started from a step: run a command that sees the step's data
    Enter(EnterArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Of research/coverage.md: a text in backquotes in a row's last cell that begins with `tarn` is a whole command.
    #[test]
    fn the_commands_that_show_the_papers_items_are_understood() {
        let text = include_str!("../../../research/coverage.md");
        let mut parsed = 0;
        for row in text.lines().filter(|line| line.starts_with("| ")) {
            let shown = row.trim_end_matches(" |").rsplit(" | ").next();
            let code = shown.unwrap_or_default().split('`').skip(1).step_by(2);
            for command in code.filter(|code| code.starts_with("tarn ")) {
                if let Err(e) = Cli::try_parse_from(command.split(' ')) {
                    panic!("`{command}`: {e}");
                }
                parsed += 1;
            }
        }
        assert!(parsed > 60, "only {parsed} commands");
    }
}
