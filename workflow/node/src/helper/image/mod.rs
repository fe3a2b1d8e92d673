//! Images of a step's processes: taken every so often while it runs, and what it resumes from. docs/internals/local-world.md, "Images of
//! processes".

pub mod able;
pub(crate) mod alone;
pub mod copy;
mod criu;
mod kept;
mod pids;
pub(crate) mod restore;
pub mod take;

pub(crate) use kept::{choose, discard, put_back, whole};

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use tarn_sys::namespace::Clocks;
use tarn_types::checkpoint::CheckpointId;

/// The versions of [`StepImage`] and of the files beside it: docs/reference/formats.md. The second is of steps that are alone.
const FORMATS: RangeInclusive<u32> = 1..=2;
/// The content of an image, which is hashed.
const CONTENT: &str = "image";
/// In that: CRIU's files, the copies of the step's own folders, and [`StepImage`].
const PROCESSES: &str = "processes";
const OWN: &str = "own";
const ABOUT: &str = "about.json";
/// Beside it: its files and their hashes.
const MANIFEST: &str = "manifest";
/// An image that is being taken.
const TAKING: &str = ".taking";

/// The program that takes and restores images here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Criu {
    pub(crate) program: PathBuf,
    /// It has its rights in a user namespace only.
    unprivileged: bool,
}

/// The orders about images for the helper of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepImagePlan {
    pub(crate) criu: Criu,
    /// Nanoseconds from the end of one to the begin of the next.
    pub(crate) every: u64,
    /// The folder of the images, as the step sees it.
    pub(crate) folder: PathBuf,
    /// The attempt, which is an image's generation.
    pub(crate) attempt: u32,
    /// The step's own folders: the name in an image, and the path that the step sees.
    pub(crate) own: Vec<(String, PathBuf)>,
    /// Whether an image must outlive the machine.
    pub(crate) sync: bool,
    /// The image that the step resumes from.
    pub(crate) from: Option<StepImage>,
    /// Of a step that is alone: an empty folder, where memory of its own is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alone: Option<PathBuf>,
}

/// The facts that restoring an image needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepImage {
    format: u32,
    pub(crate) id: CheckpointId,
    /// The step's first process.
    root: i32,
    /// The pipe to which it printed.
    pipe: String,
    /// After this process id so many are free that CRIU's own processes are in nobody's way.
    free: i32,
    /// The clocks of its processes, in nanoseconds.
    monotonic: i64,
    boottime: i64,
    /// Of a step that is alone: by which addresses its processes reach each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<IpAddr>,
    /// Pipes with names in the step's own folders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pipes: Vec<NamedPipe>,
}

/// A pipe with a name, which no copy of a folder has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedPipe {
    /// The folder, as it is called in the image.
    of: String,
    /// Its path there.
    path: PathBuf,
    mode: u32,
}

impl StepImage {
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(crate) fn clocks(&self) -> Clocks {
        Clocks {
            monotonic: self.monotonic,
            boottime: self.boottime,
        }
    }
}
