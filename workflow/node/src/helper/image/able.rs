//! Whether images can be taken and restored here: found out by doing both, as for a step.

use super::alone::{CONNECTED, MEMORY, TRIAL, memory};
use super::take::IMAGE_ARGUMENT;
use super::{CONTENT, Criu, OWN, StepImage, StepImagePlan, choose, criu};
use crate::helper::command::plain_shell;
use crate::helper::launch::{
    CommandOutcome, HelperLaunch, HelperProcess, StepStopper, StopUrgency, execute,
};
use crate::helper::namespaces::own_folder;
use crate::helper::protocol::{BindMount, Spec, StepIsolation};
use std::ffi::OsString;
use std::fs::File;
use std::iter::once;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tarn_ports::CapabilityError;
use tarn_ports::{Control, Mover};
use tarn_types::event::Imaged;

/// The time for an image and a restore of one shell on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether images of a step's processes can be taken and restored on this machine, with the `criu` of this environment; or why not.
/// With `alone`, of steps that are alone.
///
/// # Errors
/// The reason, as a sentence.
pub fn probe_images(
    helper: &Path,
    folder: &Path,
    env: &[(OsString, OsString)],
    mover: &dyn Mover,
    alone: bool,
) -> Result<(), CapabilityError> {
    let isolate = crate::helper::namespaces::isolation(helper, folder)
        .map_err(|why| CapabilityError::needs_namespaces(&why))?;
    try_images(helper, folder, isolate, env, mover, alone).map(drop)
}

/// As [`probe_images`], where it is known how steps are kept apart.
pub(crate) fn try_images(
    helper: &Path,
    folder: &Path,
    isolate: StepIsolation,
    env: &[(OsString, OsString)],
    mover: &dyn Mover,
    alone: bool,
) -> Result<Criu, CapabilityError> {
    let StepIsolation::Namespaces { user } = isolate else {
        return Err(CapabilityError::new("it needs namespaces"));
    };
    let criu = Criu::new(criu::find(env)?, user);
    let io = |e: std::io::Error| CapabilityError::new(format_args!("{}: {e}", folder.display()));
    let folder = own_folder(folder).map_err(io)?;
    let trial = ImageSupportTrial {
        helper,
        folder: &folder,
        isolate,
        criu: &criu,
        alone,
    };
    let tried = trial.both(mover);
    let _ = mover.remove(&folder);
    tried.map(|()| criu)
}

/// A step that only waits, in a folder of its own.
struct ImageSupportTrial<'a> {
    helper: &'a Path,
    folder: &'a Path,
    isolate: StepIsolation,
    criu: &'a Criu,
    /// It has a connection with itself.
    alone: bool,
}

impl ImageSupportTrial<'_> {
    fn both(&self, mover: &dyn Mover) -> Result<(), CapabilityError> {
        for folder in ["images", "own", "alone"] {
            let folder = self.folder.join(folder);
            std::fs::create_dir(&folder)
                .map_err(|e| CapabilityError::new(format_args!("{}: {e}", folder.display())))?;
        }
        self.run(None).map_err(|why| {
            CapabilityError::new(format_args!(
                "no image can be taken with {}: {why}",
                self.criu.program.display()
            ))
        })?;
        let images = self.folder.join("images");
        let chosen = choose(mover, &images, &Control::default(), |_, _| ());
        let image = chosen.map_err(|f| CapabilityError::new(f.message))?;
        let image = image.ok_or_else(|| {
            CapabilityError::new("the image that was taken on trial is not there")
        })?;
        self.run(Some(image)).map_err(|why| {
            CapabilityError::new(format_args!(
                "an image cannot be restored with {}: {why}",
                self.criu.program.display()
            ))
        })
    }

    /// Runs it until it is known whether an image is taken, or the one that it begins with is restored.
    fn run(&self, from: Option<StepImage>) -> Result<(), CapabilityError> {
        let io = |e: std::io::Error| {
            CapabilityError::new(format_args!("{}: {e}", self.folder.display()))
        };
        let stop = Arc::new(StepStopper::new().map_err(io)?);
        let seen = Arc::new(Mutex::new(None));
        let on_image = {
            let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
            let (images, alone) = (self.folder.join("images"), self.alone);
            move |what: Imaged| {
                if let (true, Imaged::Taken { id, .. }) = (alone, &what) {
                    let own = images.join(id.to_string()).join(CONTENT).join(OWN);
                    // It was not connected yet: the next one is what is wanted.
                    if !own.join("own").join(CONNECTED).exists() {
                        return;
                    }
                }
                if let Ok(mut seen) = seen.lock() {
                    seen.get_or_insert(what);
                }
                stop.ask(StopUrgency::Kill);
            }
        };
        let log = File::create(self.folder.join("log")).map_err(io)?;
        let mut process = HelperProcess::spawn(self.helper, log).map_err(|e| {
            CapabilityError::new(format_args!(
                "the helper process {} cannot be started: {e}",
                self.helper.display()
            ))
        })?;
        process.equip(HelperLaunch {
            spec: self.spec(from),
            note: self.folder.join("note"),
            meter: None,
            on_image: Some(Box::new(on_image)),
        });
        let (outcome, _) = execute(&mut [&mut process], &[], Some(TIMEOUT), &stop);
        drop(process);
        match (seen.lock().ok().and_then(|mut s| s.take()), outcome) {
            (Some(Imaged::Taken { .. } | Imaged::Restored { .. }), _) => Ok(()),
            (Some(Imaged::NotTaken { why } | Imaged::NotRestored { why, .. }), _) => {
                Err(CapabilityError::new(why))
            }
            (None, CommandOutcome::Broken(why) | CommandOutcome::NotRestored(why)) => {
                Err(CapabilityError::new(why))
            }
            // Nothing of a trial is copied.
            (Some(Imaged::Copied { .. } | Imaged::NotCopied { .. }) | None, _) => {
                Err(CapabilityError::new("it took too long"))
            }
        }
    }

    fn spec(&self, from: Option<StepImage>) -> Spec {
        let own = self.folder.join("own");
        let bind = |folder: &str| {
            let folder = self.folder.join(folder);
            BindMount {
                from: folder.clone(),
                to: folder,
                writable: true,
            }
        };
        let alone = self.alone.then(|| self.folder.join("alone"));
        let shm = alone.as_deref().map(|at| (MEMORY.to_owned(), memory(at)));
        Spec {
            isolate: self.isolate,
            node: "probe".into(),
            rename_host: false,
            locked: Vec::new(),
            stage: None,
            binds: vec![bind("own"), bind("images")],
            listen: None,
            cwd: own.clone(),
            cpus: Vec::new(),
            env: vec![("TARN".into(), self.helper.into())],
            command: Some(plain_shell(&match self.alone {
                true => format!("exec \"$TARN\" {IMAGE_ARGUMENT} {TRIAL}"),
                false => "echo begun > it; while :; do sleep 1000; done".into(),
            })),
            shared: None,
            tmpfs: None,
            tmp: None,
            images: Some(StepImagePlan {
                criu: self.criu.clone(),
                // The shell has begun by then, whatever else the machine does; it does not matter if not.
                every: 20_000_000,
                folder: self.folder.join("images"),
                attempt: 1,
                own: once(("own".into(), own)).chain(shm).collect(),
                sync: false,
                from,
                alone,
            }),
        }
    }
}

/// Whether these are the arguments of the process that takes an image.
pub fn is_taker(first: Option<&str>) -> bool {
    first == Some(IMAGE_ARGUMENT) || super::take::is_called()
}
