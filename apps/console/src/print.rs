//! All that the command prints: data on stdout, messages on stderr. Nothing here panics when a reader has closed its end: a run
//! continues when nobody reads. Text has its control characters escaped: names of files and last lines of a step's log come from
//! others, and terminals obey them.

use crate::error::{CliError, CliResult};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use tarn_types::codes::Exit;

/// Why stdout took no more. A reader would take text after a gap for complete, so none is written.
static STDOUT_ENDED: OnceLock<(ErrorKind, String)> = OnceLock::new();

/// A line of data on stdout.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::print::line(format_args!($($text)*)) };
}
/// A message on stderr.
#[macro_export]
macro_rules! message {
    ($($text:tt)*) => { $crate::print::message(format_args!($($text)*)) };
}
pub use crate::{message, out};

/// A line on stdout.
///
/// # Errors
/// When it cannot be written, but for a reader that has gone away.
pub fn line(text: Arguments<'_>) -> CliResult<()> {
    stdout(&format!("{}\n", plain(&text.to_string())))
}

/// Text on stdout that ends its own lines.
pub fn text(text: &str) -> CliResult<()> {
    stdout(&plain(text))
}

/// Draws lines, which are [`plain`], over the `above` lines that were drawn before, on a stdout that is a terminal.
pub fn redraw(above: usize, lines: &[String]) -> CliResult<()> {
    let mut text = match above {
        0 => String::new(),
        n => format!("\u{1b}[{n}A"),
    };
    for line in lines {
        text += &format!("{line}\u{1b}[K\n");
    }
    stdout(&format!("{text}\u{1b}[J"))
}

/// Whether the reader of stdout has gone away.
pub fn nobody_reads() -> bool {
    STDOUT_ENDED.get().is_some()
}

/// A line of JSON on stdout. (JSON escapes control characters itself.)
pub fn json(value: &impl Serialize) -> CliResult<()> {
    let text = serde_json::to_string(value).map_err(|e| CliError::new(Exit::Internal, e))?;
    stdout(&format!("{text}\n"))
}

/// A line on stderr.
pub fn message(text: Arguments<'_>) {
    drawn(&plain(&text.to_string()));
}

/// A message that draws for itself: with colours, where the terminal has them.
pub fn drawn(text: &str) {
    // There is no other place to report it.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// A reader that has gone away has read enough. A full disk is an error.
fn stdout(text: &str) -> CliResult<()> {
    if STDOUT_ENDED.get().is_none() {
        let mut out = io::stdout().lock();
        if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            let _ = STDOUT_ENDED.set((e.kind(), e.to_string()));
        }
    }
    match STDOUT_ENDED.get() {
        None | Some((ErrorKind::BrokenPipe, _)) => Ok(()),
        Some((_, why)) => Err(CliError::new(
            Exit::State,
            format!(
                "cannot write to standard output: {why}; the output is incomplete: free space, or redirect it elsewhere"
            ),
        )),
    }
}

/// Ends a program: prints the error, if there is one, and returns the exit code.
pub fn ended(result: CliResult) -> ExitCode {
    match result {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(e) => {
            message!("error: {e}");
            ExitCode::from(e.exit as u8)
        }
    }
}

/// Text without anything that a terminal would obey: control characters but for newlines and tabs stand as
/// `\u{1b}`.
pub fn plain(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if obeyed(c) {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(plain("a\tb\nä"), "a\tb\nä");
        assert_eq!(
            plain("\u{1b}[31mred\r\u{9b}\u{7}"),
            "\\u{1b}[31mred\\r\\u{9b}\\u{7}"
        );
    }
}
