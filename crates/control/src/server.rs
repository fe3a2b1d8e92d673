//! The end that answers: tarnd.

use crate::frames::{Pieces, frame, frames};
use crate::wire::control_server::{Control, ControlServer};
use crate::wire::frame::Kind;
use crate::wire::{Frame, Heartbeat, Hello, Refused, Welcome};
use crate::{CALLS_AT_ONCE, ControlError, Patience, QUEUE, RunKeys, VERSION, runtime};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Sessions at once: the run's, and one that takes its place.
const SESSIONS: usize = 8;

/// What answers.
pub trait Handler: Send + Sync + 'static {
    /// A client of this run has come and calls this node `node`; what it is told of the node at once. `news` reaches it until it goes.
    ///
    /// # Errors
    /// Why it is refused.
    fn opened(&self, run: &str, node: &str, news: News) -> Result<Vec<u8>, String>;

    /// Answers a request. May block; up to 256 are answered at once.
    fn call(&self, request: Vec<u8>) -> Vec<u8>;

    /// The client has gone, or has not been heard of for too long.
    fn closed(&self);
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
        patience: Patience,
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
            patience,
            sessions: Arc::new(Semaphore::new(SESSIONS)),
        };
        let mut builder = tonic::transport::Server::builder()
            .tls_config(keys.server())
            .map_err(|e| ControlError::Unreachable {
                address: address.to_string(),
                why: chain(&e),
            })?
            .tcp_nodelay(true);
        let guard = runtime.enter();
        let incoming = tokio::net::TcpListener::from_std(listener).map_err(system)?;
        drop(guard);
        let served = builder
            .add_service(ControlServer::new(service))
            .serve_with_incoming_shutdown(TcpListenerStream::new(incoming), async {
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
    patience: Patience,
    sessions: Arc<Semaphore>,
}

#[tonic::async_trait]
impl Control for Service {
    type SessionStream = ReceiverStream<Result<Frame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<Frame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let Ok(permit) = Arc::clone(&self.sessions).try_acquire_owned() else {
            return Err(Status::resource_exhausted("too many sessions"));
        };
        let (outgoing, answers) = mpsc::channel(QUEUE);
        let talk = Talk {
            handler: Arc::clone(&self.handler),
            patience: self.patience,
        };
        tokio::spawn(async move {
            let (frames, queued) = mpsc::channel(QUEUE);
            let pump = tokio::spawn(send_all(queued, outgoing, talk.patience));
            let _permit = permit;
            talk.run(request.into_inner(), frames).await;
            pump.abort();
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// Passes frames on; a heartbeat where there is none.
async fn send_all(
    mut queued: mpsc::Receiver<Frame>,
    outgoing: mpsc::Sender<Result<Frame, Status>>,
    patience: Patience,
) {
    let mut beat = interval(patience.heartbeat);
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
struct Talk {
    handler: Arc<dyn Handler>,
    patience: Patience,
}

impl Talk {
    async fn run(&self, mut incoming: Streaming<Frame>, outgoing: mpsc::Sender<Frame>) {
        let first = timeout(self.patience.connect, incoming.message()).await;
        let Ok(Ok(Some(Frame {
            kind: Some(Kind::Hello(hello)),
        }))) = first
        else {
            return;
        };
        match self.welcome(hello, &outgoing).await {
            Ok(about) => {
                let welcome = Welcome {
                    version: VERSION,
                    about,
                };
                if outgoing.send(frame(Kind::Welcome(welcome))).await.is_ok() {
                    self.answer_all(&mut incoming, &outgoing).await;
                }
                let handler = Arc::clone(&self.handler);
                // It fails only when the runtime ends.
                let _ = spawn_blocking(move || handler.closed()).await;
            }
            Err(why) => {
                let _ = outgoing.send(frame(Kind::Refused(Refused { why }))).await;
                // The client closes once it has read that.
                let _ = timeout(self.patience.connect, incoming.message()).await;
            }
        }
    }

    async fn welcome(
        &self,
        hello: Hello,
        outgoing: &mpsc::Sender<Frame>,
    ) -> Result<Vec<u8>, String> {
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

    async fn answer_all(&self, incoming: &mut Streaming<Frame>, outgoing: &mpsc::Sender<Frame>) {
        let calls = Arc::new(Semaphore::new(CALLS_AT_ONCE));
        let mut pieces = Pieces::default();
        loop {
            let Ok(Ok(Some(Frame { kind }))) =
                timeout(self.patience.lost, incoming.message()).await
            else {
                return;
            };
            let piece = match kind {
                Some(Kind::Request(piece)) => piece,
                Some(Kind::Heartbeat(_)) => continue,
                // What a client never says: the session is over.
                _ => return,
            };
            let number = piece.number;
            let request = match pieces.take(piece) {
                Ok(Some(request)) => request,
                Ok(None) => continue,
                Err(_) => return,
            };
            let Ok(permit) = Arc::clone(&calls).acquire_owned().await else {
                return;
            };
            let (handler, outgoing) = (Arc::clone(&self.handler), outgoing.clone());
            spawn_blocking(move || {
                let answer = handler.call(request);
                for frame in frames(Kind::Answer, number, answer) {
                    if outgoing.blocking_send(frame).is_err() {
                        return;
                    }
                }
                drop(permit);
            });
        }
    }
}
