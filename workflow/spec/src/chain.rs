//! The options `--workflow-...` of the NEXTGenIO fork, as `job_submit.lua` writes them into the second line of a script and into a
//! job's AdminComment. docs/internals/site.md, "The fork's flags".

use std::borrow::Cow;

/// The script's line.
const LINE: &str = "#TARN-WORKFLOW";
/// The words of tarn in a comment are between these.
const OPEN: &str = "[tarn ";
const CLOSE: char = ']';

/// A job's place in a workflow that is given by numbers of jobs.
///
/// ```
/// use tarn_spec::ChainOptions;
///
/// let options = ChainOptions::of_comment("a note [tarn prior=17 end]");
/// assert!(options.is_end && options.prior == Some(17));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainOptions {
    /// It begins a workflow.
    pub is_start: bool,
    /// It continues the workflow of this job.
    pub prior: Option<u32>,
    /// It is the last one.
    pub is_end: bool,
    /// It runs on the nodes of the job before it.
    pub same_nodes: bool,
    /// Of the first one: the jobs that were there when the end was named.
    pub others: Vec<u32>,
}

impl ChainOptions {
    /// Of a job's comment, in which others may have written too.
    #[must_use]
    pub fn of_comment(comment: &str) -> Self {
        let words = comment.split_once(OPEN).map(|(_, rest)| rest);
        let words = words.and_then(|rest| rest.split_once(CLOSE));
        words.map_or_else(Self::default, |(words, _)| Self::read(words))
    }

    /// Of a script, and the script as its user wrote it. `None` if its second line has none.
    #[must_use]
    pub fn of_script(text: &str) -> (Option<Self>, Cow<'_, str>) {
        let second = text.find('\n').map_or(text.len(), |at| at + 1);
        let (first, rest) = text.split_at(second);
        let Some(words) = rest.strip_prefix(LINE) else {
            return (None, Cow::Borrowed(text));
        };
        let (words, rest) = words.split_once('\n').unwrap_or((words, ""));
        let options = Self::read(words);
        let options = options.is_of_chain().then_some(options);
        (options, Cow::Owned([first, rest].concat()))
    }

    /// The comment of the first job, once its workflow's end is named.
    #[must_use]
    pub fn comment_of_first(others: &[u32]) -> String {
        let others: Vec<String> = others.iter().map(u32::to_string).collect();
        format!("{OPEN}start jobs={}{CLOSE}", others.join(","))
    }

    /// Whether the job has a place in such a workflow.
    #[must_use]
    pub fn is_of_chain(&self) -> bool {
        self.is_start || self.prior.is_some()
    }

    fn read(words: &str) -> Self {
        let mut options = Self::default();
        for word in words.split_whitespace() {
            match word.split_once('=') {
                None if word == "start" => options.is_start = true,
                None if word == "end" => options.is_end = true,
                None if word == "same-nodes" => options.same_nodes = true,
                Some(("prior", job)) => options.prior = job.parse().ok(),
                Some(("jobs", jobs)) => {
                    options.others = jobs.split(',').filter_map(|job| job.parse().ok()).collect();
                }
                _ => {}
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_taken_out_of_the_script() {
        let text = "#!/bin/bash\n#TARN-WORKFLOW prior=17 end same-nodes\n#TARN [[step]]\n";
        let (options, script) = ChainOptions::of_script(text);
        let expected = ChainOptions {
            prior: Some(17),
            is_end: true,
            same_nodes: true,
            ..ChainOptions::default()
        };
        assert_eq!(options, Some(expected));
        assert_eq!(script, "#!/bin/bash\n#TARN [[step]]\n");
        let (options, script) = ChainOptions::of_script("#!/bin/bash\n#TARN-WORKFLOW start");
        assert!(options.is_some_and(|options| options.prior.is_none()));
        assert_eq!(script, "#!/bin/bash\n");
        for plain in ["", "\n", "#!/bin/sh", "#!/bin/sh\n#TARN x = 1\n"] {
            assert_eq!(ChainOptions::of_script(plain), (None, Cow::Borrowed(plain)));
        }
    }

    #[test]
    fn a_comment_of_the_first_job_names_the_others() {
        let comment = ChainOptions::comment_of_first(&[2, 3, 4]);
        assert_eq!(comment, "[tarn start jobs=2,3,4]");
        assert_eq!(ChainOptions::of_comment(&comment).others, [2, 3, 4]);
        assert_eq!(ChainOptions::of_comment("[tarn"), ChainOptions::default());
    }
}
