//! Connections to the control port. Until one has proven itself it is a *stranger*: there are few places for those, the newest
//! takes that of an older one when all are taken, and none keeps it for long.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tarn_types::strangers::sent_away;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Sleep, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Connections at one time that have not proven who they are.
const STRANGERS: usize = 64;
/// A pause after accepting has failed, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts, for as long as somebody takes what comes. A stranger has `timeouts` (a duration) for TLS and its first request.
pub(crate) fn accept(
    listener: TcpListener,
    timeouts: Duration,
) -> ReceiverStream<io::Result<Socket>> {
    let (given, taken) = mpsc::channel(1);
    tokio::spawn(async move {
        let pool = Arc::new(Mutex::default());
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = given.closed() => return,
            };
            let Ok((stream, from)) = accepted else {
                sleep(PAUSE).await;
                continue;
            };
            // Without it frames are only sent later.
            let _ = stream.set_nodelay(true);
            let socket = Socket::new(stream, from.ip(), &pool, timeouts);
            if given.send(Ok(socket)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(taken)
}

/// Strangers by number, the oldest first: where they come from, and what ends them when it is dropped.
#[derive(Default)]
struct Pool {
    next: u64,
    strangers: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

/// A connection's place among the strangers.
#[derive(Clone)]
pub(crate) struct Place {
    pool: Arc<Mutex<Pool>>,
    number: u64,
}

impl Place {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is no stranger any more.
    pub(crate) fn prove(&self) {
        if let Some((_, end)) = self.pool().strangers.remove(&self.number) {
            // It may have gone meanwhile.
            let _ = end.send(());
        }
    }
}

/// A connection.
pub(crate) struct Socket {
    stream: TcpStream,
    place: Place,
    stranger: Option<PendingConnection>,
}

struct PendingConnection {
    /// Says `Ok` when it has proven itself, an error when it has to go.
    end: oneshot::Receiver<()>,
    until: Pin<Box<Sleep>>,
}

impl Socket {
    fn new(stream: TcpStream, from: IpAddr, pool: &Arc<Mutex<Pool>>, timeouts: Duration) -> Self {
        let (ends, end) = oneshot::channel();
        let mut place = Place {
            pool: Arc::clone(pool),
            number: 0,
        };
        let number = {
            let mut pool = place.pool();
            if pool.strangers.len() >= STRANGERS {
                let all = pool.strangers.iter();
                let oldest = sent_away(all.map(|(number, (from, _))| (*number, *from)));
                oldest.and_then(|number| pool.strangers.remove(&number));
            }
            let number = pool.next;
            pool.next += 1;
            pool.strangers.insert(number, (from, ends));
            number
        };
        place.number = number;
        let until = Box::pin(sleep(timeouts));
        Self {
            stream,
            place,
            stranger: Some(PendingConnection { end, until }),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.place.pool().strangers.remove(&self.place.number);
    }
}

impl Connected for Socket {
    type ConnectInfo = Place;

    fn connect_info(&self) -> Place {
        self.place.clone()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(stranger) = &mut this.stranger {
            match Pin::new(&mut stranger.end).poll(context) {
                Poll::Ready(Ok(())) => this.stranger = None,
                Poll::Ready(Err(_)) => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
                Poll::Pending if stranger.until.as_mut().poll(context).is_ready() => {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending => {}
            }
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
