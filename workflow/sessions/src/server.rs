//! The end that answers: tarnd.

use crate::frames::{Pieces, frame, frames};
use crate::incoming::{self, Place};
use crate::wire::control_server::{Control, ControlServer};
use crate::wire::frame::Kind;
use crate::wire::{Frame, Heard, Heartbeat, Hello, Refused, Welcome};
use crate::{CALLS_AT_ONCE, ControlError, QUEUE, RunKeys, TOLD_AHEAD, Timeouts, VERSION, runtime};
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TlsConnectInfo;
use tonic::{Request, Response, Status, Streaming};

/// Sessions at once: the run's, and one that takes its place.
const SESSIONS: usize = 8;

/// Who takes sessions.
pub trait Handler: Send + Sync + 'static {
    /// A client of this run has come and calls this node `node`: what it is told of the node at once, and who talks with it.
    /// `news` reaches it until it goes. A session that it takes the place of is over only after this, and before anything is said
    /// to the new one.
    ///
    /// # Errors
    /// Why it is refused; a session that there is already goes on.
    fn opened(&self, run: &str, node: &str, news: News)
    -> Result<(Vec<u8>, Box<dyn Talk>), String>;
}

/// One session. Dropped when it is over: the client has gone, has not been heard of for too long, or another session has taken its
/// place; and no call is being answered any more. One that panics ends its session.
pub trait Talk: Send + Sync + 'static {
    /// Answers a request. May block; up to 256 are answered at once.
    fn call(&self, request: Vec<u8>) -> Vec<u8>;

    /// Takes what the client tells, one after the other, in order. May block: that holds up nobody but who tells.
    fn told(&self, said: Vec<u8>);
}

/// Says what happened without having been asked.
#[derive(Clone)]
pub struct News(mpsc::Sender<Frame>);

impl News {
    /// Sends; blocks while the client is slower than what happens. False if it has gone. Not to be called by threads of a runtime.
    pub fn send(&self, content: Vec<u8>) -> bool {
        frames(Kind::News, 0, content).all(|f| self.0.blocking_send(f).is_ok())
    }
}

/// A server of sessions; ends when it is dropped.
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Server {
    /// Begins to answer on a listener to those who have the keys.
    ///
    /// # Errors
    /// When the listener or the keys cannot be used.
    pub fn start(
        listener: TcpListener,
        keys: &RunKeys,
        timeouts: Timeouts,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, ControlError> {
        let system = |source| ControlError::System {
            what: "cannot listen".into(),
            source,
        };
        listener.set_nonblocking(true).map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        let runtime = runtime()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let service = Service {
            handler,
            timeouts,
            sessions: Arc::new(Semaphore::new(SESSIONS)),
            current: Arc::default(),
        };
        let mut builder = tonic::transport::Server::builder()
            .tls_config(keys.server())
            .map_err(|e| ControlError::Unreachable {
                address: address.to_string(),
                why: chain(&e),
            })?;
        let guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(system)?;
        let incoming = incoming::accept(listener, timeouts.connect);
        drop(guard);
        let served = builder
            .add_service(ControlServer::new(service))
            .serve_with_incoming_shutdown(incoming, async {
                // It is dropped when the server is: that is the same word.
                let _ = stopped.await;
            });
        runtime.spawn(served);
        Ok(Self {
            address,
            stop: Some(stop),
            runtime: Some(runtime),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(runtime) = self.runtime.take() {
            // A handler that blocks does not hold up the end.
            runtime.shutdown_background();
        }
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

struct Service {
    handler: Arc<dyn Handler>,
    timeouts: Timeouts,
    sessions: Arc<Semaphore>,
    current: Arc<tokio::sync::Mutex<Option<Current>>>,
}

/// The session that there is.
struct Current {
    /// Ends it, when it is dropped.
    end: Option<oneshot::Sender<()>>,
    /// Closed when nothing of it is left.
    gone: mpsc::Receiver<()>,
}

/// Who talks, and a mark of being there.
struct Present {
    talk: Box<dyn Talk>,
    /// Dropped after `talk`.
    _there: mpsc::Sender<()>,
}

#[tonic::async_trait]
impl Control for Service {
    type SessionStream = ReceiverStream<Result<Frame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<Frame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        // A request comes through TLS: whoever makes it has the run's keys.
        if let Some(info) = request.extensions().get::<TlsConnectInfo<Place>>() {
            info.get_ref().prove();
        }
        let Ok(permit) = Arc::clone(&self.sessions).try_acquire_owned() else {
            return Err(Status::resource_exhausted("too many sessions"));
        };
        let (outgoing, answers) = mpsc::channel(QUEUE);
        let serving = Serving {
            handler: Arc::clone(&self.handler),
            timeouts: self.timeouts,
            current: Arc::clone(&self.current),
        };
        tokio::spawn(async move {
            let (frames, queued) = mpsc::channel(QUEUE);
            let pump = tokio::spawn(send_all(queued, outgoing, serving.timeouts));
            let _permit = permit;
            serving.run(request.into_inner(), frames).await;
            pump.abort();
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// Passes frames on; a heartbeat where there is none.
async fn send_all(
    mut queued: mpsc::Receiver<Frame>,
    outgoing: mpsc::Sender<Result<Frame, Status>>,
    timeouts: Timeouts,
) {
    let mut beat = interval(timeouts.heartbeat);
    loop {
        let next = tokio::select! {
            frame = queued.recv() => match frame {
                Some(frame) => frame,
                None => return,
            },
            _ = beat.tick() => frame(Kind::Heartbeat(Heartbeat {})),
        };
        if outgoing.send(Ok(next)).await.is_err() {
            return;
        }
    }
}

/// One session.
struct Serving {
    handler: Arc<dyn Handler>,
    timeouts: Timeouts,
    current: Arc<tokio::sync::Mutex<Option<Current>>>,
}

impl Serving {
    async fn run(&self, mut incoming: Streaming<Frame>, outgoing: mpsc::Sender<Frame>) {
        let first = timeout(self.timeouts.connect, incoming.message()).await;
        let Ok(Ok(Some(Frame {
            kind: Some(Kind::Hello(hello)),
        }))) = first
        else {
            return;
        };
        let welcomed = match self.welcome(hello, &outgoing).await {
            Ok((about, talk)) => self.take_place(talk).await.map(|held| (about, held)),
            Err(why) => Err(why),
        };
        match welcomed {
            Ok((about, (present, ended))) => {
                let welcome = Welcome {
                    version: VERSION,
                    about,
                };
                if outgoing.send(frame(Kind::Welcome(welcome))).await.is_ok() {
                    talk_all(present, ended, &mut incoming, &outgoing, self.timeouts).await;
                }
            }
            Err(why) => {
                let _ = outgoing.send(frame(Kind::Refused(Refused { why }))).await;
                // The client closes once it has read that.
                let _ = timeout(self.timeouts.connect, incoming.message()).await;
            }
        }
    }

    async fn welcome(
        &self,
        hello: Hello,
        outgoing: &mpsc::Sender<Frame>,
    ) -> Result<(Vec<u8>, Box<dyn Talk>), String> {
        if !(hello.lowest..=hello.highest).contains(&VERSION) {
            return Err(format!(
                "it speaks version {VERSION} of the control protocol, the caller {} to {}; use the same release of tarn on all nodes",
                hello.lowest, hello.highest
            ));
        }
        let (handler, news) = (Arc::clone(&self.handler), News(outgoing.clone()));
        let opened = spawn_blocking(move || handler.opened(&hello.run, &hello.node, news)).await;
        opened.unwrap_or_else(|e| Err(format!("it failed to open the session: {e}")))
    }

    /// Ends the session that there is, and becomes it; also what tells of its own end.
    async fn take_place(
        &self,
        talk: Box<dyn Talk>,
    ) -> Result<(Arc<Present>, oneshot::Receiver<()>), String> {
        let mut current = self.current.lock().await;
        if let Some(old) = &mut *current {
            drop(old.end.take());
            // The caller waits for its welcome as long as for a connection.
            let timeouts = self.timeouts.connect / 2;
            if timeout(timeouts, old.gone.recv()).await.is_err() {
                return Err(format!(
                    "the session before this one does not end: what it asked for is still being done after {timeouts:?}; try again"
                ));
            }
        }
        let (end, ended) = oneshot::channel();
        let (_there, gone) = mpsc::channel(1);
        *current = Some(Current {
            end: Some(end),
            gone,
        });
        Ok((Arc::new(Present { talk, _there }), ended))
    }
}

/// Hears and answers until the session is over.
async fn talk_all(
    present: Arc<Present>,
    mut ended: oneshot::Receiver<()>,
    incoming: &mut Streaming<Frame>,
    outgoing: &mpsc::Sender<Frame>,
    timeouts: Timeouts,
) {
    let calls = Arc::new(Semaphore::new(CALLS_AT_ONCE));
    let broken = Arc::new(Notify::new());
    let (telling, told) = mpsc::channel(TOLD_AHEAD);
    let (over, is_over) = watch::channel(false);
    let hearing = Hearing {
        present: Arc::clone(&present),
        outgoing: outgoing.clone(),
        broken: Arc::clone(&broken),
        is_over,
    };
    spawn_blocking(move || hearing.hear(told));
    let (mut requests, mut said) = (Pieces::default(), Pieces::default());
    loop {
        let next = tokio::select! {
            next = timeout(timeouts.lost, incoming.message()) => next,
            _ = &mut ended => break,
            () = broken.notified() => break,
        };
        let Ok(Ok(Some(Frame { kind }))) = next else {
            break;
        };
        match kind {
            Some(Kind::Heartbeat(_)) => {}
            Some(Kind::Told(piece)) => match said.take(piece) {
                Ok(None) => {}
                Ok(Some(whole)) => {
                    // A client that does not wait to be heard is none.
                    if telling.try_send(whole).is_err() {
                        break;
                    }
                }
                Err(_) => break,
            },
            Some(Kind::Request(piece)) => {
                let number = piece.number;
                let request = match requests.take(piece) {
                    Ok(None) => continue,
                    Ok(Some(request)) => request,
                    Err(_) => break,
                };
                let permit = tokio::select! {
                    permit = Arc::clone(&calls).acquire_owned() => permit,
                    _ = &mut ended => break,
                    () = broken.notified() => break,
                };
                let answering = Answering {
                    present: Arc::clone(&present),
                    outgoing: outgoing.clone(),
                    broken: Arc::clone(&broken),
                };
                spawn_blocking(move || {
                    answering.answer(number, request);
                    drop(permit);
                });
            }
            // What a client never says.
            _ => break,
        }
    }
    over.send_replace(true);
    // Who talks may take its time to go.
    spawn_blocking(move || drop(present));
}

/// One request being answered.
struct Answering {
    present: Arc<Present>,
    outgoing: mpsc::Sender<Frame>,
    broken: Arc<Notify>,
}

impl Answering {
    fn answer(&self, number: u64, request: Vec<u8>) {
        let talk = &self.present.talk;
        match catch_unwind(AssertUnwindSafe(|| talk.call(request))) {
            Ok(answer) => {
                for frame in frames(Kind::Answer, number, answer) {
                    if self.outgoing.blocking_send(frame).is_err() {
                        return;
                    }
                }
            }
            Err(_) => self.broken.notify_one(),
        }
    }
}

/// What is told being heard.
struct Hearing {
    present: Arc<Present>,
    outgoing: mpsc::Sender<Frame>,
    broken: Arc<Notify>,
    is_over: watch::Receiver<bool>,
}

impl Hearing {
    fn hear(self, mut told: mpsc::Receiver<Vec<u8>>) {
        let mut heard = Heard::default();
        while let Some(said) = told.blocking_recv() {
            // What was told before the end and not heard is not heard any more.
            if *self.is_over.borrow() {
                return;
            }
            heard.messages += 1;
            heard.bytes += said.len() as u64;
            let talk = &self.present.talk;
            if catch_unwind(AssertUnwindSafe(|| talk.told(said))).is_err() {
                return self.broken.notify_one();
            }
            if self
                .outgoing
                .blocking_send(frame(Kind::Heard(heard)))
                .is_err()
            {
                return;
            }
        }
    }
}
