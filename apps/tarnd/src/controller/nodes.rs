//! The controller's sessions with nodes: a thread that reads and one that writes for each, begun again when they end.

use super::{ControllerInput, OpenedNode, ReadyNode};
use crate::site::Secrets;
use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tarn_munge::{Munge, MungeSessionReader, MungeSessionWriter, open};
use tarn_proto::site::{
    Epoch, Greeting, HoldingsChunk, NodeOrder, NodeWelcome, NumberedOrder, OLDEST, Report, VERSION,
};

/// Seconds between tries to reach a node that does not answer; the last one until a job has the node.
const PAUSES: [u64; 6] = [1, 1, 2, 5, 10, 30];
/// How long a connection may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses of a node that are tried.
const MAX_ADDRESSES: usize = 8;
/// How long a node may take to report its holdings: workers of all its users look.
const INVENTORY: Duration = Duration::from_secs(300);
/// How often a node is asked for the power that it draws.
const LOOK: Duration = Duration::from_secs(30);
/// How long a node may be silent.
const SILENCE: Duration = Duration::from_secs(3 * Report::BEAT);

/// The sessions.
pub(super) struct NodeSessions {
    about: NodeSessionContext,
    /// Each node's thread tries to reach it at once when it gets this.
    known: BTreeMap<String, SyncSender<()>>,
    /// The session of each node that takes orders, and where its orders go.
    open: BTreeMap<String, (u64, Sender<NumberedOrder>)>,
    /// The nodes of those whose session began with the newest secrets.
    rekeyed: BTreeSet<String>,
}

/// The context that all sessions share.
#[derive(Clone)]
struct NodeSessionContext {
    epoch: Epoch,
    secrets: Arc<Mutex<SessionSecrets>>,
    munge: Munge,
    /// The user that nodes' tarnds run as, which is this one's.
    user: u32,
    port: u16,
    inputs: Sender<ControllerInput>,
}

/// The secrets that sessions begin with, and how often they have changed.
struct SessionSecrets {
    secrets: Secrets,
    changes: u64,
}

impl NodeSessions {
    pub(super) fn new(
        epoch: Epoch,
        (secrets, munge): (Secrets, Munge),
        port: u16,
        inputs: Sender<ControllerInput>,
    ) -> Self {
        Self {
            about: NodeSessionContext {
                epoch,
                secrets: Arc::new(Mutex::new(SessionSecrets {
                    secrets,
                    changes: 0,
                })),
                munge,
                user: rustix::process::geteuid().as_raw(),
                port,
                inputs,
            },
            known: BTreeMap::new(),
            open: BTreeMap::new(),
            rekeyed: BTreeSet::new(),
        }
    }

    /// All sessions begin again with these secrets; those that begin now do so at once.
    pub(super) fn rekey(&mut self, secrets: Secrets) {
        let mut kept = self.about.kept();
        kept.secrets = secrets;
        kept.changes += 1;
        drop(kept);
        self.rekeyed.clear();
        for (_, orders) in self.open.values_mut() {
            // The thread that writes them ends, and with that the session.
            *orders = channel().0;
        }
    }

    /// Whether a node's keys are wrapped with the newest secret: its session began with that.
    pub(super) fn is_rekeyed(&self, node: &str) -> bool {
        self.open.contains_key(node) && self.rekeyed.contains(node)
    }

    pub(super) fn secrets(&self) -> Secrets {
        self.about.kept().secrets.clone()
    }

    /// There is such a node: it is reached from now on, again and again.
    pub(super) fn know(&mut self, name: &str) {
        if self.known.len() >= tarn_site::MAX_NODES || self.known.contains_key(name) {
            return;
        }
        let (about, node) = (self.about.clone(), name.to_owned());
        let (hurry, hurried) = sync_channel(1);
        let thread = std::thread::Builder::new().name("node".into());
        match thread.spawn(move || about.keep(&node, &hurried)) {
            Ok(_) => drop(self.known.insert(name.to_owned(), hurry)),
            Err(e) => tracing::error!("node {name} cannot be reached: no thread for it: {e}"),
        }
    }

    /// A job has this node now: if it takes no orders, it is looked for at once, and then often again.
    pub(super) fn hurry(&self, name: &str) {
        if let Some(hurry) = self
            .known
            .get(name)
            .filter(|_| !self.open.contains_key(name))
        {
            // One that is to hurry already needs no more.
            let _ = hurry.try_send(());
        }
    }

    /// A node takes orders, in a session that began after so many changes of the secrets.
    pub(super) fn opened(
        &mut self,
        node: &str,
        (session, changes): (u64, u64),
        is_behind: bool,
        orders: Sender<NumberedOrder>,
    ) {
        let is_newest = changes == self.about.kept().changes;
        let orders = match is_newest {
            true => orders,
            // It is to begin again.
            false => channel().0,
        };
        match is_newest && !is_behind {
            true => self.rekeyed.insert(node.to_owned()),
            false => self.rekeyed.remove(node),
        };
        self.open.insert(node.to_owned(), (session, orders));
    }

    /// A session is over. Whether it counted.
    pub(super) fn closed(&mut self, node: &str, session: u64) -> bool {
        let counts = self.is_current(node, session);
        if counts {
            self.open.remove(node);
        }
        counts
    }

    pub(super) fn is_current(&self, node: &str, session: u64) -> bool {
        self.open.get(node).is_some_and(|(own, _)| *own == session)
    }

    /// Sends it to a node; a node whose session has just ended gets nothing, as its end is reported soon.
    pub(super) fn order(&self, node: &str, number: u64, order: NodeOrder) {
        if let Some((_, orders)) = self.open.get(node) {
            let _ = orders.send(NumberedOrder { number, order });
        }
    }
}

impl NodeSessionContext {
    fn kept(&self) -> MutexGuard<'_, SessionSecrets> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaches a node again and again, until nobody can hurry it any more.
    fn keep(&self, node: &str, hurried: &Receiver<()>) {
        let mut failed = 0;
        let mut reported = String::new();
        for session in 0.. {
            match self.session(node, session) {
                Ok(()) => {
                    failed = 0;
                    reported.clear();
                }
                Err(why) => {
                    let why = format!("{why:#}");
                    // A node that is down is reported once.
                    if why != reported {
                        tracing::warn!(node, "cannot be reached: {why}");
                        reported = why;
                    }
                    failed += 1;
                }
            }
            let pause = PAUSES[failed.min(PAUSES.len() - 1)];
            match hurried.recv_timeout(Duration::from_secs(pause)) {
                Ok(()) => failed = 0,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// One session, to its end. An error: it never began.
    fn session(&self, node: &str, session: u64) -> anyhow::Result<()> {
        let addresses = (node, self.port)
            .to_socket_addrs()
            .with_context(|| format!("the name {node} is not known"))?;
        let stream = connect_first(addresses)?;
        let (secrets, changes) = {
            let kept = self.kept();
            (kept.secrets.all(), kept.changes)
        };
        let (mut reader, mut writer) = open(stream, node, self.user, &secrets, &self.munge)?;
        writer.send(&Greeting {
            oldest: OLDEST,
            newest: VERSION,
            epoch: self.epoch,
            pieces: true,
        })?;
        let ready = self.receive_inventory(&mut reader)?;
        let (orders, queue) = channel();
        let closer = Arc::clone(reader.socket());
        // Before the controller learns of the session: one that cannot give orders has not begun.
        let thread = std::thread::Builder::new().name("orders".into());
        let writing = thread.spawn(move || {
            write(&mut writer, &queue);
            // The reading thread notices that.
            let _ = closer.shutdown(std::net::Shutdown::Both);
        })?;
        let opened = OpenedNode {
            node: node.to_owned(),
            session,
            changes,
            ready,
            orders,
        };
        let Some(open) = OpenNodeSession::begin(&self.inputs, opened) else {
            return Ok(());
        };
        tracing::info!(node, "takes orders");
        let why = self.read(node, session, &mut reader);
        tracing::warn!(node, "does not answer any more: {why:#}");
        drop(open);
        let _ = reader.socket().shutdown(std::net::Shutdown::Both);
        let _ = writing.join();
        Ok(())
    }

    /// A node's inventory, once it accepts this controller.
    fn receive_inventory(&self, reader: &mut MungeSessionReader) -> anyhow::Result<ReadyNode> {
        match reader.receive(INVENTORY)? {
            NodeWelcome::Ready {
                capacity,
                stores,
                mut holds,
                partial,
                pieces,
                jobs,
                is_behind,
                ..
            } => {
                // Of each user as much as a node reports of anybody.
                let mut is_last = !pieces;
                while !is_last {
                    let piece: HoldingsChunk = reader.receive(TIMEOUT)?;
                    holds.extend(piece.holds);
                    is_last = piece.is_last;
                }
                Ok(ReadyNode {
                    is_behind,
                    capacity,
                    stores,
                    holds,
                    partial,
                    jobs,
                })
            }
            NodeWelcome::Stale(epoch) => bail!(
                "it has had orders of controller number {epoch}, this is number {}: two controllers with different state folders?",
                self.epoch
            ),
            NodeWelcome::Version(oldest, newest) => bail!(
                "it speaks versions {oldest} to {newest}, this controller {OLDEST} to {VERSION}: update the older one"
            ),
        }
    }

    fn read(&self, node: &str, session: u64, reader: &mut MungeSessionReader) -> anyhow::Error {
        loop {
            let report: Report = match reader.receive(SILENCE) {
                Ok(report) => report,
                Err(e) => return e.into(),
            };
            let number = match &report {
                Report::Alive => continue,
                Report::Worked { number, .. }
                | Report::Serving { number, .. }
                | Report::Capacity { number, .. } => *number,
            };
            let reported = ControllerInput::Reported {
                node: node.to_owned(),
                session,
                number,
                report,
            };
            if self.inputs.send(reported).is_err() {
                return anyhow::anyhow!("the controller ends");
            }
        }
    }
}

/// A session that the controller knows of: it learns of its end when this is dropped, however that comes about.
struct OpenNodeSession<'a> {
    inputs: &'a Sender<ControllerInput>,
    node: String,
    session: u64,
}

impl<'a> OpenNodeSession<'a> {
    /// Tells the controller. `None` when it has ended.
    fn begin(inputs: &'a Sender<ControllerInput>, opened: OpenedNode) -> Option<Self> {
        let open = (opened.node.clone(), opened.session);
        let sent = inputs.send(ControllerInput::Opened(Box::new(opened)));
        sent.ok().map(|()| Self {
            inputs,
            node: open.0,
            session: open.1,
        })
    }
}

impl Drop for OpenNodeSession<'_> {
    fn drop(&mut self) {
        let closed = ControllerInput::Closed {
            node: std::mem::take(&mut self.node),
            session: self.session,
        };
        // The send fails if the controller has ended.
        let _ = self.inputs.send(closed);
    }
}

/// Writes orders until the session is forgotten or over; at times it asks for the power that the node draws, which is no order of
/// the core's.
fn write(writer: &mut MungeSessionWriter, queue: &Receiver<NumberedOrder>) {
    let mut looked: Option<Instant> = None;
    loop {
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            let look = NumberedOrder {
                number: 0,
                order: NodeOrder::Look,
            };
            if writer.send(&look).is_err() {
                return;
            }
        }
        match queue.recv_timeout(Duration::from_secs(Report::BEAT)) {
            Ok(command) => {
                if writer.send(&command).is_err() {
                    return;
                }
            }
            // So that the node, too, notices a controller that is gone.
            Err(RecvTimeoutError::Timeout) => {
                let beat = NumberedOrder {
                    number: 0,
                    order: NodeOrder::Beat,
                };
                if writer.send(&beat).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// A connection to the first of a node's addresses that answers: its name may have one of IPv6 before the one where tarnd listens.
///
/// # Errors
/// Why the last one did not, when none did.
fn connect_first(addresses: impl Iterator<Item = SocketAddr>) -> anyhow::Result<TcpStream> {
    let mut why = anyhow::anyhow!("it has no address");
    for address in addresses.take(MAX_ADDRESSES) {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(e) => {
                why = anyhow::Error::from(e)
                    .context(format!("{address}: is `tarnd --site` running there?"));
            }
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use tarn_proto::site::StoreCapacity;

    fn opened(session: u64) -> OpenedNode {
        OpenedNode {
            node: "n1".into(),
            session,
            changes: 0,
            ready: ReadyNode {
                is_behind: false,
                capacity: StoreCapacity {
                    root: "/".into(),
                    bytes: 0,
                    free: 0,
                    persistent: true,
                },
                stores: Vec::new(),
                holds: Vec::new(),
                partial: Vec::new(),
                jobs: Vec::new(),
            },
            orders: channel().0,
        }
    }

    #[test]
    fn a_session_that_was_opened_is_closed_however_it_ends() {
        let (inputs, received) = channel();
        let ends: [fn(OpenNodeSession<'_>); 2] =
            [|open| drop(open), |_open| panic!("while it reads")];
        for (end, session) in ends.into_iter().zip(3..) {
            let open = OpenNodeSession::begin(&inputs, opened(session)).unwrap();
            let input = received.try_recv();
            assert!(matches!(input, Ok(ControllerInput::Opened(o)) if o.session == session));
            assert!(received.try_recv().is_err());
            let ended = std::panic::AssertUnwindSafe(|| end(open));
            let _ = std::panic::catch_unwind(ended);
            let input = received.try_recv();
            assert!(
                matches!(input, Ok(ControllerInput::Closed { session: s, ref node }) if s == session && node == "n1")
            );
        }
        drop(received);
        assert!(OpenNodeSession::begin(&inputs, opened(5)).is_none());
    }

    #[test]
    fn a_node_is_reached_by_the_first_of_its_addresses_that_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let answers = listener.local_addr().unwrap();
        let closed = {
            let closed = TcpListener::bind("127.0.0.1:0").unwrap();
            closed.local_addr().unwrap()
        };
        let stream = connect_first([closed, answers].into_iter()).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), answers);
        let why = connect_first([closed].into_iter()).unwrap_err();
        assert!(format!("{why:#}").contains(&closed.to_string()), "{why:#}");
        let why = connect_first(std::iter::empty()).unwrap_err();
        assert!(why.to_string().contains("no address"));
    }
}
