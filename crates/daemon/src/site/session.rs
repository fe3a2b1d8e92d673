//! A session of the controller: its orders, and what came of them.

use super::keys::Secrets;
use super::{Site, project};
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tarn_munge::{Reader, Writer};
use tarn_ports::Meter;
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{
    Command, Epoch, Gid, Greeting, Held, Holding, Job, OLDEST, Order, Owner, Part, Report, Uid,
    VERSION, Welcome, Work, Worked,
};

/// How long the controller may be silent.
const SILENCE: Duration = Duration::from_secs(3 * Report::BEAT);
/// How long a user's worker may take to say what there is.
const INVENTORY: Duration = Duration::from_secs(120);

/// Serves whoever has proven that they may give orders, as long as their term is the highest.
pub(super) fn serve(site: &Site, halves: (Reader, Writer), secrets: &Secrets, from: SocketAddr) {
    let (mut reader, mut writer) = halves;
    let welcomed = welcome(site, &mut reader, &mut writer, secrets);
    let epoch = match welcomed {
        Ok(epoch) => epoch,
        Err(why) => {
            site.audit
                .refused(None, "session", &format!("{from}: {why:#}"));
            return;
        }
    };
    tracing::info!(epoch, %from, "the controller gives orders");
    let (reports, queue) = channel();
    let Ok(closer) = reader.closer() else {
        return;
    };
    std::thread::scope(|scope| {
        let writing = std::thread::Builder::new().name("reports".into());
        let spawned = writing.spawn_scoped(scope, move || {
            report(&mut writer, &queue);
            let _ = closer.shutdown(Shutdown::Both);
        });
        if spawned.is_err() {
            return;
        }
        let why = loop {
            let command: Command = match reader.receive(SILENCE) {
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
        tracing::warn!("the controller is not heard of any more: {why}");
        let _ = reader.closer().map(|s| s.shutdown(Shutdown::Both));
        drop(reports);
    });
}

fn welcome(
    site: &Site,
    reader: &mut Reader,
    writer: &mut Writer,
    secrets: &Secrets,
) -> anyhow::Result<Epoch> {
    let greeting: Greeting = reader.receive(SILENCE)?;
    let version = VERSION.min(greeting.newest);
    if version < OLDEST.max(greeting.oldest) {
        writer.send(&Welcome::Version(OLDEST, VERSION))?;
        anyhow::bail!(
            "a controller that speaks versions {} to {}: update the older one",
            greeting.oldest,
            greeting.newest
        );
    }
    {
        let mut term = site.term();
        if greeting.epoch < term.epoch {
            writer.send(&Welcome::Stale(term.epoch))?;
            anyhow::bail!(
                "controller number {} is none any more: number {} gives orders",
                greeting.epoch,
                term.epoch
            );
        }
        if greeting.epoch > term.epoch {
            let kept = site.stores.keep_epoch(greeting.epoch);
            kept.context("the term cannot be kept")?;
            term.epoch = greeting.epoch;
        }
        // Whoever gave orders before does not any more.
        if let Some(before) = term.current.replace(reader.closer()?) {
            let _ = before.shutdown(Shutdown::Both);
        }
    }
    site.crew.rekey(secrets);
    let (holds, is_behind) = site.inventory();
    let (capacity, stores) = site.stores.told();
    writer.send(&Welcome::Ready {
        version,
        tarn: env!("CARGO_PKG_VERSION").into(),
        boot: site.boot.clone(),
        capacity,
        stores,
        holds,
        jobs: site.jobs(),
        is_behind,
    })?;
    Ok(greeting.epoch)
}

/// Writes what came of orders, and signs of life.
fn report(writer: &mut Writer, queue: &Receiver<Report>) {
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

impl Site {
    /// All that users have here, and whether keys of it may be wrapped with an older secret. A user whose worker cannot say it has
    /// nothing, as far as the controller is concerned.
    fn inventory(&self) -> (Vec<(Uid, Holding)>, bool) {
        let mut all: Vec<(Uid, Holding)> = Vec::new();
        let mut is_unseen = false;
        let mut projects = project::all(&self.stores);
        for user in self.crew.users() {
            // What is a project's is told by one of its members who have something here.
            let groups = project::standing(user, self.group_of(user));
            let groups = groups.map(|(_, groups)| groups).unwrap_or_default();
            let (own, others) = projects.into_iter().partition(|gid| groups.contains(gid));
            projects = others;
            let said = self.inventory_of(user, own);
            match said {
                Ok(holds) => all.extend(holds.into_iter().map(|holding| (user, holding))),
                Err(why) => {
                    tracing::warn!(user, "what this user has here is not known: {why}");
                    is_unseen = true;
                }
            }
        }
        if !projects.is_empty() {
            tracing::warn!(
                ?projects,
                "what these projects have here is not known: none of their members has anything else here"
            );
        }
        self.have_wrapped(&mut all);
        let is_behind = is_unseen || all.iter().any(|(_, holding)| holding.is_behind);
        (all, is_behind)
    }

    fn inventory_of(&self, user: Uid, projects: Vec<Gid>) -> Result<Vec<Holding>, Refusal> {
        match self.answer(user, Work::Inventory(projects))? {
            Worked::Inventory(holds) => Ok(holds),
            other => Err(Refusal::new(Code::Internal, format!("it says {other:?}"))),
        }
    }

    /// Has those who have made what is a project's wrap its keys with the newest secret: another member cannot.
    fn have_wrapped(&self, all: &mut [(Uid, Holding)]) {
        let mut makers: BTreeMap<Uid, BTreeSet<Part>> = BTreeMap::new();
        for (_, holding) in all.iter().filter(|(_, holding)| holding.is_behind) {
            if let Some(part) = holding.held.part()
                && matches!(part.owner, Owner::Project(_))
                && let Ok(Some(maker)) = project::maker(&self.stores, part)
            {
                makers.entry(maker).or_default().insert(part.clone());
            }
        }
        for (maker, parts) in makers {
            match self.answer(maker, Work::WrapAnew(parts.iter().cloned().collect())) {
                Ok(_) => {
                    let is_done = |holding: &Holding| {
                        holding.held.part().is_some_and(|part| parts.contains(part))
                    };
                    let done = all.iter_mut().filter(|(_, holding)| is_done(holding));
                    done.for_each(|(_, holding)| holding.is_behind = false);
                }
                Err(why) => tracing::warn!(maker, "keys of projects stay as they are: {why}"),
            }
        }
    }

    /// What a user's worker says of something that is no order of the controller's.
    fn answer(&self, user: Uid, work: Work) -> Result<Worked, Refusal> {
        let worker = self.crew.worker(user, self.group_of(user))?;
        let (reports, said) = channel();
        worker.give(0, work, reports);
        match said.recv_timeout(INVENTORY) {
            Ok(Report::Worked {
                what: Worked::Failed(why),
                ..
            }) => Err(why),
            Ok(Report::Worked { what, .. }) => Ok(what),
            _ => Err(Refusal::new(Code::TimedOut, "its worker does not answer")),
        }
    }

    /// The group that a user's folder was made with.
    fn group_of(&self, user: Uid) -> Gid {
        let own = |root: &Path| std::fs::symlink_metadata(root.join(format!("u{user}"))).ok();
        let about = self.stores.roots().find_map(own);
        about.map_or(user, |a| std::os::unix::fs::MetadataExt::gid(&a))
    }

    fn obey(&self, command: Command, reports: &Sender<Report>) {
        let number = command.number;
        let worked = |what| Report::Worked { number, what };
        let done = |user: Uid, what: &str, result: Result<(), Refusal>| {
            let said = match result {
                Ok(()) => {
                    self.audit.done(user, what);
                    Worked::Done
                }
                Err(why) => {
                    self.audit.refused(Some(user), what, &why.text);
                    Worked::Failed(why)
                }
            };
            let _ = reports.send(worked(said));
        };
        match command.order {
            Order::Do { user, group, work } => {
                let what = format!("{work:?}");
                let (user, group) = match project::actor(&self.stores, user, group, &work) {
                    Ok(Some(actor)) => actor,
                    // It is not there, so it need not be removed; a part that is to be checked is none.
                    Ok(None) => {
                        let is_removed = matches!(*work, Work::Remove(_));
                        let missing = || Refusal::new(Code::NotFound, "it is not there");
                        done(user, &what, is_removed.then_some(()).ok_or_else(missing));
                        return;
                    }
                    Err(e) => {
                        let why = format!("who has written it cannot be found out: {e}");
                        done(user, &what, Err(Refusal::new(Code::Io, why)));
                        return;
                    }
                };
                let worker = self
                    .allowed(user, group, &work)
                    .and_then(|()| self.memory_for(user, group, &work))
                    .and_then(|()| self.crew.worker(user, group));
                match worker {
                    Ok(worker) => {
                        self.audit.done(user, &what);
                        worker.give(number, *work, reports.clone());
                    }
                    Err(why) => done(user, &what, Err(why)),
                }
            }
            Order::Stop(stopped) => {
                self.crew.stop(stopped);
                let _ = reports.send(worked(Worked::Done));
            }
            Order::Serve { user, group } => match self.crew.worker(user, group) {
                Ok(worker) => {
                    let port = worker.port;
                    let _ = reports.send(Report::Serving { number, port });
                }
                Err(why) => done(user, "serve", Err(why)),
            },
            Order::Admit { job, user, mounts } => {
                let memory = self.memory.of(job);
                let result = self.door.admit((job, user), &memory, &mounts);
                done(user, &format!("admit job {job}"), result);
            }
            Order::Dismiss(job) => {
                let result = self.door.dismiss(job);
                let result = result.and_then(|()| self.memory.remove(job));
                done(0, &format!("dismiss job {job}"), result);
            }
            Order::Look => {
                let (capacity, meter) = (self.stores.told().0, std::sync::Arc::clone(&self.meter));
                let reports = reports.clone();
                let look = move || {
                    let _ = reports.send(Report::Capacity {
                        number,
                        capacity,
                        draw: meter.draw(),
                        cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
                    });
                };
                // What draws power may take a moment to say so, and the next order does not wait for that.
                let thread = std::thread::Builder::new().name("look".into());
                if let Err(e) = thread.spawn(look) {
                    tracing::warn!("what the node draws is not known: no thread: {e}");
                }
            }
            Order::Beat => {}
        }
    }
}

impl Site {
    /// The jobs that are let in, or have memory.
    fn jobs(&self) -> Vec<Job> {
        let mut jobs = self.door.jobs();
        jobs.extend(self.memory.jobs());
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    /// A job that is to have something in clear has memory for it, and the user a folder there.
    fn memory_for(&self, user: Uid, group: Gid, work: &Work) -> Result<(), Refusal> {
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
                    Refusal::new(Code::Internal, text)
                })?;
                self.memory.ensure(*job, *bytes, (user, group))
            }
            _ => Ok(()),
        }
    }

    /// A worker touches what is its user's, or its projects', whatever the controller says.
    fn allowed(&self, user: Uid, group: Gid, work: &Work) -> Result<(), Refusal> {
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
            Work::Send { parts, .. } => parts.iter().map(|(part, _, _)| part).collect(),
            Work::Remove(things) => things.iter().filter_map(Held::part).collect(),
            Work::WrapAnew(parts) => parts.iter().collect(),
            Work::Lend { .. }
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
                Err(Refusal::new(Code::Denied, text))
            }
        }
    }
}
