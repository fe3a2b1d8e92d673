//! Workflows by the options of the NEXTGenIO fork: the first job is held until the end is named, then released. docs/internals/site.md,
//! "The fork's flags".

use super::reader::SlurmReading;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tarn_proto::site::SlurmJobId;
use tarn_slurm::release_with_comment;
use tarn_spec::ChainOptions;

/// The first job of a workflow whose end is named, and the others that there were then.
type WholeChain = (SlurmJobId, Vec<SlurmJobId>);

/// Releases the first jobs of workflows, by a thread of its own.
pub(super) struct ChainReleaser(Option<SyncSender<Vec<WholeChain>>>);

impl ChainReleaser {
    pub(super) fn start() -> Self {
        let (to, chains) = sync_channel(1);
        let thread = std::thread::Builder::new().name("chains".into());
        match thread.spawn(move || release_all(&chains)) {
            Ok(_) => Self(Some(to)),
            Err(e) => {
                tracing::error!("workflows with --workflow-end are not released: no thread: {e}");
                Self(None)
            }
        }
    }

    /// Those that the next reading still has held are tried again.
    pub(super) fn release(&self, reading: &SlurmReading) {
        let whole = whole_chains(reading);
        if let Some(to) = self.0.as_ref().filter(|_| !whole.is_empty()) {
            let _ = to.try_send(whole);
        }
    }
}

fn release_all(chains: &Receiver<Vec<WholeChain>>) {
    for (first, others) in chains.iter().flatten() {
        let comment = ChainOptions::comment_of_first(&others);
        if let Err(e) = release_with_comment(first, &comment) {
            tracing::warn!("job {first} of a workflow whose end is named stays held: {e}");
        }
    }
}

fn whole_chains(reading: &SlurmReading) -> Vec<WholeChain> {
    let jobs = reading.snapshot.jobs.values();
    let options = jobs.map(|job| (job.number, ChainOptions::of_comment(&job.admin_comment)));
    let options: BTreeMap<SlurmJobId, ChainOptions> = options
        .filter(|(_, options)| options.is_of_chain())
        .collect();
    let is_held = |job: &SlurmJobId| {
        reading
            .snapshot
            .jobs
            .get(job)
            .is_some_and(|j| j.reason.is_held())
    };
    let ends = options.iter().filter(|(_, options)| options.is_end);
    let firsts = ends
        .filter_map(|(last, _)| first_of(&options, *last))
        .filter(is_held);
    let whole = firsts.map(|first| {
        let others = options.keys().copied();
        let others = others.filter(|job| *job != first && first_of(&options, *job) == Some(first));
        (first, others.collect())
    });
    whole.collect()
}

/// The first job of a job's chain, if it is still there.
fn first_of(options: &BTreeMap<SlurmJobId, ChainOptions>, job: SlurmJobId) -> Option<SlurmJobId> {
    let mut at = job;
    // A job continues one that was there before it.
    loop {
        match options.get(&at)?.prior {
            None => return Some(at),
            Some(prior) if prior < at => at = prior,
            Some(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_walked_to_its_first_job() {
        let comments = [
            (1, "[tarn start]"),
            (2, "a note [tarn prior=1]"),
            (3, "[tarn prior=1 same-nodes]"),
            (4, "[tarn prior=3 end]"),
            (5, ""),
            (9, "[tarn prior=9]"),
            (8, "[tarn prior=7]"),
        ];
        let options = comments.map(|(job, comment)| (job, ChainOptions::of_comment(comment)));
        let mut options = BTreeMap::from(options);
        options.retain(|_, options| options.is_of_chain());
        assert_eq!(options.len(), 6);
        for (job, first) in [
            (1, Some(1)),
            (4, Some(1)),
            (2, Some(1)),
            (9, None),
            (8, None),
            (5, None),
        ] {
            assert_eq!(first_of(&options, job), first, "{job}");
        }
    }
}
