//! An error with its exit code.

use std::fmt::Display;
use tarn_base::codes::Exit;

/// What ends the command.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) exit: Exit,
    pub(crate) error: anyhow::Error,
}

impl CliError {
    pub(crate) fn new(exit: Exit, message: impl Display) -> Self {
        Self {
            exit,
            error: anyhow::anyhow!("{message}"),
        }
    }
}

impl std::fmt::Display for CliError {
    /// The error and its causes, each said once: many errors of libraries say their cause themselves.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut said = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if said.is_empty() {
                said = cause;
            } else if !said.contains(&cause) {
                said.push_str(": ");
                said.push_str(&cause);
            }
        }
        f.write_str(&said)
    }
}

impl From<anyhow::Error> for CliError {
    fn from(error: anyhow::Error) -> Self {
        Self {
            exit: Exit::State,
            error,
        }
    }
}

pub(crate) type CliResult<T = Exit> = Result<T, CliError>;

/// Gives an error its exit code.
pub(crate) trait ExitWith<T> {
    fn exit(self, exit: Exit) -> CliResult<T>;
}

impl<T, E: Into<anyhow::Error>> ExitWith<T> for Result<T, E> {
    fn exit(self, exit: Exit) -> CliResult<T> {
        self.map_err(|e| CliError {
            exit,
            error: e.into(),
        })
    }
}
