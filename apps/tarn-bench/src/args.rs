//! The command line, defined once: parsing, help and completions come from here.

use clap::{Parser, Subcommand};

/// Measures tarn beside the plain tools, and runs the papers' experiments.
#[derive(Debug, Parser)]
#[command(
    name = "tarn-bench",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
#[command(after_help = "Exit codes: docs/reference/exit-codes.md.")]
pub(crate) struct BenchCli {
    /// Machine-readable output on stdout, one JSON value a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Copies of trees beside `cp -r`
    Stage(crate::stage::Args),
    /// The papers' producer and consumer, by target and with or without the page cache
    Workflow(crate::workflow::Args),
    /// The planner of a site: the time of a step, and whole simulations
    Plan(crate::plan::Args),
    /// The planner of a Slurm site: the time that a snapshot of a large cluster takes
    SitePlan(crate::site_plan::Args),
    /// The audit of a Slurm's accounting, and how it grows with the number of jobs
    Audit(crate::audit::Args),
    /// Policies on workflows, over how much of the time is reading and writing outside
    Policies(crate::policies::Args),
    /// Policies on a trace of batch jobs with workflows mixed in
    Mixed(crate::mixed::Args),
    /// The cost of encryption, beside plain copies on the same medium
    Crypt(crate::crypt::Args),
    /// The cost of checkpoints, beside memcpy of the same bytes
    Ckpt(crate::ckpt::Args),
    /// Queue pairs to storage memory, beside the same copies without a queue
    Dsa(crate::dsa::Args),
    /// A partition as a block device, beside nbdkit's memory plug-in
    Block(crate::block::Args),
    /// HDF5 through tarn's file driver, beside its own drivers for files and memory
    Hdf5(crate::hdf5::Args),
    /// For many nodes: transfers between two nodes beside bare TCP streams, tasks of tarnd
    Cluster(crate::cluster::Args),
    /// The papers' experiments on this machine, and a page of their results
    Reproduce(crate::reproduce::Args),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        BenchCli::command().debug_assert();
    }

    /// Of research/coverage.md: text in backquotes in a row's last cell that is `tarn bench` or `tarn reproduce`.
    #[test]
    fn the_benchmarks_that_show_the_papers_items_are_understood() {
        let text = include_str!("../../../research/coverage.md");
        let mut parsed = 0;
        for row in text.lines().filter(|line| line.starts_with("| ")) {
            let shown = row.trim_end_matches(" |").rsplit(" | ").next();
            let code = shown.unwrap_or_default().split('`').skip(1).step_by(2);
            for command in code {
                let words: Vec<_> = command.split(' ').collect();
                let words = match words[..] {
                    ["tarn", "bench", ref words @ ..] => [&["tarn-bench"], words].concat(),
                    ["tarn", "reproduce", ..] => [&["tarn-bench"], &words[1..]].concat(),
                    _ => continue,
                };
                if let Err(e) = BenchCli::try_parse_from(words) {
                    panic!("`{command}`: {e}");
                }
                parsed += 1;
            }
        }
        assert!(parsed > 40, "only {parsed} commands");
    }
}
