//! The site's controller, at its unix socket.

use crate::error::{CliError, CliResult};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tarn_base::codes::Exit;
use tarn_proto::local::Code;
use tarn_proto::site::{Ask, MAX_FRAME, Said, decode, encode};

/// Where it listens unless `$TARN_CONTROLLER` says otherwise.
const SOCKET: &str = "/run/tarn/controller";
/// How long an answer may take that Slurm waits for: its limit for stages is a day.
const STAGE: Duration = Duration::from_secs(86_400);
/// Between two tries to reach it.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Controller {
    socket: PathBuf,
}

impl Controller {
    pub(crate) fn of_environment() -> Self {
        let socket = std::env::var_os("TARN_CONTROLLER").filter(|path| !path.is_empty());
        Self {
            socket: socket.map_or_else(|| SOCKET.into(), PathBuf::from),
        }
    }

    /// Whether there is one on this host.
    pub(crate) fn is_here(&self) -> bool {
        self.socket.exists()
    }

    /// Asks, and asks again for so long when it is not there, or ends meanwhile: it knows what it was asked.
    pub(crate) fn ask(&self, ask: &Ask, patience: Duration) -> CliResult<Said> {
        let mut until = Instant::now() + patience;
        loop {
            let began = Instant::now();
            let why = match self.converse(ask, STAGE) {
                Ok(Said::Refused(why))
                    if why.code == Code::Lost && why.text.contains("ask again") =>
                {
                    io::Error::other(why.text)
                }
                Ok(said) => return Ok(said),
                Err(why) => why,
            };
            if began.elapsed() > PAUSE {
                // It was there: a new one may take as long again.
                until = Instant::now() + patience;
            }
            if Instant::now() >= until {
                return Err(self.unreachable(&why));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Asks once; for what may be done without an answer.
    pub(crate) fn ask_once(&self, ask: &Ask, patience: Duration) -> CliResult<Said> {
        let said = self.converse(ask, patience);
        said.map_err(|why| self.unreachable(&why))
    }

    fn unreachable(&self, why: &io::Error) -> CliError {
        let text = format!(
            "tarn's controller does not answer at {}: {why}; is `tarnd --controller` running on this host?",
            self.socket.display()
        );
        CliError::new(Exit::State, text)
    }

    fn converse(&self, ask: &Ask, patience: Duration) -> io::Result<Said> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
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
}
