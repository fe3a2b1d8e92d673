//! Who asks: Slurm's scripts and users, at a unix socket. A thread for each; most wait for a stage of their job.

use super::Input;
use crate::Fault;
use anyhow::Context;
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, sync_channel};
use std::time::Duration;
use tarn_base::codes::Exit;
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Ask, Said, decode, encode};
use tarn_sys::fdpass::peer_groups;

/// Who asks at a time. Of these, some are for users alone or for Slurm alone, so that neither shuts the other out.
const MAX_CLIENTS: usize = 4096;
/// Users at a time that are not Slurm.
const MAX_USERS: usize = 256;
/// Bytes of a question: a script's lines, read, are larger than they were.
const MAX_ASK: usize = 1 << 20;
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether a client that waits is still there.
const LOOK: Duration = Duration::from_secs(1);

/// Slurm's user, and where what is asked goes.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    pub(super) slurm: u32,
    pub(super) inputs: Sender<Input>,
}

/// Serves at a path until the program ends.
pub(super) fn serve(path: &Path, desk: Desk) -> Result<(), Fault> {
    let fault = |e: anyhow::Error| Fault::new(Exit::State, e);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))
            .map_err(fault)?;
    }
    // The state folder's lock says that no other controller serves here.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            let text = format!("cannot remove the socket {}", path.display());
            return Err(fault(anyhow::Error::from(e).context(text)));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path)
        .with_context(|| format!("cannot listen at {}", path.display()))
        .map_err(fault)?;
    // The kernel says who asks; what they may is decided then.
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(path, open).map_err(|e| fault(e.into()))?;
    let counts = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let accept = move || {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => {
                    tracing::warn!("nobody can be accepted now: {e}");
                    std::thread::sleep(Duration::from_millis(200));
                    continue;
                }
            };
            admit(stream, &desk, &counts);
        }
    };
    let thread = std::thread::Builder::new().name("accept".into());
    thread
        .spawn(accept)
        .context("cannot start a thread")
        .map_err(fault)?;
    Ok(())
}

/// Of Slurm and root, and of users.
type Counts = (AtomicUsize, AtomicUsize);

/// One of those that ask, given back at the end, in whatever way that comes.
struct Place(Arc<Counts>, bool);

impl Place {
    fn take(counts: &Arc<Counts>, trusted: bool) -> Self {
        let place = Self(Arc::clone(counts), trusted);
        place.count().fetch_add(1, Ordering::Relaxed);
        place
    }

    fn count(&self) -> &AtomicUsize {
        if self.1 { &self.0.0 } else { &self.0.1 }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count().fetch_sub(1, Ordering::Relaxed);
    }
}

fn admit(stream: UnixStream, desk: &Desk, counts: &Arc<Counts>) {
    let Ok(peer) = sockopt::socket_peercred(&stream) else {
        return;
    };
    let user = peer.uid.as_raw();
    let trusted = user == 0 || user == desk.slurm;
    let count = if trusted { &counts.0 } else { &counts.1 };
    let max = if trusted { MAX_CLIENTS } else { MAX_USERS };
    if count.load(Ordering::Relaxed) >= max {
        let text = "too many ask at a time: try again in a moment";
        let _ = say(&stream, &Said::Refused(Refusal::new(Code::Busy, text)));
        return;
    }
    let place = Place::take(counts, trusted);
    let desk = desk.clone();
    let group = peer.gid.as_raw();
    let talk = move || {
        let _place = place;
        let _ = converse(&stream, &desk, (user, group), trusted);
    };
    let thread = std::thread::Builder::new().name("client".into());
    if let Err(e) = thread.spawn(talk) {
        tracing::warn!("a client cannot be served: {e}");
    }
}

/// One question and its answer.
fn converse(
    stream: &UnixStream,
    desk: &Desk,
    (user, group): (u32, u32),
    trusted: bool,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let ask = match hear(stream)? {
        Ok(ask) => ask,
        Err(text) => return say(stream, &Said::Refused(Refusal::new(Code::Invalid, text))),
    };
    let mut groups = peer_groups(stream)?;
    groups.push(group);
    let (reply, answer) = sync_channel(1);
    let asked = Input::Asked {
        user,
        groups,
        trusted,
        ask,
        reply,
    };
    if desk.inputs.send(asked).is_err() {
        return Ok(());
    }
    stream.set_read_timeout(Some(Duration::from_millis(1)))?;
    loop {
        match answer.recv_timeout(LOOK) {
            Ok(said) => return say(stream, &said),
            // Another asks about the same job now, or the controller ends.
            Err(RecvTimeoutError::Disconnected) => {
                let text = "somebody else waits for this job's stage now, or the controller ends: ask again";
                return say(stream, &Said::Refused(Refusal::new(Code::Lost, text)));
            }
            Err(RecvTimeoutError::Timeout) => {
                // A client that has gone is not waited for; its job's stage goes on.
                let gone = matches!((&*stream).read(&mut [0]), Ok(0));
                if gone {
                    return Ok(());
                }
            }
        }
    }
}

fn hear(mut stream: &UnixStream) -> io::Result<Result<Ask, String>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_ASK {
        return Ok(Err(format!("a question of more than {MAX_ASK} bytes")));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(decode(&body).map_err(|e| e.to_string()))
}

fn say(mut stream: &UnixStream, said: &Said) -> io::Result<()> {
    let frame = encode(said).map_err(io::Error::other)?;
    stream.write_all(&frame)
}
