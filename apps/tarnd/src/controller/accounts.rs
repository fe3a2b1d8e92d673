//! How jobs with data lines ended, from Slurm's accounting, by a thread of its own. docs/internals/site.md, "Accounting".

use super::ControllerInput;
use super::slurm::SlurmNotifier;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use tarn_proto::site::SlurmJobId;
use tarn_site::WantedAccount;
use tarn_slurm::{AccountingQuery, AccountingSource, SlurmError, SnapshotLimits, node_processors};
use tarn_types::site::accounted::result_of;
use tarn_types::site::{AccountedJob, AccountedState, JobResult};
use tarn_types::units::SECOND;

/// Between two readings for the same jobs: the first, and the longest, as each is twice the one before.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);
/// For which the site's source and nodes are taken to be the same.
const SITE: Duration = Duration::from_secs(600);

/// Reads the accounting of jobs that have left, and reports what it has.
pub(super) fn accountant(inputs: Sender<ControllerInput>) -> SlurmNotifier<Vec<WantedAccount>> {
    SlurmNotifier::start("accounting", move |updates| read_all(updates, &inputs))
}

fn read_all(updates: &Receiver<Vec<WantedAccount>>, inputs: &Sender<ControllerInput>) {
    let mut site: Option<AccountingSite> = None;
    let mut before: Vec<SlurmJobId> = Vec::new();
    let (mut pause, mut due) = (FIRST, Instant::now());
    let mut failed = false;
    for wanted in updates {
        let jobs: Vec<SlurmJobId> = wanted.iter().map(|w| w.job).collect();
        if jobs != before {
            (pause, before) = (FIRST, jobs);
        } else if Instant::now() < due {
            continue;
        }
        let read = read(&mut site, &wanted);
        due = Instant::now() + pause;
        pause = (pause * 2).min(LONGEST);
        match read {
            Ok(results) => {
                failed = false;
                if inputs.send(ControllerInput::Accounted(results)).is_err() {
                    return;
                }
            }
            Err(e) => {
                if !failed {
                    tracing::warn!("how jobs ended is not known from Slurm's accounting: {e}");
                }
                failed = true;
                site = None;
            }
        }
    }
}

/// The source and the nodes of the site.
struct AccountingSite {
    source: AccountingSource,
    processors: BTreeMap<String, u32>,
    read: Instant,
}

fn read(
    site: &mut Option<AccountingSite>,
    wanted: &[WantedAccount],
) -> Result<BTreeMap<SlurmJobId, JobResult>, SlurmError> {
    let limits = SnapshotLimits::default();
    let known = match site.take().filter(|site| site.read.elapsed() < SITE) {
        Some(known) => known,
        None => AccountingSite {
            source: AccountingSource::find(&limits)?,
            processors: node_processors(&limits)?,
            read: Instant::now(),
        },
    };
    let known = site.insert(known);
    let jobs: Vec<SlurmJobId> = wanted.iter().map(|w| w.job).collect();
    let since = wanted.iter().map(|w| w.since / SECOND).min().unwrap_or(0);
    let query = AccountingQuery {
        since,
        jobs: Some(&jobs),
    };
    let answer = known.source.read(&query, &limits)?;
    let processors = |node: &str| known.processors.get(node).copied();
    Ok(results(wanted, answer.jobs, processors))
}

/// The result of each wanted job that the accounting has.
fn results(
    wanted: &[WantedAccount],
    jobs: Vec<AccountedJob>,
    processors: impl Fn(&str) -> Option<u32>,
) -> BTreeMap<SlurmJobId, JobResult> {
    let mut attempts: BTreeMap<SlurmJobId, Vec<AccountedJob>> = BTreeMap::new();
    for job in jobs {
        attempts.entry(job.number).or_default().push(job);
    }
    let results = wanted.iter().filter_map(|wanted| {
        let mut own = attempts.remove(&wanted.job)?;
        // Another job had this number before, or a user's text looks like a record of it.
        let since = wanted.since / SECOND;
        own.retain(|job| {
            let is_earlier = job.end.is_some_and(|end| end < since);
            job.user == wanted.user && (!is_earlier || job.state == AccountedState::Requeued)
        });
        Some((wanted.job, result_of(&own, &processors)?))
    });
    results.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_slurm::AccountingAnswer;
    use tarn_types::site::Fate;

    #[test]
    fn only_the_attempts_of_this_job_count() {
        let lines = "7|7001|main|normal|COMPLETED|10|10|10|20|2|1|n1|8|8|||a|7\n\
                     7|7002|main|normal|COMPLETED|100|100|100|190|2|1|n1|8|8|||a|7\n\
                     7|7001|main|normal|REQUEUED|80|80|85|90|2|1|n1|4|4|||a|7\n\
                     7|7001|main|normal|COMPLETED|100|110|120|150|2|1|n1|4|4|||a|7\n";
        let answer = AccountingAnswer::from_sacct(lines.as_bytes());
        let wanted = WantedAccount {
            job: 7,
            user: 7001,
            since: 95 * SECOND,
        };
        let found = results(&[wanted], answer.jobs, |_| Some(8));
        let result = found[&7];
        assert_eq!((result.fate, result.attempts), (Fate::Done, 2));
        assert_eq!(result.ready, 80 * SECOND);
        assert_eq!(result.node_time, 35 * SECOND / 2, "half of a node");
        assert!(results(&[wanted], Vec::new(), |_| None).is_empty());
    }
}
