//! The options that every command has.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tracing::Level;

#[derive(Debug, Args)]
pub(crate) struct Globals {
    /// The folder of tarn's state [default: .tarn beside the workflow file, or here]
    #[arg(long, global = true, value_name = "DIR", env = "TARN_STATE")]
    pub(crate) state: Option<PathBuf>,
    /// Machine-readable output on stdout, one JSON value a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log a run's beginning and end, nodes, steps and transfers: error, warn, info, debug or trace (tarnd on nodes too)
    #[arg(long, global = true, value_name = "LEVEL", env = "TARN_LOG")]
    pub(crate) log: Option<Level>,
    /// Where `--log` writes: to standard error, or to `tarn.log` in the run's folder
    #[arg(long, global = true, value_enum, default_value_t = LogTo::Stderr)]
    pub(crate) log_to: LogTo,
    /// How `--log` writes (tarnd on nodes too)
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogTo {
    /// Standard error
    Stderr,
    /// The run's folder
    Run,
}

/// How the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object a line
    Json,
}

/// The level and the format of a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logged {
    pub(crate) level: Level,
    pub(crate) format: LogFormat,
}

impl Globals {
    /// The log that the options request, if any.
    pub(crate) fn logged(&self) -> Option<Logged> {
        let format = self.log_format;
        self.log.map(|level| Logged { level, format })
    }
}

impl Logged {
    /// As options of tarnd.
    pub(crate) fn words(self) -> [String; 2] {
        let format = match self.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let Self { level, .. } = self;
        [
            format!("--log-level={level}"),
            format!("--log-format={format}"),
        ]
    }
}
