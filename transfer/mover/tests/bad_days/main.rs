//! Errors on bad days: each operation fails whole, with the source untouched and nothing visible.

mod changing;
#[path = "../common/mod.rs"]
mod common;
mod dividing;
mod refusals;
mod resuming;
mod shapes;

use common::*;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, CopyReport, CopySource, Mover, MoverError};
use tarn_types::event::RunErrorKind;

const CHUNK: usize = 1 << 20;

fn fails(outcome: Result<CopyReport, MoverError>, kind: RunErrorKind, expected: &str) -> String {
    let failure = outcome.expect_err("must fail").failure;
    assert_eq!(failure.kind, kind, "{}", failure.message);
    assert!(failure.message.contains(expected), "{}", failure.message);
    failure.message
}

/// Copies, and must fail like this.
fn refused(job: &CopyJob, kind: RunErrorKind, expected: &str) -> String {
    fails(Trees::new().copy(job, &quiet()), kind, expected)
}

/// A file that is there, to be written in.
fn writable(path: impl AsRef<Path>) -> File {
    File::options().write(true).open(path).unwrap()
}

fn with_manifest(from: &Path, to: &Path) -> CopyJob {
    let manifest = Trees::new().digest(from, &quiet()).unwrap();
    let source = CopySource {
        manifest: Some(manifest),
        ..source(from)
    };
    job(vec![source], to)
}

/// Starts a slow copy, waits until it has begun, does something, and returns how the copy ended.
fn meanwhile(
    job: &CopyJob,
    control: &Control,
    change: impl FnOnce() + Send,
) -> Result<CopyReport, MoverError> {
    let mut slow = job.clone();
    slow.rate = 80 << 20;
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| Trees::new().copy(&slow, control));
        while control.done.load(Ordering::Relaxed) == 0 && !copy.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        change();
        copy.join().unwrap()
    })
}
