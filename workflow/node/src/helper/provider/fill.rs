//! The first node fills the shared namespace before the step begins.

use super::NamespacePlan;
use std::path::PathBuf;
use tarn_ports::{Control, CopyJob, CopySource, Mover};
use tarn_types::event::RunError;
use tarn_types::part::Verify;

/// Below a node's folder: why it was not filled.
const WHY: &str = "filling";

/// Makes the datasets and copies into each its first content, compared with its manifest and read again. [`failure`] gives the
/// error.
pub(crate) fn fill(plan: &NamespacePlan, mover: &dyn Mover) -> bool {
    let filled = try_fill(plan, mover);
    if let Err(failure) = &filled {
        // Without it there is a poorer message.
        let _ = std::fs::write(plan.folder.join(WHY), &failure.message);
    }
    filled.is_ok()
}

/// Why it could not be filled.
pub(crate) fn failure(plan: &NamespacePlan) -> String {
    let why = std::fs::read_to_string(plan.folder.join(WHY));
    let why = why.unwrap_or_else(|_| "the process that did it was killed".into());
    format!("the shared namespace cannot be filled: {why}")
}

fn try_fill(plan: &NamespacePlan, mover: &dyn Mover) -> Result<(), RunError> {
    for part in &plan.parts {
        let dest = plan.mount().join(&part.name);
        if part.from.is_empty() {
            crate::storage::store::make_folder(&dest)?;
            continue;
        }
        let sources = part.from.iter().map(|(root, manifest)| {
            Ok(CopySource {
                manifest: Some(crate::storage::store::read_manifest(manifest)?),
                ..CopySource::of(root.clone())
            })
        });
        let job = CopyJob {
            sources: sources.collect::<Result<_, RunError>>()?,
            staging: plan
                .mount()
                .join(PathBuf::from(format!(".{}.filling", part.name))),
            dest,
            replace: false,
            verify: Verify::Readback,
            sync: false,
            rate: 0,
            latency: 0,
            arrivals: None,
            seal: None,
        };
        mover.copy(&job, &Control::default())?;
    }
    Ok(())
}
