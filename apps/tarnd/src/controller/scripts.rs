//! Jobs that Slurm has and has not asked about: a thread of its own reads and parses their scripts, so that the order of submission is
//! known. docs/internals/site.md, "The order of jobs".

use super::ControllerInput;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use tarn_proto::site::{Chain, JobSubmission, Owner, SlurmJobId, Uid};
use tarn_slurm::{JobOrigin, SlurmError, job_origins, job_script};
use tarn_spec::{ChainOptions, SbatchScript, parse_job};
use tarn_types::named::Whose;

/// Scripts that are read at a time, some 3 ms each.
pub(super) const MAX_SCRIPTS: usize = 64;

/// A job whose script is to be read.
#[derive(Debug)]
pub(super) struct ListedJob {
    pub(super) job: SlurmJobId,
    pub(super) user: Uid,
    /// Its user has said where it is to run, or had best run.
    pub(super) has_wish: bool,
}

/// A job, and its lines: `None` if it has nothing for tarn, or cannot be read. Then Slurm asks about it, or it is over.
pub(super) type FoundJob = (SlurmJobId, Option<Box<JobSubmission>>);

/// Reads scripts.
pub(super) struct ScriptReader(Option<SyncSender<Vec<ListedJob>>>);

impl ScriptReader {
    pub(super) fn start(inputs: Sender<ControllerInput>) -> Self {
        let (to, jobs) = sync_channel(1);
        let thread = std::thread::Builder::new().name("scripts".into());
        match thread.spawn(move || read_all(&jobs, &inputs)) {
            Ok(_) => Self(Some(to)),
            Err(e) => {
                tracing::error!("scripts of waiting jobs are not read: no thread: {e}");
                Self(None)
            }
        }
    }

    /// Has scripts read, at most [`MAX_SCRIPTS`]. False while others are: the next call comes with their result.
    pub(super) fn read(&self, jobs: Vec<ListedJob>) -> bool {
        self.0.as_ref().is_some_and(|to| to.try_send(jobs).is_ok())
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.is_some()
    }
}

fn read_all(jobs: &Receiver<Vec<ListedJob>>, inputs: &Sender<ControllerInput>) {
    for jobs in jobs {
        let numbers: Vec<SlurmJobId> = jobs.iter().map(|job| job.job).collect();
        // squeue fails if all of them have ended meanwhile.
        let mut origins = job_origins(&numbers).unwrap_or_default();
        let found = jobs.into_iter().map(|listed| {
            let job = listed.job;
            let origin = origins.remove(&job);
            let read = origin.map(|origin| submission_of(&listed, &origin));
            let read = read.transpose().unwrap_or_else(|why| {
                // Slurm asks about it, and its user learns what is wrong.
                tracing::debug!("the script of job {job} is not read ahead: {why}");
                None
            });
            (job, read.flatten().map(Box::new))
        });
        let found: Vec<FoundJob> = found.collect();
        if inputs.send(ControllerInput::Found(found)).is_err() {
            return;
        }
    }
}

/// Why a script is not read ahead.
#[derive(Debug, thiserror::Error)]
enum ScriptError {
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    Script(#[from] tarn_spec::SpecError),
    #[error("its user's groups, or whom it names, are not known: {0}")]
    People(#[from] std::io::Error),
}

/// Reads and parses a job's script. `None` if it has no lines for tarn.
fn submission_of(
    listed: &ListedJob,
    origin: &JobOrigin,
) -> Result<Option<JobSubmission>, ScriptError> {
    let text = job_script(listed.job)?;
    let (options, text) = ChainOptions::of_script(&text);
    let script = SbatchScript {
        name: "the script",
        text: &text,
    };
    let Some(parsed) = parse_job(&script, &origin.folder, options.is_some())? else {
        return Ok(None);
    };
    let workflow = parsed.parsed.workflow;
    let mut owners = BTreeMap::new();
    for named in workflow.data.iter().filter_map(|data| data.of.as_ref()) {
        if let Some(owner) = owner_of(&named.whose)? {
            owners.insert(named.whose.to_string(), owner);
        }
    }
    Ok(Some(JobSubmission {
        user: listed.user,
        group: origin.group,
        groups: tarn_sys::users::groups_of(listed.user, origin.group)?,
        owners,
        is_alone: parsed.is_alone,
        chain: options.map(|options| Chain {
            prior: options.prior,
            is_end: options.is_end,
            same_nodes: options.same_nodes,
            others: options.others,
        }),
        excludes: Some(origin.excluded.clone()),
        has_wish: listed.has_wish,
        workflow,
    }))
}

/// The user or project of this name, or number if nobody has it for a name.
fn owner_of(whose: &Whose) -> std::io::Result<Option<Owner>> {
    let number = |text: &str| text.parse().ok();
    Ok(match whose {
        Whose::Own => None,
        Whose::User(name) => {
            let known = tarn_sys::users::user(name)?;
            known.or_else(|| number(name)).map(Owner::User)
        }
        Whose::Project(name) => {
            let known = tarn_sys::users::group(name)?;
            known.or_else(|| number(name)).map(Owner::Project)
        }
    })
}
