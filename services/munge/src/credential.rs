//! Credentials, made and read by munge's own commands: input and output go through pipes.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long munge may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds that a credential is worth something: clocks differ, hosts are busy.
const TTL: u32 = 60;
/// Bytes of a credential: munge's own limit is a mebibyte, ours hold some hundred bytes.
pub(crate) const MAX_CREDENTIAL: usize = 4096;

/// The munge daemon of this host.
#[derive(Debug, Clone, Default)]
pub struct Munge {
    socket: Option<PathBuf>,
}

/// The user who has made a credential, as the kernel of their host reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// Why a credential cannot be made, or is refused.
#[derive(Debug, thiserror::Error)]
pub enum MungeError {
    /// The command cannot be run, or writes nothing.
    #[error("cannot run `{command}`: {why}; is munge installed, and does munged run on this host?")]
    Command {
        /// Which.
        command: &'static str,
        /// The system's error.
        why: String,
    },
    /// munge refuses it: forged, expired, replayed, of another key, for somebody else.
    #[error("munge refuses: {0}")]
    Refused(String),
}

impl Munge {
    /// The one that listens at another socket than munge's own.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        let socket = Some(socket.into());
        Self { socket }
    }

    /// A credential with a payload, which only processes of this user can decode. munge encrypts it.
    ///
    /// # Errors
    /// When munge makes none.
    pub fn encode(&self, payload: &[u8], reader: u32) -> Result<String, MungeError> {
        let uid = reader.to_string();
        let ttl = TTL.to_string();
        let words = ["--restrict-uid", &uid, "--ttl", &ttl];
        let output = self.run("munge", &words, payload)?;
        let text = String::from_utf8_lossy(&output).trim().to_owned();
        match text.len() {
            1..=MAX_CREDENTIAL => Ok(text),
            _ => Err(MungeError::Refused("it made no credential".into())),
        }
    }

    /// The maker of a credential, and its payload. munge decodes each once.
    ///
    /// # Errors
    /// When munge refuses it, and why.
    pub fn decode(&self, credential: &[u8]) -> Result<(Identity, Vec<u8>), MungeError> {
        let words = ["--numeric", "--keys", "STATUS,UID,GID"];
        let output = self.run("unmunge", &words, credential)?;
        let refused = || MungeError::Refused("the output of unmunge cannot be read".into());
        let end = output.windows(2).position(|two| two == b"\n\n");
        let end = end.ok_or_else(refused)?;
        let head = std::str::from_utf8(&output[..end]).map_err(|_| refused())?;
        let mut identity = [None, None];
        for line in head.lines() {
            let Some((key, value)) = line.split_once(':') else {
                return Err(refused());
            };
            let value = value.trim();
            match key {
                "STATUS" if value == "0" || value.ends_with("(0)") => {}
                "STATUS" => return Err(MungeError::Refused(value.to_owned())),
                "UID" => identity[0] = value.parse().ok(),
                "GID" => identity[1] = value.parse().ok(),
                _ => {}
            }
        }
        let [Some(user), Some(group)] = identity else {
            return Err(refused());
        };
        Ok((Identity { user, group }, output[end + 2..].to_vec()))
    }

    fn run(
        &self,
        command: &'static str,
        words: &[&str],
        input: &[u8],
    ) -> Result<Vec<u8>, MungeError> {
        let failed = |why: String| MungeError::Command { command, why };
        let mut process = Command::new(command);
        if let Some(socket) = &self.socket {
            process.arg("--socket").arg(socket);
        }
        let mut child = process
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        if let Some(mut pipe) = child.stdin.take() {
            // It may have refused before it has read all: its output counts.
            let _ = pipe.write_all(input);
        }
        let until = Instant::now() + TIMEOUT;
        let status = loop {
            match child.try_wait().map_err(|e| failed(e.to_string()))? {
                Some(status) => break status,
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                None => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(failed("it does not answer".into()));
                }
            }
        };
        // A credential's payload is smaller than a pipe holds.
        let mut output = Vec::new();
        let mut why = String::new();
        if let Some(mut pipe) = child.stdout.take() {
            let _ = pipe.read_to_end(&mut output);
        }
        if let Some(mut pipe) = child.stderr.take() {
            let _ = pipe.read_to_string(&mut why);
        }
        let why = why.trim().trim_start_matches(command);
        let why = why.trim_start_matches(": ").trim_start_matches("Error: ");
        if status.success() {
            return Ok(output);
        }
        match why.contains("socket") || why.contains("connect") {
            true => Err(failed(why.to_owned())),
            false => Err(MungeError::Refused(why.to_owned())),
        }
    }
}
