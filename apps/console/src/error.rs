//! An error with its exit code.

use std::fmt::Display;
use tarn_types::codes::Exit;

/// An error that ends the command.
#[derive(Debug)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// The failure, its cause, and the remedy.
    pub error: anyhow::Error,
}

impl CliError {
    /// An error with a message.
    ///
    /// # Examples
    /// ```
    /// use tarn_types::codes::Exit;
    /// use tarn_console::error::CliError;
    /// assert_eq!(CliError::new(Exit::NotFound, "no run").to_string(), "no run");
    /// ```
    pub fn new(exit: Exit, message: impl Display) -> Self {
        Self {
            exit,
            error: anyhow::anyhow!("{message}"),
        }
    }
}

impl std::fmt::Display for CliError {
    /// The error and its causes, each once: many errors of libraries include their cause themselves.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if text.is_empty() {
                text = cause;
            } else if !text.contains(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
        }
        f.write_str(&text)
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

/// The result of a command: its exit code, or the error that ends it.
pub type CliResult<T = Exit> = Result<T, CliError>;

/// Gives an error its exit code.
pub trait ExitWith<T> {
    /// The value, or the error with this exit code.
    ///
    /// # Errors
    /// The error.
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
