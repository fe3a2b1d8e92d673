//! The end that asks: `tarn run`.

use crate::frames::{Pieces, frame, frames};
use crate::server::chain;
use crate::wire::control_client::ControlClient;
use crate::wire::frame::Kind;
use crate::wire::{Frame, Heard, Heartbeat, Hello};
use crate::{
    ControlError, QUEUE, RunKeys, TOLD_AHEAD, TOLD_AHEAD_BYTES, Timeouts, UNHEARD, VERSION, runtime,
};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

/// Between two attempts to open a session.
const AGAIN: Duration = Duration::from_millis(50);

/// A call that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The node is lost, and why it is held to be.
    #[error("the node is lost: {0}")]
    Lost(String),
    /// It is there, but did not answer in time.
    #[error("the node did not answer within {0:?}")]
    Late(Duration),
}

type Waiting = Mutex<BTreeMap<u64, SyncSender<Vec<u8>>>>;

/// What was told, and what of it the node has heard.
#[derive(Default)]
struct Ahead {
    told: u64,
    heard: u64,
    bytes_told: u64,
    bytes_heard: u64,
}

impl Ahead {
    fn has_room(&self, bytes: u64) -> bool {
        let (messages, ahead) = (self.told - self.heard, self.bytes_told - self.bytes_heard);
        messages == 0 || messages < TOLD_AHEAD as u64 && ahead + bytes <= TOLD_AHEAD_BYTES
    }
}

struct Shared {
    waiting: Waiting,
    ahead: Mutex<Ahead>,
    /// Something was heard, or the session is over.
    heard: Condvar,
    /// Why the session is over, once it is.
    over: OnceLock<String>,
    /// Becomes true then.
    ended: watch::Sender<bool>,
    /// Ends what is sent.
    hang_up: mpsc::Sender<()>,
}

impl Shared {
    /// Ends the session: nobody waits for an answer any more.
    fn end(&self, why: String) {
        let _ = self.over.set(why);
        self.ended.send_replace(true);
        // Once is enough.
        let _ = self.hang_up.try_send(());
        self.lock().clear();
        // Locked in between, so that nobody who has just looked begins to wait after this.
        drop(self.ahead());
        self.heard.notify_all();
    }

    fn ahead(&self) -> std::sync::MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the node says to have heard; false if that cannot be.
    fn note_heard(&self, messages: u64, bytes: u64) -> bool {
        let mut ahead = self.ahead();
        let makes_sense = (ahead.heard..=ahead.told).contains(&messages)
            && (ahead.bytes_heard..=ahead.bytes_told).contains(&bytes);
        if makes_sense {
            (ahead.heard, ahead.bytes_heard) = (messages, bytes);
            self.heard.notify_all();
        }
        makes_sense
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, SyncSender<Vec<u8>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> CallError {
        let why = self.over.get().cloned();
        CallError::Lost(why.unwrap_or_else(|| "the session is over".into()))
    }
}

/// A session with one node. Calls may come from any thread; each node has its own session, so one that hangs blocks nobody
/// else.
pub struct Session {
    shared: Arc<Shared>,
    outgoing: mpsc::Sender<Frame>,
    /// Held while something is told: what is told keeps its order.
    telling: Mutex<()>,
    next: AtomicU64,
    about: Vec<u8>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Session {
    /// Opens a session. `news` is called for what the node says unasked, and once with `None` when the session is over; on a
    /// thread of its own, in order.
    ///
    /// # Errors
    /// When nobody answers, the other end has other keys, or refuses.
    pub fn open(
        address: SocketAddr,
        keys: &RunKeys,
        timeouts: Timeouts,
        run: &str,
        node: &str,
        mut news: impl FnMut(Option<Vec<u8>>) + Send + 'static,
    ) -> Result<Self, ControlError> {
        let runtime = runtime()?;
        let hello = Hello {
            lowest: VERSION,
            highest: VERSION,
            run: run.into(),
            node: node.into(),
        };
        let opened = runtime.block_on(open(address, keys, timeouts, hello));
        let opened = opened.map_err(|failed| {
            let address = address.to_string();
            match failed {
                Failed::Refused(why) => ControlError::Refused { address, why },
                Failed::Unreachable(why) | Failed::Cut(why) => {
                    ControlError::Unreachable { address, why }
                }
            }
        });
        let Opened {
            incoming,
            outgoing,
            hang_up,
            about,
        } = opened?;
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            ahead: Mutex::default(),
            heard: Condvar::new(),
            over: OnceLock::new(),
            ended: watch::Sender::new(false),
            hang_up,
        });
        let (told, heard) = sync_channel(UNHEARD);
        let thread = std::thread::Builder::new().name("tarn-news".into());
        thread
            .spawn(move || {
                for said in heard {
                    news(Some(said));
                }
                news(None);
            })
            .map_err(|source| ControlError::System {
                what: "cannot start a thread".into(),
                source,
            })?;
        let reader = Arc::clone(&shared);
        let mut ended = shared.ended.subscribe();
        runtime.spawn(async move {
            tokio::select! {
                why = receive(incoming, &reader, &told, timeouts) => reader.end(why),
                // The node hears of it by the end of what is sent.
                _ = ended.wait_for(|over| *over) => {}
            }
            // Whoever hears of the end can ask why.
            drop(told);
        });
        runtime.spawn(keep_alive(outgoing.clone(), timeouts));
        Ok(Self {
            shared,
            outgoing,
            telling: Mutex::default(),
            next: AtomicU64::new(1),
            about,
            runtime: Some(runtime),
        })
    }

    /// What the node told of itself at the start.
    pub fn about(&self) -> &[u8] {
        &self.about
    }

    /// Asks, and waits for the answer: at most the time given, or as long as the node lives.
    ///
    /// # Errors
    /// When the node is lost or late. A late answer is thrown away.
    pub fn call(&self, request: Vec<u8>, timeouts: Option<Duration>) -> Result<Vec<u8>, CallError> {
        let (number, answer) = self.ask(request)?;
        let got = match timeouts {
            None => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeouts) => answer.recv_timeout(timeouts),
        };
        got.map_err(|e| {
            self.shared.lock().remove(&number);
            match (e, timeouts) {
                (RecvTimeoutError::Timeout, Some(timeouts)) => CallError::Late(timeouts),
                _ => self.shared.lost(),
            }
        })
    }

    fn ask(&self, request: Vec<u8>) -> Result<(u64, Receiver<Vec<u8>>), CallError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = sync_channel(1);
        self.shared.lock().insert(number, sender);
        // Whoever ends the session clears the list after that is known: nobody waits in it for ever.
        if self.shared.over.get().is_some() {
            self.shared.lock().remove(&number);
            return Err(self.shared.lost());
        }
        for frame in frames(Kind::Request, number, request) {
            if !self.send(frame) {
                return Err(self.shared.lost());
            }
        }
        Ok((number, answer))
    }

    /// Tells without an answer; what is told is heard in the order of telling. Waits only while the node has not yet heard much
    /// of what was told before.
    ///
    /// # Errors
    /// When the node is lost.
    pub fn tell(&self, said: Vec<u8>) -> Result<(), CallError> {
        let _in_order = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = said.len() as u64;
        let full = |ahead: &mut Ahead| self.over().is_none() && !ahead.has_room(bytes);
        let waited = self.shared.heard.wait_while(self.shared.ahead(), full);
        let number = {
            let mut ahead = waited.unwrap_or_else(PoisonError::into_inner);
            ahead.told += 1;
            ahead.bytes_told += bytes;
            ahead.told
        };
        let sent = self.over().is_none() && frames(Kind::Told, number, said).all(|f| self.send(f));
        sent.then_some(()).ok_or_else(|| self.shared.lost())
    }

    /// Waits for room in the queue, but not longer than the session lasts.
    fn send(&self, frame: Frame) -> bool {
        let frame = match self.outgoing.try_send(frame) {
            Err(TrySendError::Full(frame)) => frame,
            sent => return sent.is_ok(),
        };
        let mut ended = self.shared.ended.subscribe();
        self.runtime.as_ref().is_some_and(|runtime| {
            runtime.block_on(async {
                tokio::select! {
                    sent = self.outgoing.send(frame) => sent.is_ok(),
                    _ = ended.wait_for(|over| *over) => false,
                }
            })
        })
    }

    /// Ends the session: whoever waits in it gets an error. Does not wait.
    pub fn end(&self) {
        self.shared.end("it was closed by this end".into());
    }

    /// Why the session is over, if it is.
    pub fn over(&self) -> Option<&str> {
        self.shared.over.get().map(String::as_str)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

enum Failed {
    /// It will not be otherwise the next time.
    Unreachable(String),
    /// The connection ended before a word was said; strangers may have crowded it out.
    Cut(String),
    Refused(String),
}

/// A session that has begun.
struct Opened {
    incoming: Streaming<Frame>,
    outgoing: mpsc::Sender<Frame>,
    hang_up: mpsc::Sender<()>,
    about: Vec<u8>,
}

/// Tries to connect until somebody answers.
async fn open(
    address: SocketAddr,
    keys: &RunKeys,
    timeouts: Timeouts,
    hello: Hello,
) -> Result<Opened, Failed> {
    let mut last = "it is silent".to_owned();
    let opening = async {
        loop {
            match connect(address, keys, timeouts, hello.clone()).await {
                Err(Failed::Cut(why)) => last = why,
                other => return other,
            }
            sleep(AGAIN).await;
        }
    };
    let opened = timeout(timeouts.connect, opening).await;
    opened.unwrap_or_else(|_| {
        let tried = timeouts.connect;
        Err(Failed::Cut(format!("{last}; it was tried for {tried:?}")))
    })
}

/// What an error of a connection that was to be opened means.
fn not_opened(error: &(dyn std::error::Error + 'static)) -> Failed {
    let causes = std::iter::successors(Some(error), |e| e.source());
    let mut kinds = causes.filter_map(|e| e.downcast_ref::<io::Error>().map(io::Error::kind));
    let known = [
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::InvalidData,
        io::ErrorKind::TimedOut,
    ];
    match kinds.find(|kind| known.contains(kind)) {
        Some(io::ErrorKind::ConnectionRefused) => Failed::Unreachable(
            "nobody listens there: its tarnd has ended (connection refused)".into(),
        ),
        // TLS says it so.
        Some(io::ErrorKind::InvalidData) => Failed::Unreachable(format!(
            "it is not of this run: its certificate is another ({})",
            chain(error)
        )),
        Some(_) => Failed::Cut("no connection comes about".into()),
        None => Failed::Cut(format!("it closes the connection ({})", chain(error))),
    }
}

async fn connect(
    address: SocketAddr,
    keys: &RunKeys,
    timeouts: Timeouts,
    hello: Hello,
) -> Result<Opened, Failed> {
    let endpoint = Endpoint::from_shared(format!("https://{address}"))
        .and_then(|e| e.tls_config(keys.client()))
        .map_err(|e| Failed::Unreachable(chain(&e)))?
        .connect_timeout(timeouts.connect)
        .tcp_nodelay(true);
    let channel = endpoint.connect().await.map_err(|e| not_opened(&e))?;
    let (outgoing, queued) = mpsc::channel(QUEUE);
    let (hang_up, hung_up) = mpsc::channel(1);
    let queued = ReceiverStream::new(queued).map(Some);
    let until = queued.merge(ReceiverStream::new(hung_up).map(|()| None));
    let sent = tokio_stream::once(frame(Kind::Hello(hello))).chain(until.map_while(|f| f));
    let mut client = ControlClient::new(channel);
    let answered = client.session(sent).await;
    let mut incoming = answered.map_err(|e| not_opened(&e))?.into_inner();
    loop {
        let first = incoming.message().await.map_err(|e| not_opened(&e))?;
        match first.and_then(|f| f.kind) {
            Some(Kind::Heartbeat(_)) => {}
            Some(Kind::Welcome(welcome)) => {
                return Ok(Opened {
                    incoming,
                    outgoing,
                    hang_up,
                    about: welcome.about,
                });
            }
            Some(Kind::Refused(refused)) => return Err(Failed::Refused(refused.why)),
            _ => {
                return Err(Failed::Unreachable(
                    "it sent another message than its name".into(),
                ));
            }
        }
    }
}

async fn keep_alive(outgoing: mpsc::Sender<Frame>, timeouts: Timeouts) {
    let mut beat = interval(timeouts.heartbeat);
    loop {
        beat.tick().await;
        if outgoing
            .send(frame(Kind::Heartbeat(Heartbeat {})))
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Hands out what comes, until nothing comes any more; why that is so.
async fn receive(
    mut incoming: Streaming<Frame>,
    shared: &Shared,
    told: &SyncSender<Vec<u8>>,
    timeouts: Timeouts,
) -> String {
    let (mut answers, mut news) = (Pieces::default(), Pieces::default());
    loop {
        let kind = match timeout(timeouts.lost, incoming.message()).await {
            Err(_) => return silent(timeouts.lost),
            Ok(Err(e)) => return cut(&e),
            Ok(Ok(None)) => return "its tarnd has ended the session".into(),
            Ok(Ok(Some(frame))) => frame.kind,
        };
        match kind {
            Some(Kind::Heartbeat(_)) => {}
            Some(Kind::Heard(Heard { messages, bytes })) => {
                if !shared.note_heard(messages, bytes) {
                    return "it acknowledges messages that were never sent".into();
                }
            }
            Some(Kind::Answer(piece)) => {
                let number = piece.number;
                match answers.take(piece) {
                    Ok(None) => {}
                    Ok(Some(answer)) => {
                        // Nobody waits for an answer that came too late.
                        if let Some(waiting) = shared.lock().remove(&number) {
                            let _ = waiting.try_send(answer);
                        }
                    }
                    Err(why) => return why,
                }
            }
            Some(Kind::News(piece)) => match news.take(piece) {
                Ok(None) => {}
                Ok(Some(said)) => {
                    if told.try_send(said).is_err() {
                        return format!("{UNHEARD} messages of it wait to be read");
                    }
                }
                Err(why) => return why,
            },
            _ => return "it sent a message that is not valid here".into(),
        }
    }
}

fn silent(timeouts: Duration) -> String {
    format!(
        "nothing came from it for {} s: the node or its network is down, or its tarnd hangs",
        timeouts.as_secs_f64()
    )
}

/// What the end of a session by an error means.
fn cut(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(_) => "its tarnd has died, or the node has (connection closed)".into(),
        None => format!("it sent what is no message ({})", status.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handler, News, Server, Talk};

    struct Nobody;

    impl Handler for Nobody {
        fn opened(&self, _: &str, _: &str, _: News) -> Result<(Vec<u8>, Box<dyn Talk>), String> {
            panic!("it was opened")
        }
    }

    #[test]
    fn a_caller_of_another_version_is_refused_with_both_versions() {
        let keys = RunKeys::new().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::start(listener, &keys, Timeouts::default(), Arc::new(Nobody));
        let server = server.unwrap();
        let hello = Hello {
            lowest: VERSION + 1,
            highest: VERSION + 4,
            run: "r".into(),
            node: "n".into(),
        };
        let opening = connect(server.address(), &keys, Timeouts::default(), hello);
        match runtime().unwrap().block_on(opening) {
            Err(Failed::Refused(why)) => {
                assert!(why.contains("version 1") && why.contains("2 to 5"), "{why}")
            }
            _ => panic!("it was not refused"),
        }
    }
}
