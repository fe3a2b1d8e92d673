//! One thread has the node's world: it performs commands, answers requests, and reports events.

use super::remote_tiers::RemoteTiers;
use super::replicas::Replicas;
use super::step_inbox::OpenInbox;
use super::step_sender::StepSender;
use anyhow::anyhow;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_node::{Config, Local, Waker};
use tarn_ports::{CapabilityError, NodeWorld, Progress, World, WorldError};
use tarn_proto::node::{self as proto, NodeCommand, NodeReply, NodeRequest, encode};
use tarn_sessions::NotificationSender;
use tarn_types::event::{AttemptOutcome, Event};
use tarn_types::id::NodeId;
use tarn_types::nodes::AttemptId;

/// Commands and requests that wait for the thread; more waits at the sender.
const WAITING: usize = 1024;
/// Of that, so much is done before the world is looked at again.
const TURN: usize = 64;
/// Between two reports of progress, and two checks for it.
const LOOK: Duration = Duration::from_secs(1);
/// The message about a panic.
const BUG: &str =
    "an error inside tarnd; please report it with the lines above on its standard error";

/// Something for the thread.
enum DriverInput {
    Command(NodeCommand),
    Call(NodeRequest, SyncSender<NodeReply>),
    /// A message of another node about an attempt.
    Step(NodeId, AttemptId, Vec<u8>),
    /// A message about an attempt was not given to another node, and why.
    Undelivered(NodeId, AttemptId, String),
    /// Nothing works here any more, and why.
    Broken(String),
    /// The session is over; a flag marks that as well, which passes the queued work.
    End,
}

/// The thread, as others see it.
pub(super) struct Driver {
    give: Give,
    ends: Arc<AtomicBool>,
    kept: PreservedFolders,
    /// Says something when the world is gone.
    gone: Mutex<Receiver<()>>,
}

/// Gives the thread something.
#[derive(Clone)]
struct Give {
    work: SyncSender<DriverInput>,
    waker: Waker,
}

impl Give {
    /// Waits while much waits for the thread. False when it is gone, which it is only after a command to end.
    fn give(&self, work: DriverInput) -> bool {
        let given = self.work.send(work).is_ok();
        if given {
            self.waker.now();
        }
        given
    }
}

/// Folders that are kept, whatever becomes of the run; known when the world is gone.
type PreservedFolders = Arc<Mutex<BTreeSet<PathBuf>>>;

/// Sends a notification; false if nobody receives it any more.
pub(super) fn send_notification(
    notifications: &NotificationSender,
    what: proto::NodeNotification,
) -> bool {
    match encode(what) {
        Ok(bytes) => notifications.send(bytes),
        Err(e) => {
            tracing::error!("news are not sent: {e}");
            true
        }
    }
}

impl Driver {
    /// Makes the world, and returns why steps of several nodes cannot run in it, if they cannot.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn start(
        config: Config,
        notifications: NotificationSender,
        replicas: Arc<Replicas>,
        step_sender: Arc<StepSender>,
        remote_tiers: Arc<RemoteTiers>,
    ) -> anyhow::Result<(Self, NodeReply)> {
        let (work, waiting) = sync_channel(WAITING);
        let (made, born) = channel();
        let (alive, gone) = channel();
        let (ends, kept) = (Arc::<AtomicBool>::default(), PreservedFolders::default());
        let (its_end, keeps, its_work) = (Arc::clone(&ends), Arc::clone(&kept), work.clone());
        let drive = move || {
            // Dropped last, however it ends.
            let _alive: std::sync::mpsc::Sender<()> = alive;
            let world = match catch_unwind(AssertUnwindSafe(|| Local::new(config))) {
                Ok(Ok(world)) => world,
                Ok(Err(e)) => return drop(made.send(Err(anyhow::Error::from(e)))),
                Err(_) => return drop(made.send(Err(anyhow!(BUG)))),
            };
            let able = NodeReply::Opened {
                several: as_text(world.multi_node()),
                shared: as_text(world.one_namespace()),
                images: as_text(world.images()),
            };
            remote_tiers.watched_by(&world);
            let give = Give {
                work: its_work,
                waker: world.waker(),
            };
            let inbox = receive_step_messages(&give, &step_sender, &replicas);
            let _ = made.send(Ok((world.waker(), able)));
            let driving = Driving {
                progress: world.progress(),
                world: Some(Box::new(world)),
                waiting,
                ends: its_end,
                keeps,
                notifications,
                replicas,
                inbox,
                step_sender,
                remote_tiers,
                is_progress_reported: false,
                looked: Instant::now(),
            };
            driving.run();
        };
        let thread = std::thread::Builder::new().name("tarn-world".into());
        let started = thread.spawn(drive);
        started.map_err(|e| anyhow!("cannot start a thread: {e}"))?;
        let (waker, able) = born.recv().map_err(|_| anyhow!(BUG))??;
        let driver = Self {
            give: Give { work, waker },
            ends,
            kept,
            gone: Mutex::new(gone),
        };
        Ok((driver, able))
    }

    /// Passes commands on; waits while there are many.
    pub(super) fn enqueue_command(&self, command: NodeCommand) {
        self.give.give(DriverInput::Command(command));
    }

    /// Ends the world, though the session continues.
    pub(super) fn break_off(&self, why: String) {
        self.give.give(DriverInput::Broken(why));
    }

    /// Asks, and waits for the answer.
    pub(super) fn call(&self, call: NodeRequest) -> NodeReply {
        let (answer, answered) = sync_channel(1);
        self.give.give(DriverInput::Call(call, answer));
        let failed = |_| NodeReply::Failed("the world of this node is gone".into());
        answered.recv().unwrap_or_else(failed)
    }

    /// The folders that are kept, once the world is gone.
    pub(super) fn kept(&self) -> BTreeSet<PathBuf> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone()
    }

    /// Ends the world: its steps are killed, its transfers given up. False if that is not done within `timeout`.
    pub(super) fn end(&self, timeout: Duration) -> bool {
        self.ends.store(true, Ordering::Relaxed);
        // If the queue is full, the thread is not waiting for more.
        let _ = self.give.work.try_send(DriverInput::End);
        self.give.waker.now();
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Messages of other nodes about steps, and those that could not be given to them, are work for the thread from now on.
fn receive_step_messages(give: &Give, step_sender: &StepSender, replicas: &Replicas) -> OpenInbox {
    let (received, undelivered) = (give.clone(), give.clone());
    step_sender.watched_by(Box::new(move |to, step, why| {
        undelivered.give(DriverInput::Undelivered(to, step, why));
    }));
    let receive = move |from, step, message| received.give(DriverInput::Step(from, step, message));
    replicas.inbox.open(receive)
}

struct Driving {
    keeps: PreservedFolders,
    /// None once the run has left it.
    world: Option<Box<Local>>,
    waiting: Receiver<DriverInput>,
    ends: Arc<AtomicBool>,
    notifications: NotificationSender,
    replicas: Arc<Replicas>,
    inbox: OpenInbox,
    step_sender: Arc<StepSender>,
    remote_tiers: Arc<RemoteTiers>,
    progress: Progress,
    /// Progress was reported, and not yet that there is none.
    is_progress_reported: bool,
    looked: Instant,
}

impl Driving {
    fn run(mut self) {
        let driven = catch_unwind(AssertUnwindSafe(|| self.drive()));
        // Before the world: messages that it still has for other nodes wait for nobody.
        self.step_sender.end();
        if let (Some(world), Ok(mut keeps)) = (&self.world, self.keeps.lock()) {
            *keeps = world.to_keep();
        }
        let why = match driven {
            Ok(Ok(())) => return,
            Ok(Err(e)) => e.to_string(),
            Err(_) => BUG.to_owned(),
        };
        tracing::error!("the world of this node is broken: {why}");
        // Its steps end first: nobody gets their events any more.
        let world = self.world.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(world)));
        send_notification(
            &self.notifications,
            proto::NodeNotification::Broken(why.clone()),
        );
        while !self.ended()
            && let Ok(work) = self.waiting.recv()
        {
            if let DriverInput::Call(_, answer) = work {
                let _ = answer.send(NodeReply::Failed(why.clone()));
            }
        }
    }

    fn ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Until the session is over.
    fn drive(&mut self) -> Result<(), WorldError> {
        while !self.ended() {
            for _ in 0..TURN {
                let Ok(work) = self.waiting.try_recv() else {
                    break;
                };
                self.take(work)?;
            }
            let Some(world) = &mut self.world else {
                // Nothing happens any more.
                match self.waiting.recv() {
                    Ok(work) => self.take(work)?,
                    Err(_) => return Ok(()),
                }
                continue;
            };
            let until = world.now().saturating_add(LOOK.as_nanos() as u64);
            let mut event = Some(world.next(Some(until))?);
            while let Some((_, what)) = event {
                // With its tier everything fails here, and nothing of it is to blame.
                if has_failed(&what)
                    && let Some(why) = self.remote_tiers.gone()
                {
                    return Err(WorldError(why));
                }
                if let Event::Ended {
                    instance, attempt, ..
                } = &what
                {
                    self.step_sender.ended((*instance, *attempt));
                }
                let is_received = match what {
                    Event::Timer => true,
                    what => {
                        send_notification(&self.notifications, proto::NodeNotification::Event(what))
                    }
                };
                if !is_received {
                    return Ok(());
                }
                event = world.poll();
            }
            if !self.report_progress() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// False if nobody receives it.
    fn report_progress(&mut self) -> bool {
        if self.looked.elapsed() < LOOK {
            return true;
        }
        self.looked = Instant::now();
        let (transfers, steps) = (self.progress.transfers(), self.progress.steps());
        let goes_on = !transfers.is_empty() || !steps.is_empty();
        // Once more when there is none: the progress reported before is over.
        let is_due = goes_on || self.is_progress_reported;
        self.is_progress_reported = goes_on;
        !is_due
            || send_notification(
                &self.notifications,
                proto::NodeNotification::Progress { transfers, steps },
            )
    }

    fn take(&mut self, work: DriverInput) -> Result<(), WorldError> {
        match work {
            DriverInput::Command(command) => self.handle_command(command),
            DriverInput::Call(call, answer) => {
                let given = self.answer(call)?;
                // The caller may have given up.
                let _ = answer.send(given);
                Ok(())
            }
            DriverInput::Step(from, step, message) => {
                if let Some(world) = &mut self.world {
                    world.follower(from, step, &message);
                }
                Ok(())
            }
            DriverInput::Undelivered(to, step, why) => {
                // First: the node that ends the attempt there need not have been reached from here.
                let undelivered = proto::NodeNotification::Undelivered {
                    to,
                    step,
                    why: why.clone(),
                };
                send_notification(&self.notifications, undelivered);
                if let Some(world) = &mut self.world {
                    world.undelivered(to, step, &why);
                }
                Ok(())
            }
            DriverInput::Broken(why) => Err(WorldError(why)),
            DriverInput::End => Ok(()),
        }
    }

    fn handle_command(&mut self, command: NodeCommand) -> Result<(), WorldError> {
        match &command {
            NodeCommand::NodeLost(node) => self.replicas.lost(*node),
            NodeCommand::NodeBack(node, address) => self.replicas.back(*node, address.clone()),
            NodeCommand::Mark(mark) => self.inbox.mark(*mark),
            NodeCommand::Lead { step, mark } => self.step_sender.lead(*step, *mark),
            _ => {}
        }
        let Some(world) = &mut self.world else {
            return Ok(());
        };
        match command {
            NodeCommand::Do(action) => world.perform(&action),
            NodeCommand::Know(parts) => world.know(parts),
            NodeCommand::Pace { own, all } => {
                world.pace(own, all);
                Ok(())
            }
            NodeCommand::KillAll => {
                world.kill_all();
                Ok(())
            }
            NodeCommand::Undelivered { from, step, why } => {
                world.undelivered(from, step, &why);
                Ok(())
            }
            NodeCommand::NodeLost(node) => {
                world.lose_node(node);
                Ok(())
            }
            NodeCommand::NodeBack(..) | NodeCommand::Mark(_) | NodeCommand::Lead { .. } => Ok(()),
        }
    }

    fn answer(&mut self, call: NodeRequest) -> Result<NodeReply, WorldError> {
        let Some(world) = &mut self.world else {
            return Ok(NodeReply::Failed("the run has left this node".into()));
        };
        Ok(match call {
            NodeRequest::Offer {
                prior,
                there,
                protected,
            } => {
                world.offer(prior, &there, &protected)?;
                NodeReply::Done
            }
            NodeRequest::Inventory(wanted) => NodeReply::Found(world.inventory(&wanted)?),
            NodeRequest::Clean(staying) => NodeReply::Cleaned(world.clean(&staying)?),
            NodeRequest::Idle(idle) => NodeReply::Waits(world.waits(idle)),
            NodeRequest::Exist(folders) => {
                let there = world.exist(&folders)?.into_iter();
                NodeReply::There(there.map(|there| there == Some(true)).collect())
            }
            NodeRequest::Remove(folders) => NodeReply::Left(world.remove(&folders)?),
            NodeRequest::Leave => {
                NodeReply::Left(self.world.take().map_or_else(Vec::new, |w| w.leave()))
            }
            NodeRequest::Measure { .. }
            | NodeRequest::Link { .. }
            | NodeRequest::Sweep { .. }
            | NodeRequest::Borrowers { .. }
            | NodeRequest::Export { .. }
            | NodeRequest::Borrow { .. }
            | NodeRequest::TierUsage(_)
            | NodeRequest::Open(_)
            | NodeRequest::Close => NodeReply::Failed("that is not asked of a world".into()),
        })
    }
}

/// The capability that a world lacks, in its words.
fn as_text(able: Result<(), CapabilityError>) -> Option<String> {
    able.err().map(|why| why.to_string())
}

fn has_failed(event: &Event) -> bool {
    let failed = |ended: &AttemptOutcome| matches!(ended, AttemptOutcome::Failed { .. });
    match event {
        Event::TransferFailed { .. } => true,
        Event::Ended { ended, .. } => failed(ended),
        _ => false,
    }
}
