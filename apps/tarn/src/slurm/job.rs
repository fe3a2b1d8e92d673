//! A job, as Slurm knows it, and its script.

use super::command::run_command;
use crate::error::{CliError, CliResult};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tarn_proto::site::{Excluded, PlacementAdvice, SlurmJobId};
use tarn_spec::{ChainOptions, JobScript, SbatchScript, SpecError, check_site, parse_job};
use tarn_types::codes::Exit;

/// Bytes of a script; Slurm's own limit is 4 MB.
const MAX_SCRIPT: u64 = 8 << 20;

/// Slurm's data about a job.
#[derive(Debug)]
pub(super) struct SlurmJobInfo {
    /// The folder of its submission.
    pub(super) folder: PathBuf,
    /// It has ended with code 0, and is not put back into the queue.
    is_well: bool,
    /// Its nodes are being taken back: its code may not be known yet.
    is_completing: bool,
    list: String,
    /// As `scontrol update` takes it.
    dependency: String,
    /// Nodes where it is not to run, as a list of Slurm's.
    excluded: String,
    /// Nodes where it must run, as a list of Slurm's; `prefer`: features with `|` between them.
    required: String,
    prefer: String,
    partition: String,
    /// Of a task of an array: the array's job.
    array: Option<SlurmJobId>,
    /// Of the first job of a chain: the others.
    pub(super) others: Vec<SlurmJobId>,
}

/// Bytes of a text of a user's that is read.
const MAX_TEXT: usize = 4096;

/// Asks Slurm about a job. Texts of its user, such as its name and its account, may look like anything that Slurm prints about
/// jobs: so no such text is requested together with something else.
pub(super) fn about(job: SlurmJobId) -> CliResult<SlurmJobInfo> {
    let id = job.to_string();
    let squeue = |id: &str, how: &str, what: &str| {
        run_command("squeue", &["-h", "-t", "all", "-j", id, how, what])
    };
    let output = squeue(&id, "-o", SlurmJobFields::FORMAT)?;
    let Some(facts) = SlurmJobFields::of(&output, job) else {
        let show = |id: &str| run_command("scontrol", &["-o", "show", "job", id]);
        let output = show(&id)?;
        return match task_shown(&output, job) {
            Some(task) => shown(&show(&task)?),
            None => shown(&output),
        };
    };
    // Of an array that is named by its leading job's number there is a line of each task.
    let text = |name: &str| -> CliResult<String> {
        let output = squeue(&facts.alone, "-O", &format!("{name}:{MAX_TEXT}"))?;
        let output = output.lines().next().unwrap_or_default().trim_end();
        Ok(field_or_empty(output))
    };
    let folder = text("WorkDir")?;
    let code = text("exit_code")?;
    Ok(SlurmJobInfo {
        is_completing: facts.is_completing,
        folder: if folder.is_empty() {
            "/".into()
        } else {
            folder.into()
        },
        is_well: facts.has_ended && matches!(&code[..], "0" | "0:0"),
        // A job's preference is advice; not every Slurm reports it.
        prefer: text("prefer").unwrap_or_default(),
        others: ChainOptions::of_comment(&text("admin_comment")?).others,
        list: facts.list,
        dependency: facts.dependency,
        excluded: facts.excluded,
        required: facts.required,
        partition: facts.partition,
        array: facts.array,
    })
}

/// The format of the lines of `squeue` that [`alone`] reads.
pub(super) const ALONE: &str = "%A|%F|%K";

/// A name of this job alone: the number of a task of an array may be that of the array too.
pub(super) fn alone(output: &str, job: SlurmJobId) -> Option<String> {
    output.lines().find_map(|line| {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [number, array, task] = fields[..] else {
            return None;
        };
        let is_it = number.parse() == Ok(job);
        is_it.then(|| name_of(job, array, task))
    })
}

fn name_of(job: SlurmJobId, array: &str, task: &str) -> String {
    match task.trim().parse::<u32>() {
        Ok(task) => format!("{}_{task}", array.trim()),
        // Tasks that have not begun are one line together, as `1-9%2`; `N/A` if it is no array.
        Err(_) => job.to_string(),
    }
}

/// Fields of a job that Slurm itself writes: its user words none of them.
#[derive(Debug, PartialEq, Eq)]
struct SlurmJobFields {
    list: String,
    dependency: String,
    excluded: String,
    required: String,
    partition: String,
    array: Option<SlurmJobId>,
    has_ended: bool,
    is_completing: bool,
    /// As Slurm's commands take it, and as nothing but this job.
    alone: String,
}

impl SlurmJobFields {
    const FORMAT: &str = "%A|%N|%E|%x|%n|%P|%F|%K|%T|%e";

    /// Of the line of `squeue` that is of this job: of an array there are others.
    fn of(output: &str, job: SlurmJobId) -> Option<Self> {
        let line = output.lines().find_map(|line| {
            let (number, rest) = line.split_once('|')?;
            (number.trim().parse() == Ok(job)).then_some(rest)
        })?;
        let fields: Vec<&str> = line.split('|').collect();
        let [
            list,
            dependency,
            excluded,
            required,
            partition,
            array,
            task,
            state,
            end,
        ] = fields[..]
        else {
            return None;
        };
        Some(Self {
            list: field_or_empty(list),
            dependency: without_states(&field_or_empty(dependency)),
            excluded: field_or_empty(excluded),
            required: field_or_empty(required),
            partition: field_or_empty(partition),
            array: array.trim().parse().ok(),
            has_ended: has_ended(state, end),
            is_completing: state.trim() == COMPLETING,
            alone: name_of(job, array, task),
        })
    }
}

/// The state of a job whose nodes are being taken back.
const COMPLETING: &str = "COMPLETING";
/// How long that may take: epilogs end in it. From one look to the next.
const COMPLETES: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// The job, once its nodes are taken back. Before that, the code is 0 of a job whose time is over, or that Slurm puts back into the
/// queue.
pub(super) fn completed(job: SlurmJobId) -> CliResult<SlurmJobInfo> {
    let began = Instant::now();
    loop {
        let about = about(job)?;
        let is_open = about.is_well && about.is_completing;
        if !is_open || began.elapsed() >= COMPLETES {
            return Ok(about);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether Slurm has put a job back into its queue: it waits there. If Slurm does not answer, it has not.
pub(super) fn is_put_back(job: SlurmJobId) -> bool {
    let words = ["-h", "-t", "PENDING", "-j", &job.to_string(), "-o", "%A"];
    let output = run_command("squeue", &words).unwrap_or_default();
    output.lines().any(|line| line.trim().parse() == Ok(job))
}

/// Seconds by which the end of a job may be ahead of this host's clock.
const CLOCKS: u64 = 20;

/// Whether a job whose nodes are taken back has ended. One that Slurm puts back into the queue is pending again, with the code 0. While
/// it is completing, its end is that of its next start, or none.
fn has_ended(state: &str, end: &str) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let is_over = |end: u64| end <= now.saturating_add(CLOCKS);
    state.trim() != "PENDING" && end.trim().parse().is_ok_and(is_over)
}

/// The text of a field; empty if Slurm prints that there is none.
fn field_or_empty(output: &str) -> String {
    match output.trim() {
        "(null)" | "N/A" => String::new(),
        output => output.to_owned(),
    }
}

/// The fields of `scontrol` that tarn reads.
const FIELDS: [&str; 12] = [
    "JobState",
    "EndTime",
    "WorkDir",
    "ExitCode",
    "NodeList",
    "Dependency",
    "ExcNodeList",
    "ReqNodeList",
    "Prefer",
    "Partition",
    "ArrayJobId",
    "AdminComment",
];

/// A name of the job alone, if `scontrol` shows an array of which it is a task: there is a record of each task. The beginning of
/// a record is Slurm's; a record is not cut out, because a name of a user's may have a line that looks like one.
fn task_shown(output: &str, job: SlurmJobId) -> Option<String> {
    let mut records = output.lines().filter_map(|line| {
        let mut words = line.strip_prefix("JobId=")?.split(' ');
        (words.next()?.parse() == Ok(job)).then_some(words)
    });
    let (mut words, None) = (records.next()?, records.next()) else {
        return None;
    };
    let array = words.next()?.strip_prefix("ArrayJobId=")?;
    let task = words.next()?.strip_prefix("ArrayTaskId=")?;
    let (array, task): (SlurmJobId, u32) = (array.parse().ok()?, task.parse().ok()?);
    (output.lines().count() > 1).then(|| format!("{array}_{task}"))
}

/// Parses the output of `scontrol` about a job that `squeue` does not have. Names and comments are printed as their user has
/// worded them, before and behind the fields that are read here: where there are two fields of one name, nobody knows which is
/// Slurm's.
fn shown(output: &str) -> CliResult<SlurmJobInfo> {
    for name in FIELDS {
        if output.matches(&format!(" {name}=")).count() > 1 {
            let text = format!(
                "Slurm's answer about the job has `{name}=` twice: the job's name, its comment or a path looks like it; submit the job without that"
            );
            return Err(CliError::new(Exit::State, text));
        }
    }
    let field = |name: &str| {
        let start = output.find(&format!(" {name}="))? + name.len() + 2;
        let rest = &output[start..];
        let ends = rest.match_indices(' ').map(|(at, _)| at);
        // The next field begins with its name and `=`.
        let is_next = |at: &usize| {
            let word = rest[at + 1..].split([' ', '=']).next().unwrap_or("");
            let after = rest.get(at + 1 + word.len()..).unwrap_or("");
            !word.is_empty() && after.starts_with('=')
        };
        let end = ends.clone().find(is_next).unwrap_or(rest.trim_end().len());
        Some(field_or_empty(&rest[..end]))
    };
    let text_of = |name: &str| field(name).unwrap_or_default();
    Ok(SlurmJobInfo {
        is_completing: text_of("JobState") == COMPLETING,
        folder: field("WorkDir").map_or_else(|| "/".into(), PathBuf::from),
        is_well: field("ExitCode").is_some_and(|code| code == "0:0")
            && has_ended(&text_of("JobState"), &text_of("EndTime")),
        list: text_of("NodeList"),
        dependency: without_states(&text_of("Dependency")),
        excluded: text_of("ExcNodeList"),
        required: text_of("ReqNodeList"),
        prefer: text_of("Prefer"),
        partition: text_of("Partition"),
        array: text_of("ArrayJobId").parse().ok(),
        others: ChainOptions::of_comment(&text_of("AdminComment")).others,
    })
}

/// `afterok:1(unfulfilled),afterany:2(failed)` without what Slurm says of each.
fn without_states(output: &str) -> String {
    if output == "(null)" {
        return String::new();
    }
    let mut text = String::new();
    let mut depth = 0;
    for letter in output.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            letter if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    text
}

/// Has a job wait for the makers of its inputs, beside its user's own conditions, prefer the nodes that have most of it, if its
/// user prefers none, and get none where it would find no space.
pub(super) fn advise(job: SlurmJobId, advice: &PlacementAdvice) -> CliResult<()> {
    let about = about(job)?;
    let missing = advice.after.iter().filter(|other| {
        !about
            .dependency
            .contains(&format!("afterburstbuffer:{other}"))
    });
    let wanted = missing.map(|other| format!("afterok:{other},afterburstbuffer:{other}"));
    let own = Some(about.dependency.clone()).filter(|own| !own.is_empty());
    let all: Vec<String> = own.into_iter().chain(wanted).collect();
    let id = format!("jobid={job}");
    if !advice.after.is_empty() {
        run_command(
            "scontrol",
            &["update", &id, &format!("dependency={}", all.join(","))],
        )?;
    }
    if !advice.require.is_empty() {
        let nodes = format!("reqnodelist={}", advice.require.join(","));
        run_command("scontrol", &["update", &id, &nodes])?;
    } else if !advice.prefer.is_empty() && (!about.has_wish() || about.is_advised(advice)) {
        // Only a preference: the job does without where that fails.
        let _ = tarn_slurm::prefer(job, &advice.prefer);
    }
    if let Some(Excluded { own, full }) = &advice.exclude {
        // If that fails, the gate turns the job back if it has no space; the controller tries again.
        let _ = tarn_slurm::exclude(job, own, full);
    }
    Ok(())
}

impl SlurmJobInfo {
    /// Whether its script has ended with code 0, and no node of it was lost.
    pub(super) fn ended_well(&self) -> CliResult<bool> {
        if !self.is_well || self.list.is_empty() {
            return Ok(self.is_well);
        }
        let states = run_command("sinfo", &["-h", "-N", "-n", &self.list, "-o", "%t"])?;
        let mut states = states.split_whitespace();
        // `*`: it does not answer.
        Ok(!states.any(|state| state.starts_with("down") || state.ends_with('*')))
    }

    /// Its nodes, in their order.
    pub(super) fn nodes(&self) -> CliResult<Vec<String>> {
        if self.list.is_empty() {
            return Err(CliError::new(
                Exit::NotFound,
                "Slurm has given the job no nodes yet",
            ));
        }
        names(&self.list)
    }

    /// Whether what it prefers is an earlier advice.
    fn is_advised(&self, advice: &PlacementAdvice) -> bool {
        advice.is_again && self.required.is_empty()
    }

    /// Whether the user has said already where it is to run.
    pub(super) fn has_wish(&self) -> bool {
        !self.required.is_empty() || !self.prefer.is_empty()
    }

    /// The nodes that it is likely to get, as far as that is known: those that it must have, or those of its partitions that it prefers.
    pub(super) fn expected(&self) -> CliResult<Vec<String>> {
        if !self.required.is_empty() {
            return names(&self.required);
        }
        if self.prefer.is_empty() {
            return Ok(Vec::new());
        }
        // Nodes are preferred by features of their own names; of other features Slurm says that they are no nodes.
        let prefer: Vec<&str> = self.prefer.split('|').collect();
        let words = ["-h", "-N", "-p", &self.partition, "-n"];
        let known = run_command(
            "sinfo",
            &[&words[..], &[&prefer.join(","), "-o", "%N"]].concat(),
        );
        let known = known.unwrap_or_default();
        let is_there = |name: &&str| known.split_whitespace().any(|known| known == *name);
        let expected = prefer.into_iter().filter(is_there);
        Ok(expected.map(str::to_owned).collect())
    }

    /// Nodes where it is not to run.
    pub(super) fn excluded(&self) -> CliResult<Vec<String>> {
        names(&self.excluded)
    }
}

/// The nodes of a list of Slurm's, in their order.
fn names(list: &str) -> CliResult<Vec<String>> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let names = tarn_slurm::expand_hostlist(list);
    names.map_err(|e| CliError::new(Exit::State, e.to_string()))
}

/// Reads a script that was submitted in this folder, and its place in a chain. `None` when it says nothing to tarn.
pub(super) fn read(
    path: &Path,
    folder: &Path,
) -> CliResult<Option<(JobScript, Option<ChainOptions>)>> {
    parsed(&text(path)?, folder)
}

/// The same of the script of a job. Slurm 24.11 says of a task of an array where the script would be if the task had one of its own.
pub(super) fn read_of(
    job: SlurmJobId,
    about: &SlurmJobInfo,
    path: &Path,
) -> CliResult<Option<(JobScript, Option<ChainOptions>)>> {
    let array = about.array.filter(|array| *array != job && !path.exists());
    let text = match array {
        None => text(path)?,
        Some(array) => match of_array(path, array).filter(|path| path.exists()) {
            Some(path) => text(&path)?,
            None => run_command(
                "scontrol",
                &["write", "batch_script", &job.to_string(), "-"],
            )?,
        },
    };
    parsed(&text, &about.folder)
}

/// The path of the array's script, from that of its task: `hash.4/job.14/script`.
fn of_array(path: &Path, array: SlurmJobId) -> Option<PathBuf> {
    let spool = path.parent()?.parent()?.parent()?;
    let folder = format!("hash.{}/job.{array}", array % 10);
    Some(spool.join(folder).join(path.file_name()?))
}

fn text(path: &Path) -> CliResult<String> {
    let failed = |why: String| {
        CliError::new(
            Exit::NotFound,
            format!("cannot read the script {}: {why}", path.display()),
        )
    };
    let about = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?;
    if about.len() > MAX_SCRIPT {
        return Err(failed(format!("it has more than {MAX_SCRIPT} bytes")));
    }
    let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parsed(text: &str, folder: &Path) -> CliResult<Option<(JobScript, Option<ChainOptions>)>> {
    let (chain, text) = ChainOptions::of_script(text);
    let script = SbatchScript {
        name: "the script",
        text: &text,
    };
    match parse_job(&script, folder, chain.is_some()) {
        Ok(job) => Ok(job.map(|job| (job, chain))),
        Err(rejected) => Err(script_error(&rejected)),
    }
}

/// Whether a site can do what a script requests, judged by the script alone.
pub(super) fn possible(script: &JobScript) -> CliResult<()> {
    check_site(&script.parsed).map_err(|rejected| script_error(&rejected))
}

/// The problems of a script, in one line: Slurm shows no more.
fn script_error(rejected: &SpecError) -> CliError {
    let lines = rejected.problems().iter().take(3).map(|finding| {
        let line = finding
            .position()
            .map_or(String::new(), |(line, _)| format!("line {line}: "));
        let hint = finding
            .hint()
            .map_or(String::new(), |hint| format!(" ({hint})"));
        format!("{line}{}{hint}", finding.message())
    });
    let messages: Vec<String> = lines.collect();
    CliError::new(Exit::InvalidWorkflow, messages.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_an_array_is_named_alone() {
        let output = "12|11|1\n13|11|2\n11|11|3\n";
        assert_eq!(alone(output, 12).as_deref(), Some("11_1"));
        assert_eq!(alone(output, 11).as_deref(), Some("11_3"));
        assert_eq!(alone(output, 14), None);
        assert_eq!(alone("12|12|N/A\n", 12).as_deref(), Some("12"));
        assert_eq!(alone("11|11|4-9%2\n", 11).as_deref(), Some("11"));
    }

    #[test]
    fn a_name_forges_nothing_that_slurm_says_of_its_job() {
        let name = "a NodeList=n2 ExitCode=0:0 Dependency=(null),singleton ExcNodeList=n1 AdminComment=[tarn start jobs=7] b";
        let of = |name: &str, comment: &str| {
            shown(&format!(
                "JobId=1 JobName={name} UserId=u(1) JobState=FAILED Dependency=(null) ExitCode=1:0 EndTime=1796056674 RunTime=00:00:00 Partition=p ReqNodeList=(null) \
                 ExcNodeList=(null) NodeList=n1 BatchHost=n1 WorkDir=/tmp AdminComment= Comment={comment} StdErr=/x Power= \n"
            ))
        };
        let about = of("a b=c", "d").unwrap();
        assert_eq!((&about.list[..], about.is_well), ("n1", false));
        assert_eq!((&about.dependency[..], &about.excluded[..]), ("", ""));
        assert_eq!(about.folder, PathBuf::from("/tmp"));
        assert_eq!(about.others, Vec::<SlurmJobId>::new());
        for (name, comment) in [
            (name, ""),
            ("", name),
            ("x WorkDir=/etc", ""),
            ("", "x ExitCode=0:0"),
        ] {
            let why = of(name, comment).unwrap_err();
            assert!(why.to_string().contains("twice"), "{why}");
        }
        let lines = "3|n3|(null)|||p|3|N/A|PENDING|NONE\n1|n[1-2]|afterok:5(unfulfilled)||n1|p|7|4|COMPLETING|NONE\n";
        let facts = SlurmJobFields::of(lines, 1).unwrap();
        assert_eq!(
            (&facts.list[..], &facts.dependency[..]),
            ("n[1-2]", "afterok:5")
        );
        assert_eq!((&facts.required[..], facts.array), ("n1", Some(7)));
        assert_eq!((&facts.alone[..], facts.has_ended), ("7_4", false));
        assert_eq!(SlurmJobFields::of("", 1), None);
    }

    /// As squeue and scontrol of 22.05 print it at post_run.
    #[test]
    fn a_job_that_is_put_back_has_not_ended_well() {
        let ended = ["COMPLETING", "STAGE_OUT", "COMPLETED"];
        assert!(ended.iter().all(|state| has_ended(state, "1796056674")));
        // Far ahead: the limit of its next start.
        for (state, end) in [
            ("COMPLETING", "99996056674"),
            ("COMPLETING", "NONE"),
            ("PENDING", "NONE"),
            ("PENDING", "1796056674"),
            ("COMPLETING", "Unknown"),
        ] {
            assert!(!has_ended(state, end), "{state} {end}");
        }
        let put_back = "JobId=1 JobName=x JobState=PENDING ExitCode=0:0 EndTime=1796056674 NodeList= WorkDir=/tmp \n";
        assert!(!shown(put_back).unwrap().is_well);
        assert!(
            shown(&put_back.replace("PENDING", "STAGE_OUT"))
                .unwrap()
                .is_well
        );
    }

    #[test]
    fn of_an_array_that_scontrol_shows_the_task_is_asked_for_alone() {
        let record = |job, task| {
            format!(
                "JobId={job} ArrayJobId=11 ArrayTaskId={task} JobName=a WorkDir=/x NodeList=n{task} \n"
            )
        };
        let output = [record(13, "2"), record(12, "1"), record(11, "3")].concat();
        assert_eq!(task_shown(&output, 12).as_deref(), Some("11_1"));
        assert_eq!(task_shown(&output, 11).as_deref(), Some("11_3"));
        assert_eq!(task_shown(&output, 14), None);
        assert_eq!(task_shown(&record(12, "1"), 12), None, "it is alone");
        let rest = record(13, "2") + &record(11, "4-9%2");
        assert_eq!(task_shown(&rest, 11), None);
        // A name with a line that looks like a record.
        let forged = output.clone() + &record(12, "2");
        assert_eq!(task_shown(&forged, 12), None);
        assert!(shown(&forged).is_err());
    }

    #[test]
    fn the_script_of_an_array_is_found_from_where_its_tasks_would_be() {
        let task = Path::new("/spool/hash.4/job.14/script");
        let array = of_array(task, 3);
        assert_eq!(
            array.as_deref(),
            Some(Path::new("/spool/hash.3/job.3/script"))
        );
        assert_eq!(of_array(Path::new("script"), 3), None);
    }

    #[test]
    fn what_slurm_says_of_dependencies_is_left_out() {
        assert_eq!(without_states("(null)"), "");
        let output = "afterok:12(unfulfilled),afterany:3(failed)";
        assert_eq!(without_states(output), "afterok:12,afterany:3");
    }
}
