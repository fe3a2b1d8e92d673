//! A step's helper has images taken when it is time, and resumes from one.

use super::take::{IMAGE_ARGUMENT, ORDER, Take, is_torn};
use super::{CONTENT, PROCESSES, StepImage, StepImagePlan, TAKING, alone, criu};
use crate::helper::protocol::ProcessEnd;
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tarn_ports::Mover;
use tarn_sys::{namespace, process};
use tarn_types::checkpoint::CheckpointId;
use tarn_types::event::Imaged;

/// The link of this end in `/proc/<pid>/fd`, as a process that prints there has it.
pub(crate) fn pipe_name(end: impl AsFd) -> io::Result<String> {
    Ok(format!("pipe:[{}]", rustix::fs::fstat(end)?.st_ino))
}

/// A step whose images are taken.
pub(crate) struct Imaging<'a> {
    plan: &'a StepImagePlan,
    root: Pid,
    pipe: String,
    number: u64,
    /// When the next is due; never, if that is beyond what a clock can hold.
    next: Option<Instant>,
    taker: Option<(Pid, ChildStdout)>,
}

impl<'a> Imaging<'a> {
    pub(crate) fn new(plan: &'a StepImagePlan, root: Pid, pipe: String) -> Self {
        let mut new = Self {
            plan,
            root,
            pipe,
            number: 0,
            next: None,
            taker: None,
        };
        new.wait();
        new
    }

    fn wait(&mut self) {
        self.next = Instant::now().checked_add(Duration::from_nanos(self.plan.every));
    }

    /// How long until the next is to be taken; none while one is.
    pub(crate) fn due(&self) -> Option<Duration> {
        let next = self.next.filter(|_| self.taker.is_none())?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Begins to take one if it is time; the result, if that has failed at once.
    pub(crate) fn look(&mut self) -> Option<Imaged> {
        if !self.due()?.is_zero() {
            return None;
        }
        let begun = self.begin();
        begun.err().map(|e| {
            self.wait();
            Imaged::NotTaken { why: e.to_string() }
        })
    }

    fn begin(&mut self) -> io::Result<()> {
        self.number += 1;
        let take = Take {
            plan: self.plan.clone(),
            id: CheckpointId {
                generation: self.plan.attempt.into(),
                number: self.number,
            },
            root: self.root.as_raw_nonzero().get(),
            pipe: self.pipe.clone(),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(IMAGE_ARGUMENT);
        command.env(ORDER, serde_json::to_string(&take)?);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // A signal that ends the step gently is for its processes: the taker must let go of them first.
        let mut child = process::ignoring(&mut command, Signal::TERM).spawn()?;
        let stdout = child.stdout.take();
        self.taker = stdout.map(|stdout| (Pid::from_child(&child), stdout));
        Ok(())
    }

    /// The result for the image that this process was to take, and whether the step must not continue after that.
    pub(crate) fn ended(&mut self, pid: Pid, end: ProcessEnd) -> Option<(Imaged, bool)> {
        let (_, mut stdout) = self.taker.take_if(|(taker, _)| *taker == pid)?;
        self.wait();
        let mut text = String::new();
        let read = stdout.read_to_string(&mut text);
        let what = read.ok().and_then(|_| serde_json::from_str(&text).ok());
        let mut what = what.unwrap_or_else(|| Imaged::NotTaken {
            why: "what was to take it was killed".into(),
        });
        let torn = self.plan.alone.is_some() && is_torn(end);
        if let (true, Imaged::NotTaken { why }) = (torn, &mut what) {
            why.push_str("; its connections may be held for ever, so it is ended");
        }
        Some((what, torn))
    }
}

/// A step that is being made of an image.
pub(crate) struct Restoring {
    criu: Pid,
    pub(crate) root: Pid,
    pub(crate) id: CheckpointId,
    /// How its first process has ended, should that be seen before CRIU has.
    early: Option<ProcessEnd>,
    log: PathBuf,
}

/// How that went.
pub(crate) enum Restored {
    /// The step runs; or its first process has ended already.
    Runs(Option<ProcessEnd>),
    /// It does not; why.
    Not(String),
}

impl Restoring {
    /// Begins it; the output of its processes goes there.
    pub(crate) fn begin(
        plan: &StepImagePlan,
        image: &StepImage,
        mover: &dyn Mover,
        print_to: OwnedFd,
    ) -> io::Result<Self> {
        let root =
            Pid::from_raw(image.root).ok_or_else(|| io::Error::other("it has no process"))?;
        let content = plan.folder.join(image.id.to_string()).join(CONTENT);
        if let Some(at) = &plan.alone {
            alone::begin(at, Some((&plan.folder, image)), mover)?;
        }
        let work = plan.folder.join(TAKING);
        std::fs::create_dir_all(&work)?;
        // Its own processes are to have no ids that those of the image have.
        namespace::set_last_pid(image.free)?;
        let mut command = plan.restore(&content.join(PROCESSES), &image.pipe);
        command.arg("-W").arg(&work).stdin(print_to);
        // They inherit nothing of it.
        let errors = File::create(work.join("errors"))?;
        let child = command.stdout(Stdio::null()).stderr(errors).spawn()?;
        Ok(Self {
            criu: Pid::from_child(&child),
            root,
            id: image.id,
            early: None,
            log: work.join(criu::RESTORE_LOG),
        })
    }

    /// The result of the restore, once CRIU has ended.
    pub(crate) fn ended(&mut self, pid: Pid, end: ProcessEnd) -> Option<Restored> {
        if pid == self.root {
            self.early = Some(end);
        }
        if pid != self.criu {
            return None;
        }
        Some(match end {
            ProcessEnd::Exited(0) => Restored::Runs(self.early),
            _ => Restored::Not(criu::reason(&self.log)),
        })
    }
}
