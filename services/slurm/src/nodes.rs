//! One tarnd on each node, by one srun.
//!
//! srun passes its input to every node and the output of every node back; while its standard input is open, tarnd
//! serves, and when that is closed, by [`SrunNodes::drop`] or by this process's death, it ends. srun itself is not to
//! be killed: it would leave the nodes as they are, with nobody to end them (Slurm 22.05).

use crate::command::{answer, wait_until};
use crate::power::joules;
use crate::{SlurmAllocation, SlurmError};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_proto::node::{NodeStartInput, NodeStartReport};

/// Bytes of a line from a node.
const MAX_LINE: u64 = 64 << 10;
/// Lines that wait to be looked at.
const MAX_LINES: usize = 1024;
/// The last lines of the output of srun and the nodes that are kept for messages.
const KEPT_LINES: usize = 20;
/// Bytes of it that go into a log.
const MAX_LOG: u64 = 64 << 20;
/// For tarnd to end after its standard input was closed: it stops running steps.
const GOODBYE: Duration = Duration::from_secs(20);
/// For Slurm to end the step after `scancel`.
const CANCELLED: Duration = Duration::from_secs(5);

/// A start on all nodes by srun.
pub struct SrunLaunch<'a> {
    /// The program, at a path that all nodes see.
    pub program: &'a Path,
    /// Its arguments.
    pub words: &'a [String],
    /// Its first input.
    pub start: &'a NodeStartInput,
    /// Its name in Slurm.
    pub name: &'a str,
    /// For all nodes to report that they have started.
    pub timeout: Duration,
}

/// The standard error of srun and the nodes.
#[derive(Default)]
struct SrunErrorLog {
    last: VecDeque<String>,
    log: Option<(File, u64)>,
}

/// tarnd on the nodes of an allocation; dropped, it ends there.
pub struct SrunNodes {
    srun: Child,
    input: Option<ChildStdin>,
    error_log: Arc<Mutex<SrunErrorLog>>,
    job: String,
    name: String,
}

impl SrunNodes {
    /// Starts it on all nodes of the allocation; returns their reports, in the order of the allocation's nodes.
    ///
    /// # Errors
    /// When it does not start on each of them in time; then it is ended where it did.
    pub fn start(
        allocation: &SlurmAllocation,
        launch: &SrunLaunch<'_>,
    ) -> Result<(Self, Vec<NodeStartReport>), SlurmError> {
        if !launch.program.is_file() {
            return Err(SlurmError::NoProgram {
                program: launch.program.display().to_string(),
            });
        }
        let system = |source| SlurmError::Command {
            command: "srun".into(),
            source,
        };
        let mut srun = command(allocation, launch).spawn().map_err(system)?;
        let error_log = Arc::new(Mutex::new(SrunErrorLog::default()));
        if let Some(errors) = srun.stderr.take() {
            let error_log = Arc::clone(&error_log);
            std::thread::spawn(move || listen(errors, &error_log));
        }
        let (sender, lines) = sync_channel(MAX_LINES);
        if let Some(output) = srun.stdout.take() {
            std::thread::spawn(move || each_line(output, &sender));
        }
        let mut nodes = Self {
            input: srun.stdin.take(),
            srun,
            error_log,
            job: allocation.job.clone(),
            name: launch.name.to_owned(),
        };
        nodes.greet(launch.start).map_err(system)?;
        let started = nodes.all_started(&allocation.nodes, &lines, launch.timeout)?;
        Ok((nodes, started))
    }

    fn greet(&mut self, start: &NodeStartInput) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(start)?;
        line.push(b'\n');
        match &mut self.input {
            // An srun that has ended already writes why to standard error: that is looked at next.
            Some(input) => input.write_all(&line).or_else(|e| match e.kind() {
                std::io::ErrorKind::BrokenPipe => Ok(()),
                _ => Err(e),
            }),
            None => Ok(()),
        }
    }

    fn all_started(
        &mut self,
        names: &[String],
        lines: &Receiver<String>,
        timeout: Duration,
    ) -> Result<Vec<NodeStartReport>, SlurmError> {
        let until = Instant::now() + timeout;
        let mut started: BTreeMap<usize, NodeStartReport> = BTreeMap::new();
        let why = loop {
            if started.len() == names.len() {
                return Ok(started.into_values().collect());
            }
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => match serde_json::from_str::<NodeStartReport>(&line) {
                    Ok(one) => match position(names, &one.node) {
                        Some(at) => drop(started.insert(at, one)),
                        None => self.note(format!("{} is no node of this job", one.node)),
                    },
                    Err(_) => self.note(line),
                },
                Err(RecvTimeoutError::Timeout) => break format!("not within {timeout:?}"),
                Err(RecvTimeoutError::Disconnected) => break self.how_it_ended(),
            }
        };
        let missing = names.iter().enumerate();
        let missing = missing.filter(|(at, _)| !started.contains_key(at));
        let missing: Vec<&str> = missing.map(|(_, name)| name.as_str()).collect();
        Err(SlurmError::Missing {
            missing: missing.join(", "),
            why,
            output: match self.stderr_tail() {
                tail if tail.is_empty() => String::new(),
                tail => format!("; its messages:\n{tail}{}", hint(&tail)),
            },
        })
    }

    fn how_it_ended(&mut self) -> String {
        let soon = Instant::now() + Duration::from_secs(2);
        match wait_until(&mut self.srun, soon) {
            Some(status) => format!("srun ended: {status}"),
            None => "srun has closed its output".into(),
        }
    }

    fn note(&self, line: String) {
        lock(&self.error_log).add(line);
    }

    /// The last lines of srun and the nodes on standard error.
    pub fn stderr_tail(&self) -> String {
        let error_log = lock(&self.error_log);
        error_log
            .last
            .iter()
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Writes their past and future output into a file as well.
    pub fn log_to(&self, mut file: File) {
        let mut error_log = lock(&self.error_log);
        for line in &error_log.last {
            // A log that cannot be written is none.
            let _ = writeln!(file, "{line}");
        }
        error_log.log = Some((file, 0));
    }

    /// How srun has ended, if it has: then no node is served any more.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.srun.try_wait().ok().flatten()
    }

    /// Joules that Slurm has counted for the step on the nodes so far, all of them together, if it counts them.
    ///
    /// # Errors
    /// When Slurm cannot be asked.
    pub fn joules(&self) -> Result<Option<u64>, SlurmError> {
        let Some(id) = self.steps()?.into_iter().next() else {
            return Ok(None);
        };
        let words = [
            "--noheader",
            "--parsable2",
            "--format",
            "ConsumedEnergyRaw",
            "--jobs",
            &id,
        ];
        Ok(joules(&answer("sstat", &words, Duration::from_secs(10))?))
    }

    /// The steps of the job that have this one's name.
    fn steps(&self) -> Result<Vec<String>, SlurmError> {
        let words = [
            "--noheader",
            "--steps",
            "--jobs",
            &self.job,
            "--format",
            "%i %j",
        ];
        let steps = answer("squeue", &words, Duration::from_secs(10))?;
        let steps = steps.lines().filter_map(|l| l.trim().split_once(' '));
        let own = steps.filter(|(_, name)| name.trim() == self.name);
        Ok(own.map(|(id, _)| id.to_owned()).collect())
    }

    fn cancel(&self) -> Result<(), SlurmError> {
        for id in self.steps()? {
            answer("scancel", &["--signal=KILL", &id], Duration::from_secs(10))?;
        }
        Ok(())
    }
}

impl Drop for SrunNodes {
    fn drop(&mut self) {
        drop(self.input.take());
        if wait_until(&mut self.srun, Instant::now() + GOODBYE).is_some() {
            return;
        }
        // A node that hangs or is cut off: Slurm cancels the step, and if Slurm does not answer, the end of the job is
        // its end.
        let _ = self.cancel();
        if wait_until(&mut self.srun, Instant::now() + CANCELLED).is_none() {
            let _ = self.srun.kill();
            let _ = self.srun.wait();
        }
    }
}

fn lock(error_log: &Mutex<SrunErrorLog>) -> std::sync::MutexGuard<'_, SrunErrorLog> {
    error_log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SrunErrorLog {
    fn add(&mut self, line: String) {
        if let Some((file, written)) = &mut self.log
            && *written < MAX_LOG
        {
            *written += line.len() as u64 + 1;
            let _ = writeln!(file, "{line}");
        }
        if self.last.len() == KEPT_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }
}

/// The next line, without its end; a line that is too long comes in pieces.
fn line(from: &mut impl BufRead) -> Option<String> {
    let mut bytes = Vec::new();
    match from.take(MAX_LINE).read_until(b'\n', &mut bytes) {
        Ok(n) if n > 0 => Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
        _ => None,
    }
}

fn listen(errors: impl Read, error_log: &Mutex<SrunErrorLog>) {
    let mut errors = BufReader::new(errors);
    while let Some(line) = line(&mut errors) {
        lock(error_log).add(line);
    }
}

/// Reads to the end, whether anybody looks at it or not: nobody is to wait for that.
fn each_line(output: impl Read, sender: &SyncSender<String>) {
    let mut output = BufReader::new(output);
    while let Some(line) = line(&mut output) {
        let _ = sender.try_send(line);
    }
}

/// Advice on an error of srun.
fn hint(error_log: &str) -> &'static str {
    // Seen with 22.05: the loss of a node ends the job's containers on all of its nodes.
    match error_log.contains("container_p_join") {
        true => {
            "\nthe job's container (job_container/tmpfs) is gone, as when one of its nodes was lost: nothing starts in this job any more; continue in a new one"
        }
        false => "",
    }
}

/// The position of a node: a host may report its whole name where Slurm has the short one.
fn position(names: &[String], node: &str) -> Option<usize> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let exact = names.iter().position(|n| n == node);
    exact.or_else(|| {
        let mut alike = (0..names.len()).filter(|at| short(&names[*at]) == short(node));
        alike.next().filter(|_| alike.next().is_none())
    })
}

/// All options are explicit, and none is taken over from the start of this process or its job: an option of sbatch is a
/// variable that srun would take for its own.
fn command(allocation: &SlurmAllocation, launch: &SrunLaunch<'_>) -> Command {
    let mut srun = Command::new("srun");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let needed = ["SLURM_JOB_ID", "SLURM_CONF", "SLURM_WORKING_CLUSTER"];
        let slurms = ["SLURM", "SRUN_", "PMI"]
            .iter()
            .any(|p| text.starts_with(p));
        if slurms && !needed.contains(&&*text) {
            srun.env_remove(&name);
        }
    }
    let count = allocation.nodes.len();
    srun.arg(format!("--jobid={}", allocation.job));
    srun.arg(format!("--job-name={}", launch.name));
    srun.arg(format!("--nodes={count}"));
    srun.arg(format!("--ntasks={count}"));
    srun.arg(format!("--nodelist={}", allocation.nodes.join(",")));
    srun.args([
        "--ntasks-per-node=1",
        // Beside the steps that the job has already, its batch script among them.
        "--overlap",
        // All that the job has of a node's memory; without --cpus-per-task, all its cores.
        "--mem=0",
        "--cpu-bind=none",
        "--input=all",
        "--output=all",
        "--error=all",
        // One node's end is not the others'.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        "--mpi=none",
        "--export=ALL",
    ]);
    srun.arg("--").arg(launch.program).args(launch.words);
    srun.stdin(Stdio::piped());
    srun.stdout(Stdio::piped());
    srun.stderr(Stdio::piped());
    // Ctrl-C is for tarn: it ends the running steps in order, and the nodes with them.
    srun.process_group(0);
    srun
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_known_by_its_long_or_short_name() {
        let names = ["a", "b.site", "c.x", "c.y"].map(str::to_owned);
        assert_eq!(position(&names, "a"), Some(0));
        assert_eq!(position(&names, "a.site.org"), Some(0));
        assert_eq!(position(&names, "b"), Some(1));
        assert_eq!(position(&names, "c.y"), Some(3));
        assert_eq!(position(&names, "c"), None, "it may be either");
        assert_eq!(position(&names, "d"), None);
    }

    #[test]
    fn what_is_said_is_kept_in_bounds() {
        let error_log = Mutex::new(SrunErrorLog::default());
        let long = "x".repeat(usize::try_from(MAX_LINE).unwrap() + 5);
        let text = format!("{long}\n{}", "line\n".repeat(100));
        listen(text.as_bytes(), &error_log);
        assert_eq!(lock(&error_log).last.len(), KEPT_LINES);
        let mut whole = text.as_bytes();
        assert_eq!(
            line(&mut whole).unwrap().len(),
            usize::try_from(MAX_LINE).unwrap()
        );
        assert_eq!(line(&mut whole).unwrap(), "xxxxx");
    }
}
