//! Files that `tarn sim` and the benchmarks of policies read: machines, policies, numbers.

use crate::error::{CliError, CliResult, ExitWith};
use crate::print;
use anyhow::Context;
use std::io::Read;
use std::path::Path;
use tarn_spec::SpecError;
use tarn_spec::site::{DataModel, parse_machine};
use tarn_types::codes::Exit;
use tarn_types::policy::{Policy, PolicyError};
use tarn_types::site::Machine;

/// Bytes of a file that is read: the largest traces of the Parallel Workloads Archive have some hundred megabytes.
const MAX_FILE_BYTES: u64 = 4 << 30;
/// Bytes that are read from a pipe or a device.
const MAX_PIPED_BYTES: u64 = 256 << 20;
/// The machine of a cluster file.
pub fn machine_of(path: &Path) -> CliResult<Machine> {
    let bytes = read_bounded(path)
        .with_context(|| format!("cannot read the cluster file {}", path.display()))
        .exit(Exit::NotFound)?;
    let text = String::from_utf8(bytes)
        .with_context(|| format!("the cluster file {} is no text", path.display()))
        .exit(Exit::InvalidWorkflow)?;
    let name = path.display().to_string();
    parse_machine(&name, &text).map_err(|r| rejected(r, "cluster"))
}

/// A file's bytes, at most 4 GiB; of a pipe or a device at most 256 MiB.
///
/// # Errors
/// When it cannot be read, or is larger.
pub fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    // An input that is no regular file has no known length, and may have no end.
    let most = if file.metadata()?.is_file() {
        MAX_FILE_BYTES
    } else {
        MAX_PIPED_BYTES
    };
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let message = format!("it has more than the {most} bytes that are read");
        return Err(std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            message,
        ));
    }
    Ok(bytes)
}

/// Draws every problem on stderr; the error itself only counts them.
pub fn rejected(rejected: SpecError, what: &str) -> CliError {
    let count = rejected.problems().len();
    print::drawn(&format!("{:?}", miette::Report::new(rejected)));
    CliError::new(
        Exit::InvalidWorkflow,
        format!("{count} problem(s) in the {what}; nothing was simulated"),
    )
}

/// Before anything is simulated: a page without a folder could only be refused in the end.
pub fn check_folder(page: &Path) -> CliResult<()> {
    let folder = page.parent().filter(|p| !p.as_os_str().is_empty());
    std::fs::read_dir(folder.unwrap_or(Path::new(".")))
        .map(|_| ())
        .with_context(|| format!("cannot write the report to {}", page.display()))
        .exit(Exit::State)
}

/// Policies in the order in which they were named.
#[derive(Debug, Clone, PartialEq)]
pub struct Policies(pub Vec<Policy>);

/// Why a list of policies was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PoliciesError {
    /// One of them is none.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// One is named twice, in the same words.
    #[error("`{0}` is named twice")]
    Twice(Policy),
    /// Two names are of one policy.
    #[error("`{0}` and `{1}` are the same policy; name one of them")]
    Same(Box<Policy>, Box<Policy>),
}

/// Why a number was refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NumberError {
    /// It is to be finite and above 0.
    #[error("a number above 0 is expected")]
    NotPositive,
    /// It is to be a factor of loads.
    #[error("a number from 1e-6 to 1e6 is expected")]
    NoScale,
    /// It is to be a share within bounds.
    #[error("a share is expected: a number from {least} to {most}")]
    NoShare {
        /// The least that it may be.
        least: f64,
        /// The most.
        most: f64,
    },
}

/// Settings of a policy are divided by commas as policies are: a piece with a `=` and no `:` before it is one more setting.
///
/// # Errors
/// When one of them is no policy, or two are the same.
pub fn policies(text: &str) -> Result<Policies, PoliciesError> {
    let mut names: Vec<String> = Vec::new();
    for piece in text.split(',') {
        let setting = piece.contains('=') && !piece.contains(':');
        match names.last_mut().filter(|_| setting) {
            Some(last) => {
                last.push(',');
                last.push_str(piece);
            }
            None => names.push(piece.to_owned()),
        }
    }
    let mut policies: Vec<Policy> = Vec::new();
    for name in names {
        let policy: Policy = name.trim().parse()?;
        if let Some(before) = policies.iter().find(|p| p.same_as(&policy)) {
            return Err(if before == &policy {
                PoliciesError::Twice(policy)
            } else {
                PoliciesError::Same(Box::new(*before), Box::new(policy))
            });
        }
        policies.push(policy);
    }
    Ok(Policies(policies))
}

/// A finite number above 0.
///
/// # Errors
/// When the text is no such number.
pub fn positive(text: &str) -> Result<f64, NumberError> {
    let number = text
        .parse()
        .ok()
        .filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or(NumberError::NotPositive)
}

/// A number from 1e-6 to 1e6.
///
/// # Errors
/// When the text is no such number.
pub fn scale(text: &str) -> Result<f64, NumberError> {
    let number = text.parse().ok().filter(|n| (1e-6..=1e6).contains(n));
    number.ok_or(NumberError::NoScale)
}

/// A number from 0 to 1.
///
/// # Errors
/// When the text is no such number.
pub fn share(text: &str) -> Result<f64, NumberError> {
    within(text, (0.0, 1.0))
}

/// The share of a run time that is reading and writing.
///
/// # Errors
/// When the text is no such share ([`DataModel::IO_RANGE`]).
pub fn io_share(text: &str) -> Result<f64, NumberError> {
    within(text, DataModel::IO_RANGE)
}

fn within(text: &str, (least, most): (f64, f64)) -> Result<f64, NumberError> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or(NumberError::NoShare { least, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_stay_with_their_policy() {
        let read = |text: &str| {
            policies(text).map(|p| p.0.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(
            read("easy, energy:bound=60s,slow-down=5%,heft+cache"),
            Ok(vec![
                "easy".into(),
                "energy:bound=60s,slow-down=5%".into(),
                "heft+cache".into()
            ])
        );
        for (text, part) in [
            ("easy,,data", "no policy"),
            ("bound=5m", "no policy"),
            ("data,easy,data", "twice"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
