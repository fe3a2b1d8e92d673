//! The site's controller: at its unix socket on its own host, by TCP and munge from others.

use super::command::run_command;
use crate::error::{CliError, CliResult};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_munge::{Munge, SessionError, open};
use tarn_proto::local::Code;
use tarn_proto::site::{
    CONTROLLER, CONTROLLER_PORT, ControllerReply, ControllerRequest, MAX_FRAME, decode, encode,
};
use tarn_types::codes::Exit;

/// Its socket on its own host unless `$TARN_CONTROLLER` has another.
const SOCKET: &str = "/run/tarn/controller";
/// How long an answer may take that Slurm waits for: its limit for stages is a day.
const STAGE: Duration = Duration::from_secs(86_400);
/// Between two tries to reach it: each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long a connection to another host may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The user that it runs as: nobody else can read the first request.
const ROOT: u32 = 0;

pub(crate) struct ControllerClient {
    places: Vec<ControllerAddress>,
    /// If none of them answers, those beside slurmctld may.
    is_beside_slurms: bool,
}

/// An address of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ControllerAddress {
    Here(PathBuf),
    /// A host and a port.
    There(String),
}

impl std::fmt::Display for ControllerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Here(path) => path.display().fmt(f),
            Self::There(host) => host.fmt(f),
        }
    }
}

/// The addresses in `$TARN_CONTROLLER`: a path, or hosts with or without a port.
fn places(text: &str) -> Vec<ControllerAddress> {
    if text.starts_with('/') {
        return vec![ControllerAddress::Here(text.into())];
    }
    let hosts = text
        .split(',')
        .map(str::trim)
        .filter(|host| !host.is_empty());
    hosts.map(there).collect()
}

fn there(host: &str) -> ControllerAddress {
    let is_number = |port: &str| port.parse::<u16>().is_ok();
    let with_port = match host.rsplit_once(':') {
        // `[::1]:7411`, `login:7411`, but not `::1`.
        Some((name, port)) => is_number(port) && (name.ends_with(']') || !name.contains(':')),
        None => false,
    };
    ControllerAddress::There(
        match (with_port, host.contains(':') && !host.starts_with('[')) {
            (true, _) => host.to_owned(),
            (false, true) => format!("[{host}]:{CONTROLLER_PORT}"),
            (false, false) => format!("{host}:{CONTROLLER_PORT}"),
        },
    )
}

/// The hosts of slurmctld, as Slurm's configuration has them: the controller runs beside it, its backup beside the backup.
fn slurms() -> Vec<ControllerAddress> {
    let config = run_command("scontrol", &["show", "config"]).unwrap_or_default();
    let lines = config.lines().filter_map(|line| line.split_once('='));
    let hosts = lines.filter(|(name, _)| name.trim_start().starts_with("SlurmctldHost["));
    // `login(10.0.0.1)`: the address, if there is one.
    let addresses = hosts.map(|(_, host)| {
        let host = host.trim().trim_end_matches(')');
        host.rsplit('(').next().unwrap_or(host)
    });
    addresses.map(there).collect()
}

/// The pauses between tries.
pub(super) struct RetryPauses(Duration);

impl Default for RetryPauses {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl RetryPauses {
    pub(super) fn sleep(&mut self) {
        std::thread::sleep(self.0);
        self.0 = LAST_PAUSE.min(2 * self.0);
    }
}

impl ControllerClient {
    /// The one that `$TARN_CONTROLLER` names, else this host's, else that beside slurmctld.
    pub(crate) fn of_environment() -> Self {
        let text = std::env::var("TARN_CONTROLLER").unwrap_or_default();
        let places = places(&text);
        if places.is_empty() {
            Self {
                places: vec![ControllerAddress::Here(SOCKET.into())],
                is_beside_slurms: true,
            }
        } else {
            Self {
                places,
                is_beside_slurms: false,
            }
        }
    }

    /// Whether there is one on this host.
    pub(crate) fn is_here(&self) -> bool {
        let here = |place: &ControllerAddress| matches!(place, ControllerAddress::Here(path) if path.exists());
        self.places.iter().any(here)
    }

    /// Whether there may be one: on this host, where `$TARN_CONTROLLER` says, or beside slurmctld.
    pub(crate) fn is_known(&self) -> bool {
        let is_there = |place: &ControllerAddress| matches!(place, ControllerAddress::There(_));
        self.is_here()
            || self.places.iter().any(is_there)
            || self.is_beside_slurms && !slurms().is_empty()
    }

    /// Sends a request, and sends it again for so long if the controller is not there, or ends meanwhile: it knows earlier
    /// requests.
    pub(crate) fn ask(
        &self,
        ask: &ControllerRequest,
        timeout: Duration,
    ) -> CliResult<ControllerReply> {
        let mut until = Instant::now() + timeout;
        let mut pauses = RetryPauses::default();
        loop {
            let began = Instant::now();
            let why = match self.converse(ask, STAGE) {
                Ok(ControllerReply::Refused(why))
                    if why.code == Code::Lost && why.text.contains("ask again") =>
                {
                    io::Error::other(why.text)
                }
                Ok(reply) => return Ok(reply),
                Err(why) => why,
            };
            if began.elapsed() > LAST_PAUSE {
                // It was there: a new one may take as long again.
                until = Instant::now() + timeout;
                pauses = RetryPauses::default();
            }
            if Instant::now() >= until {
                return Err(self.unreachable(&why));
            }
            pauses.sleep();
        }
    }

    /// Sends the request once; for requests that may be made without an answer.
    pub(crate) fn ask_once(
        &self,
        ask: &ControllerRequest,
        timeout: Duration,
    ) -> CliResult<ControllerReply> {
        let reply = self.converse(ask, timeout);
        reply.map_err(|why| self.unreachable(&why))
    }

    fn unreachable(&self, why: &io::Error) -> CliError {
        let places: Vec<String> = self
            .places
            .iter()
            .map(ControllerAddress::to_string)
            .collect();
        let beside = if self.is_beside_slurms {
            ", nor beside slurmctld"
        } else {
            ""
        };
        let text = format!(
            "tarn's controller does not answer at {}{beside}: {why}; is `tarnd --controller` running there? ($TARN_CONTROLLER: its socket, or its host)",
            places.join(", ")
        );
        CliError::new(Exit::State, text)
    }

    /// Of several places the first that answers.
    fn converse(&self, ask: &ControllerRequest, timeout: Duration) -> io::Result<ControllerReply> {
        let reply = first_of(&self.places, ask, timeout);
        if reply.is_ok() || !self.is_beside_slurms {
            return reply;
        }
        // Its socket may be left of one that has ended: a backup answers on another host.
        let others = slurms();
        if others.is_empty() {
            reply
        } else {
            first_of(&others, ask, timeout)
        }
    }
}

fn first_of(
    places: &[ControllerAddress],
    ask: &ControllerRequest,
    timeout: Duration,
) -> io::Result<ControllerReply> {
    let mut result = Err(io::ErrorKind::NotFound.into());
    for place in places {
        result = match place {
            ControllerAddress::Here(path) => near(path, ask, timeout),
            ControllerAddress::There(host) => far(host, ask, timeout),
        };
        if result.is_ok() {
            break;
        }
    }
    result
}

fn near(path: &Path, ask: &ControllerRequest, timeout: Duration) -> io::Result<ControllerReply> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(&encode(ask).map_err(io::Error::other)?)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::other("an answer that is too long to be one"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    decode(&body).map_err(io::Error::other)
}

fn far(host: &str, ask: &ControllerRequest, timeout: Duration) -> io::Result<ControllerReply> {
    let mut result = Err(io::Error::other("nobody is called so"));
    for address in host.to_socket_addrs()? {
        result = TcpStream::connect_timeout(&address, CONNECT);
        if result.is_ok() {
            break;
        }
    }
    let converse = |stream| -> Result<ControllerReply, SessionError> {
        // Nodes get secrets with this; a client has none to share.
        let (mut reader, mut writer) = open(stream, CONTROLLER, ROOT, &[], &Munge::default())?;
        writer.send(ask)?;
        reader.receive(timeout)
    };
    converse(result?).map_err(|e| match e {
        SessionError::Io(e) => e,
        other => io::Error::other(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths_or_hosts() {
        let far = |text: &str| ControllerAddress::There(text.into());
        assert_eq!(places("/run/x"), [ControllerAddress::Here("/run/x".into())]);
        assert_eq!(places("a, b:1"), [far("a:7411"), far("b:1")]);
        assert_eq!(places("::1"), [far("[::1]:7411")]);
        assert_eq!(places("[::1]:5"), [far("[::1]:5")]);
        assert_eq!(places(""), []);
    }
}
