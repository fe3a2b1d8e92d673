//! A session of the controller: its orders, and their results.

use super::audit::Audit;
use super::keys::Secrets;
use super::pool::{WorkerOrder, WorkerTask};
use super::{SiteNodeService, project};
use anyhow::Context;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tarn_munge::{MungeSessionReader, MungeSessionWriter};
use tarn_ports::Meter;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{
    Epoch, Gid, Greeting, NodeOrder, NodeWelcome, NumberedOrder, OLDEST, Owner, Part, Report,
    SlurmJobId, StoreContent, Uid, VERSION, Work, WorkResult,
};

/// Bytes of a work in the audit log.
const MAX_ABOUT: usize = 2048;
/// How long the controller may be silent.
const SILENCE: Duration = Duration::from_secs(3 * Report::BEAT);

/// Serves a controller that has proven that it may give orders, as long as its term is the highest.
pub(super) fn serve(
    site: &SiteNodeService,
    halves: (MungeSessionReader, MungeSessionWriter),
    secrets: &Secrets,
    from: SocketAddr,
) {
    let (mut reader, mut writer) = halves;
    let welcomed = welcome(site, &mut reader, &mut writer, secrets);
    let epoch = match welcomed {
        Ok(epoch) => epoch,
        Err(why) => {
            site.audit
                .refused(None, "session", &format!("{from}: {why:#}"));
            let _ = reader.socket().shutdown(Shutdown::Both);
            return;
        }
    };
    tracing::info!(epoch, %from, "the controller gives orders");
    let (reports, queue) = channel();
    let closer = Arc::clone(reader.socket());
    std::thread::scope(|scope| {
        let writing = std::thread::Builder::new().name("reports".into());
        let spawned = writing.spawn_scoped(scope, move || {
            report(&mut writer, &queue);
            let _ = closer.shutdown(Shutdown::Both);
        });
        if spawned.is_err() {
            let _ = reader.socket().shutdown(Shutdown::Both);
            return;
        }
        let why = loop {
            let command: NumberedOrder = match reader.receive(SILENCE) {
                Ok(command) => command,
                Err(why) => break why,
            };
            if site.term().epoch != epoch {
                site.audit.refused(
                    None,
                    "order",
                    &format!("{from}: a controller of an earlier term"),
                );
                return;
            }
            site.obey(command, &reports);
        };
        tracing::warn!("the controller does not answer any more: {why}");
        let _ = reader.socket().shutdown(Shutdown::Both);
        drop(reports);
    });
}

fn welcome(
    site: &SiteNodeService,
    reader: &mut MungeSessionReader,
    writer: &mut MungeSessionWriter,
    secrets: &Secrets,
) -> anyhow::Result<Epoch> {
    let greeting: Greeting = reader.receive(SILENCE)?;
    let version = VERSION.min(greeting.newest);
    if version < OLDEST.max(greeting.oldest) {
        writer.send(&NodeWelcome::Version(OLDEST, VERSION))?;
        anyhow::bail!(
            "a controller that speaks versions {} to {}: update the older one",
            greeting.oldest,
            greeting.newest
        );
    }
    {
        let mut term = site.term();
        if greeting.epoch < term.epoch {
            writer.send(&NodeWelcome::Stale(term.epoch))?;
            anyhow::bail!(
                "controller number {} is replaced: number {} gives orders",
                greeting.epoch,
                term.epoch
            );
        }
        if greeting.epoch > term.epoch {
            let kept = site.stores.keep_epoch(greeting.epoch);
            kept.context("the term cannot be kept")?;
            term.epoch = greeting.epoch;
        }
        // The session that gave orders before does not any more.
        if let Some(before) = term.current.replace(Arc::clone(reader.socket())) {
            let _ = before.shutdown(Shutdown::Both);
        }
    }
    site.pool.rekey(secrets);
    let mut all = site.inventory();
    all.share_out(greeting.pieces);
    let (capacity, stores) = site.stores.capacity_report();
    let holds = match greeting.pieces {
        true => Vec::new(),
        false => std::mem::take(&mut all.holds),
    };
    writer.send(&NodeWelcome::Ready {
        version,
        tarn: env!("CARGO_PKG_VERSION").into(),
        boot: site.boot.clone(),
        capacity,
        stores,
        holds,
        partial: all.partial.iter().copied().collect(),
        pieces: greeting.pieces,
        jobs: site.jobs(),
        is_behind: all.is_behind,
    })?;
    if greeting.pieces {
        all.send_pieces(writer)?;
    }
    Ok(greeting.epoch)
}

/// Logs and reports the result of an order that no worker carries out.
fn ended(
    audit: &Audit,
    user: Uid,
    what: &str,
    result: Result<(), RequestError>,
    (number, reports): (u64, &Sender<Report>),
) {
    let what = match result {
        Ok(()) => {
            audit.done(user, what);
            WorkResult::Done
        }
        Err(why) => {
            audit.refused(Some(user), what, &why.text);
            WorkResult::Failed(why)
        }
    };
    let _ = reports.send(Report::Worked { number, what });
}

/// A work, as the audit log has it.
fn brief(work: &Work) -> String {
    let mut text = format!("{work:?}");
    if text.len() > MAX_ABOUT {
        text.truncate(text.floor_char_boundary(MAX_ABOUT));
        text += "...";
    }
    text
}

/// Writes the results of orders, and signs of life.
fn report(writer: &mut MungeSessionWriter, queue: &Receiver<Report>) {
    loop {
        let report = match queue.recv_timeout(Duration::from_secs(Report::BEAT)) {
            Ok(report) => report,
            Err(RecvTimeoutError::Timeout) => Report::Alive,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if writer.send(&report).is_err() {
            return;
        }
    }
}

/// The destination of the result of an order.
struct OrderReports<'a> {
    number: u64,
    reports: &'a Sender<Report>,
}

impl OrderReports<'_> {
    /// A task of a worker's that reports by itself.
    fn task(&self, about: String, order: WorkerOrder) -> WorkerTask {
        WorkerTask {
            number: self.number,
            order,
            about: Some(about),
            reports: self.reports.clone(),
        }
    }
}

impl SiteNodeService {
    fn obey(&self, command: NumberedOrder, reports: &Sender<Report>) {
        let number = command.number;
        let to = OrderReports { number, reports };
        match command.order {
            NodeOrder::Do { user, group, work } => self.give_work((user, group), work, &to),
            NodeOrder::Stop(stopped) => {
                self.pool.stop(stopped);
                let what = WorkResult::Done;
                let _ = reports.send(Report::Worked { number, what });
            }
            NodeOrder::Serve { user, group } => {
                let task = to.task("serve".into(), WorkerOrder::Port);
                self.pool.give(user, group, task);
            }
            NodeOrder::Admit { job, user, mounts } => {
                let memory = self.memory.of(job);
                let result = self.admission.admit((job, user), &memory, &mounts);
                self.report_result(user, &format!("admit job {job}"), result, &to);
            }
            NodeOrder::Dismiss(job) => self.dismiss_job(job, &to),
            NodeOrder::Look => self.report_capacity(&to),
            NodeOrder::Beat => {}
        }
    }

    fn report_result(
        &self,
        user: Uid,
        what: &str,
        result: Result<(), RequestError>,
        to: &OrderReports<'_>,
    ) {
        ended(&self.audit, user, what, result, (to.number, to.reports));
    }

    /// Gives a worker an order that its user may give.
    fn give_work(&self, (user, group): (Uid, Gid), work: Box<Work>, to: &OrderReports<'_>) {
        let what = brief(&work);
        let (user, group) = match project::actor(&self.stores, user, group, &work) {
            Ok(Some(actor)) => actor,
            // It is not there, so it need not be removed; a part that is to be checked is none.
            Ok(None) => {
                let is_removed = matches!(*work, Work::Remove(_));
                let missing = || RequestError::new(Code::NotFound, "it is not there");
                let result = is_removed.then_some(()).ok_or_else(missing);
                return self.report_result(user, &what, result, to);
            }
            Err(e) => {
                let why = format!("its writer cannot be found out: {e}");
                let why = RequestError::new(Code::Io, why);
                return self.report_result(user, &what, Err(why), to);
            }
        };
        let may = self
            .allowed(user, group, &work)
            .and_then(|()| self.memory_for(user, group, &work));
        match may {
            Ok(()) => self
                .pool
                .give(user, group, to.task(what, WorkerOrder::Work(work))),
            Err(why) => self.report_result(user, &what, Err(why), to),
        }
    }

    /// A job is over: its tasks see nothing any more, and its memory goes.
    fn dismiss_job(&self, job: SlurmJobId, to: &OrderReports<'_>) {
        let what = format!("dismiss job {job}");
        let removal = self
            .admission
            .dismiss(job)
            .and_then(|()| self.memory.remove(job));
        let rest = match removal {
            Ok(Some(rest)) => rest,
            Ok(None) => return self.report_result(0, &what, Ok(()), to),
            Err(why) => return self.report_result(0, &what, Err(why), to),
        };
        // There may be much of it, however its user has piled it up.
        let (audit, number, reports) = (Arc::clone(&self.audit), to.number, to.reports.clone());
        let clear = move || {
            let result = rest.clear();
            ended(&audit, 0, &what, result, (number, &reports));
        };
        let thread = std::thread::Builder::new().name("clear".into());
        if let Err(e) = thread.spawn(clear) {
            tracing::warn!(job, "its memory goes with its last process: no thread: {e}");
        }
    }

    /// Power meters may take a moment to answer, and the next order does not wait for that.
    fn report_capacity(&self, to: &OrderReports<'_>) {
        let (capacity, meter) = (self.stores.capacity_report().0, Arc::clone(&self.meter));
        let (number, reports) = (to.number, to.reports.clone());
        let look = move || {
            let _ = reports.send(Report::Capacity {
                number,
                capacity,
                draw: meter.draw(),
                cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
            });
        };
        let thread = std::thread::Builder::new().name("look".into());
        if let Err(e) = thread.spawn(look) {
            tracing::warn!("the node's power is not known: no thread: {e}");
        }
    }
}

impl SiteNodeService {
    /// The jobs that are let in, or have memory.
    fn jobs(&self) -> Vec<SlurmJobId> {
        let mut jobs = self.admission.jobs();
        jobs.extend(self.memory.jobs());
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    /// A job that is to have something in clear has memory for it, and the user a folder there.
    fn memory_for(&self, user: Uid, group: Gid, work: &Work) -> Result<(), RequestError> {
        match work {
            Work::Prepare {
                job,
                memory: Some(bytes),
                ..
            }
            | Work::View {
                job,
                memory: Some(bytes),
                ..
            } => {
                let standing = project::standing(user, group);
                let (group, _) = standing.map_err(|e| {
                    let text = format!("the groups of user {user} are not known: {e}");
                    RequestError::new(Code::Internal, text)
                })?;
                self.memory.ensure(*job, *bytes, (user, group))
            }
            _ => Ok(()),
        }
    }

    /// A worker touches only data of its user, or its projects, whatever the controller orders.
    fn allowed(&self, user: Uid, group: Gid, work: &Work) -> Result<(), RequestError> {
        let is_own = |part: &Part| match part.owner {
            Owner::User(owner) => owner == user,
            Owner::Project(_) => true,
        };
        let parts: Vec<&Part> = match work {
            Work::Fetch { part, .. }
            | Work::Publish { part, .. }
            | Work::Move { part, .. }
            | Work::Check(part)
            | Work::CheckIn(part, _) => vec![part],
            Work::Prepare { parts, .. } | Work::View { parts, .. } => parts.iter().collect(),
            Work::Slice { parts, .. } => parts.iter().map(|(part, _, _)| part).collect(),
            Work::Send { parts, .. } => parts.iter().map(|(part, _, _)| part).collect(),
            Work::Remove(things) => things.iter().filter_map(StoreContent::part).collect(),
            Work::WrapAnew(parts) => parts.iter().collect(),
            Work::Export { .. }
            | Work::Checkpoints { .. }
            | Work::Destage { .. }
            | Work::Share { .. }
            | Work::Join { .. }
            | Work::CheckDest { .. }
            | Work::Inventory(_) => Vec::new(),
        };
        match parts.iter().find(|part| !is_own(part)) {
            None => parts
                .iter()
                .try_for_each(|part| project::admit(&self.stores, part, user, group)),
            Some(part) => {
                let text = format!("{part} belongs to {}, not to user {user}", part.owner);
                Err(RequestError::new(Code::Denied, text))
            }
        }
    }
}
