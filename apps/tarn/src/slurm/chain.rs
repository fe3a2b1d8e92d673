//! Workflows described by numbers of jobs: the options `--workflow-...` of the NEXTGenIO fork. docs/internals/site.md, "The
//! fork's flags".
//!
//! `job_submit.lua` writes these options into the second line of the script, and into the job's AdminComment. Here both are read, and the
//! first job is released when the last one is there.

use super::command::run_command;
use crate::error::{CliError, CliResult};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tarn_proto::site::{Chain, SlurmJobId};
use tarn_types::codes::Exit;

/// The script's line.
const LINE: &str = "#TARN-WORKFLOW";
/// The words of tarn in a comment are between these.
const OPEN: &str = "[tarn ";
const CLOSE: char = ']';
/// How long the last job may take to have a number.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks at that.
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes of a comment that `squeue` prints.
const COMMENT: usize = 16_384;

/// A job's options, from a line of its script or from its comment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct JobChainOptions {
    is_start: bool,
    prior: Option<SlurmJobId>,
    is_end: bool,
    same_nodes: bool,
    /// The jobs that were there when the end was named.
    pub(super) others: Vec<SlurmJobId>,
}

impl JobChainOptions {
    /// Of a job's comment, in which others may have written too.
    pub(super) fn of(comment: &str) -> Self {
        let words = comment.split_once(OPEN).map(|(_, rest)| rest);
        let words = words.and_then(|rest| rest.split_once(CLOSE));
        words.map_or_else(Self::default, |(words, _)| Self::read(words))
    }

    fn read(words: &str) -> Self {
        let mut mark = Self::default();
        for word in words.split_whitespace() {
            match word.split_once('=') {
                None if word == "start" => mark.is_start = true,
                None if word == "end" => mark.is_end = true,
                None if word == "same-nodes" => mark.same_nodes = true,
                Some(("prior", job)) => mark.prior = job.parse().ok(),
                Some(("jobs", jobs)) => {
                    mark.others = jobs.split(',').filter_map(|job| job.parse().ok()).collect();
                }
                _ => {}
            }
        }
        mark
    }

    fn is_of_chain(&self) -> bool {
        self.is_start || self.prior.is_some()
    }
}

/// A job's place in its chain, if its script says one in its second line, and the script as its user wrote it.
pub(super) fn taken_out(text: &str) -> (Option<Chain>, Cow<'_, str>) {
    let second = text.find('\n').map_or(text.len(), |at| at + 1);
    let (first, rest) = text.split_at(second);
    let Some(words) = rest.strip_prefix(LINE) else {
        return (None, Cow::Borrowed(text));
    };
    let (words, rest) = words.split_once('\n').unwrap_or((words, ""));
    let mark = JobChainOptions::read(words);
    let chain = Chain {
        prior: mark.prior,
        is_end: mark.is_end,
        same_nodes: mark.same_nodes,
        others: Vec::new(),
    };
    let chain = mark.is_of_chain().then_some(chain);
    (chain, Cow::Owned([first, rest].concat()))
}

/// A job that continues this one has named the end of a chain. When it has a number, the first job learns all the others, and is
/// released.
pub(super) fn whole(prior: SlurmJobId, user: u32) -> CliResult<()> {
    let until = Instant::now() + TIMEOUT;
    let user = user.to_string();
    let format = format!("JobID:12,admin_comment:{COMMENT}");
    let jobs = loop {
        let queue = run_command("squeue", &["-h", "-u", &user, "-O", &format])?;
        let jobs = marks(&queue);
        if jobs.values().any(|m| m.is_end && m.prior == Some(prior)) {
            break jobs;
        }
        if Instant::now() >= until {
            let text = format!("no job that continues the workflow of {prior} ends it");
            return Err(CliError::new(Exit::NotFound, text));
        }
        std::thread::sleep(PAUSE);
    };
    let Some(first) = first_of(&jobs, prior) else {
        // It was released before, and is over.
        return Ok(());
    };
    let others = jobs
        .keys()
        .filter(|job| **job != first && first_of(&jobs, **job) == Some(first));
    let others: Vec<String> = others.map(SlurmJobId::to_string).collect();
    let id = first.to_string();
    let comment = format!("admincomment={OPEN}start jobs={}{CLOSE}", others.join(","));
    run_command("scontrol", &["update", &format!("jobid={id}"), &comment])?;
    run_command("scontrol", &["release", &id])?;
    Ok(())
}

/// The jobs in the output of `squeue` that belong to a chain.
fn marks(queue: &str) -> BTreeMap<SlurmJobId, JobChainOptions> {
    let jobs = queue.lines().filter_map(|line| {
        let (id, comment) = line.split_once(char::is_whitespace)?;
        Some((id.parse().ok()?, JobChainOptions::of(comment)))
    });
    jobs.filter(|(_, mark)| mark.is_of_chain()).collect()
}

/// The first job of a job's chain, if it is still there.
fn first_of(jobs: &BTreeMap<SlurmJobId, JobChainOptions>, job: SlurmJobId) -> Option<SlurmJobId> {
    let mut at = job;
    // A job continues one that was there before it.
    loop {
        let mark = jobs.get(&at)?;
        match mark.prior {
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
    fn the_line_is_taken_out_of_the_script() {
        let text = "#!/bin/bash\n#TARN-WORKFLOW prior=17 end same-nodes\n#TARN [[step]]\n";
        let (chain, script) = taken_out(text);
        let expected = Chain {
            prior: Some(17),
            is_end: true,
            same_nodes: true,
            others: vec![],
        };
        assert_eq!(chain, Some(expected));
        assert_eq!(script, "#!/bin/bash\n#TARN [[step]]\n");
        let (chain, script) = taken_out("#!/bin/bash\n#TARN-WORKFLOW start");
        assert!(chain.is_some_and(|chain| chain.prior.is_none()));
        assert_eq!(script, "#!/bin/bash\n");
        for plain in ["", "\n", "#!/bin/sh", "#!/bin/sh\n#TARN x = 1\n"] {
            assert_eq!(taken_out(plain), (None, Cow::Borrowed(plain)));
        }
    }

    #[test]
    fn a_chain_is_walked_to_its_first_job() {
        let queue = "1   [tarn start]   \n2  a note [tarn prior=1]\n3 [tarn prior=1 same-nodes]\n4 [tarn prior=3 end]\n5\n9 [tarn prior=9]\n8 [tarn prior=7]\n";
        let jobs = marks(queue);
        assert_eq!(jobs.len(), 6);
        for (job, first) in [
            (1, Some(1)),
            (4, Some(1)),
            (2, Some(1)),
            (9, None),
            (8, None),
            (5, None),
        ] {
            assert_eq!(first_of(&jobs, job), first, "{job}");
        }
        assert_eq!(
            JobChainOptions::of("[tarn start jobs=2,3,4]").others,
            [2, 3, 4]
        );
        assert_eq!(JobChainOptions::of("[tarn"), JobChainOptions::default());
    }
}
