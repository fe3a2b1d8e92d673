//! Slurm's queue for the core: which jobs with data lines it does not know yet, and which have gone. And the clients that wait until their
//! jobs are taken in. docs/internals/site.md, "The order of jobs".

use super::reader::SlurmReading;
use super::scripts::{FoundJob, ListedJob, MAX_SCRIPTS, ScriptReader};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{ControllerReply, MAX_AWAITED, SlurmJobId, Uid};
use tarn_site::{Site, SiteServiceEvent};
use tarn_slurm::SlurmJob;
use tarn_spec::ChainOptions;
use tarn_types::units::Time;

/// Jobs of one user that are looked at before others of theirs are known.
const MAX_UNKNOWN: usize = 1_000;
/// Clients that wait for jobs at a time.
const MAX_WAITING: usize = 1_024;
/// How long a client waits.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// A client that waits until its jobs are taken in.
struct AwaitingClient {
    user: Uid,
    jobs: Vec<SlurmJobId>,
    since: Instant,
    reply: SyncSender<ControllerReply>,
}

/// The queue as it was read last.
pub(super) struct SlurmQueue {
    scripts: ScriptReader,
    /// Jobs whose script was read, as long as Slurm has them.
    looked_at: BTreeSet<SlurmJobId>,
    is_reading: bool,
    clients: Vec<AwaitingClient>,
}

/// Whether a job has a place in the order of submission. Arrays make nothing that others read; Slurm has the jobs of a chain wait for
/// each other.
fn is_ordered(job: &SlurmJob) -> bool {
    job.has_burst_buffer
        && job.state.is_waiting()
        && job.array.is_none()
        && !ChainOptions::of_comment(&job.admin_comment).is_of_chain()
}

impl SlurmQueue {
    pub(super) fn new(scripts: ScriptReader) -> Self {
        Self {
            scripts,
            looked_at: BTreeSet::new(),
            is_reading: false,
            clients: Vec::new(),
        }
    }

    /// A reading, which began at this time of the core: the event for the core, if that waits for it or jobs were just found.
    pub(super) fn read(
        &mut self,
        reading: &SlurmReading,
        began: Time,
        site: &Site,
        is_found: bool,
    ) -> Option<SiteServiceEvent> {
        let jobs = &reading.snapshot.jobs;
        self.looked_at.retain(|job| jobs.contains_key(job));
        let unknown = self.unknown(reading, site);
        self.read_scripts(&unknown);
        let gone = site.queued_jobs().filter(|job| !jobs.contains_key(job));
        let gone: BTreeSet<SlurmJobId> = gone.collect();
        let mut numbers: BTreeMap<Uid, BTreeSet<SlurmJobId>> = BTreeMap::new();
        for job in unknown {
            numbers.entry(job.user).or_default().insert(job.number);
        }
        let is_of_use = is_found || site.is_arriving() || !gone.is_empty();
        is_of_use.then_some(SiteServiceEvent::Listed {
            began,
            unknown: numbers,
            gone,
        })
    }

    /// The scripts of some jobs were read.
    pub(super) fn found(&mut self, found: Vec<FoundJob>) -> Vec<SiteServiceEvent> {
        self.is_reading = false;
        self.looked_at.extend(found.iter().map(|(job, _)| *job));
        let found = found.into_iter();
        let events = found.filter_map(|(job, submission)| {
            let submission = submission?;
            Some(SiteServiceEvent::Found { job, submission })
        });
        events.collect()
    }

    /// The jobs that tarn does not know and whose script is not read yet, those of each user by number.
    fn unknown<'r>(&self, reading: &'r SlurmReading, site: &Site) -> Vec<&'r SlurmJob> {
        if !self.scripts.is_there() {
            return Vec::new();
        }
        let mut of_user: BTreeMap<Uid, usize> = BTreeMap::new();
        let jobs = reading.snapshot.jobs.values();
        let unknown = jobs.filter(|job| {
            is_ordered(job) && !site.is_known(job.number) && !self.looked_at.contains(&job.number)
        });
        let bounded = unknown.filter(|job| {
            let count = of_user.entry(job.user).or_default();
            *count += 1;
            *count <= MAX_UNKNOWN
        });
        bounded.collect()
    }

    /// Has scripts read: one of each user in turn, so that nobody's jobs hold up those of others.
    fn read_scripts(&mut self, unknown: &[&SlurmJob]) {
        if self.is_reading || unknown.is_empty() {
            return;
        }
        let mut turns: BTreeMap<Uid, usize> = BTreeMap::new();
        let mut in_turn: Vec<(usize, &SlurmJob)> = Vec::new();
        for job in unknown {
            let turn = turns.entry(job.user).or_default();
            in_turn.push((*turn, job));
            *turn += 1;
        }
        in_turn.sort_by_key(|(turn, job)| (*turn, job.number));
        let jobs = in_turn.into_iter().take(MAX_SCRIPTS).map(|(_, job)| job);
        let listed = jobs.map(|job| ListedJob {
            job: job.number,
            user: job.user,
            has_wish: !job.required.is_empty() || !job.preferred.is_empty(),
        });
        self.is_reading = self.scripts.read(listed.collect());
    }

    /// A client waits until its jobs are taken in.
    pub(super) fn wait(
        &mut self,
        user: Uid,
        jobs: Vec<SlurmJobId>,
        reply: SyncSender<ControllerReply>,
    ) {
        if jobs.len() > MAX_AWAITED || self.clients.len() >= MAX_WAITING {
            let text = format!(
                "at most {MAX_AWAITED} jobs are waited for by a client, and {MAX_WAITING} clients wait: try again later"
            );
            let why = RequestError::new(Code::Busy, text);
            let _ = reply.try_send(ControllerReply::Refused(why));
            return;
        }
        let since = Instant::now();
        self.clients.push(AwaitingClient {
            user,
            jobs,
            since,
            reply,
        });
    }

    /// Answers the clients whose jobs are all taken in, or one of whose jobs cannot be.
    pub(super) fn answer(&mut self, site: &Site, reading: Option<&SlurmReading>) {
        let looked_at = &self.looked_at;
        self.clients.retain_mut(|client| {
            let result = client.result(site, reading, looked_at);
            if let Some(reply) = &result {
                let _ = client.reply.try_send(reply.clone());
            }
            result.is_none() && client.since.elapsed() < MAX_WAIT
        });
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.clients.is_empty()
    }
}

impl AwaitingClient {
    /// `None` while a job may still be taken in.
    fn result(
        &mut self,
        site: &Site,
        reading: Option<&SlurmReading>,
        looked_at: &BTreeSet<SlurmJobId>,
    ) -> Option<ControllerReply> {
        let reading = reading.filter(|reading| reading.jobs_began > self.since);
        while let Some(job) = self.jobs.last() {
            let refused = match site.taken_in(self.user, *job) {
                Some(Ok(())) => None,
                Some(Err(why)) => Some(RequestError::new(
                    why.code,
                    format!("job {job}: {}", why.text),
                )),
                // It waits for those before it.
                None if site.is_known(*job) => return None,
                None => match reading?.snapshot.jobs.get(job) {
                    None => {
                        let text = format!("job {job} is not in Slurm's queue");
                        Some(RequestError::new(Code::NotFound, text))
                    }
                    // It has nothing for tarn, or Slurm asks about it when it may run.
                    Some(listed) if !is_ordered(listed) || looked_at.contains(job) => None,
                    Some(_) => return None,
                },
            };
            if let Some(why) = refused {
                return Some(ControllerReply::Refused(why));
            }
            self.jobs.pop();
        }
        Some(ControllerReply::Done)
    }
}
