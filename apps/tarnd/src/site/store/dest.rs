//! Deliveries outside: one rule for folders and trees of an object store. Only data that tarn has put there for the same owner is
//! replaced.

use super::{UserStore, copying};
use crate::work::{ConfinedPath, TaskEndpoint, to_request_error};
use rustix::fs::{Access, AtFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tarn_node::{Destination, DestinationError, Intent, real_folder};
use tarn_ports::{Control, CopyJob, CopyReport, CopySource, DeliveryJob, Mover, MoverError, Over};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Owner, WorkResult};
use tarn_types::event::{RunError, RunErrorKind};
use tarn_types::object::is_object;
use tarn_types::part::Verify;

/// The remedy that a job needs when its delivery is refused.
const REMEDY: &str = "let the job's data be delivered again";

fn exists(why: DestinationError) -> RequestError {
    RequestError::new(Code::Exists, why.to_string())
}

impl UserStore {
    /// Whether data of this owner may be put there, before it is made.
    pub(super) fn check_dest(
        &self,
        dest: &Path,
        owner: &str,
        control: &Control,
    ) -> Result<WorkResult, RequestError> {
        if is_object(dest) {
            let mover = self.outside_mover(dest)?;
            let may = mover.may_deliver(dest, owner, control);
            return may
                .map(|()| WorkResult::Done)
                .map_err(|e| to_request_error(&e, &[]));
        }
        let real = self.real_dest(dest)?;
        // Folders that are missing are made with the delivery.
        let above = real.ancestors().skip(1).find(|a| a.exists());
        let above = above.unwrap_or(Path::new("/"));
        may_write(above)?;
        let place = Destination::beside(&real, owner, REMEDY);
        place.check(&self.mover).map_err(exists)?;
        Ok(WorkResult::Done)
    }

    /// The folder that is meant, apart from the node's own stores.
    fn real_dest(&self, dest: &Path) -> Result<PathBuf, RequestError> {
        let real = real_folder(dest).map_err(exists)?;
        let own = |root: &Path| root.join(Owner::User(self.user).to_string());
        let spaces = self.roots().map(|root| ("store".to_owned(), own(root)));
        let spaces: Vec<(String, PathBuf)> = spaces.collect();
        crate::work::check_outside(real.as_os_str().as_bytes(), &spaces)?;
        Ok(real)
    }

    /// Puts trees into an object store, as one. Only objects that the owner has put there are replaced.
    pub(super) fn put(
        &self,
        sources: Vec<CopySource>,
        (dest, owner): (&Path, &str),
        held: &[ConfinedPath],
        control: &Control,
    ) -> Result<CopyReport, RequestError> {
        if owner.is_empty() {
            let text = "the controller is older than this node's tarnd and does not know object stores: update it";
            return Err(RequestError::new(Code::Unsupported, text));
        }
        let mover = self.outside_mover(dest)?;
        let job = DeliveryJob {
            sources,
            dest: dest.to_owned(),
            owner: owner.to_owned(),
            over: Over::Own,
            single: false,
            verify: Verify::Readback,
            rate: 0,
            latency: 0,
        };
        let report = mover.deliver_limited(&job, control, self.outside.clone());
        report.map_err(|e| to_request_error(&e, &held.iter().collect::<Vec<_>>()))
    }

    /// Writes trees to a folder outside, as one.
    pub(super) fn write(
        &self,
        sources: Vec<CopySource>,
        (dest, owner): (&Path, &str),
        held: &[ConfinedPath],
        control: &Control,
    ) -> Result<CopyReport, RequestError> {
        let real = self.real_dest(dest)?;
        let path = real.as_os_str().as_bytes().to_vec();
        let to = ConfinedPath::open(&TaskEndpoint::Path { space: None, path }, true)?;
        let (write, plain) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty());
        let may = rustix::fs::accessat(to.folder(), ".", write, plain);
        may.map_err(|e| to.failed("write to", e))?;
        let mut known: Vec<&ConfinedPath> = held.iter().collect();
        known.push(&to);
        let failed = |failure: RunError| to_request_error(&of_failure(failure), &known);
        let place = Destination::beside(&to.path(), owner, REMEDY);
        place.check(&self.mover).map_err(|why| {
            failed(RunError {
                kind: RunErrorKind::Conflict,
                message: why.to_string(),
            })
        })?;
        let manifests: Vec<_> = sources.iter().filter_map(|s| s.manifest.as_ref()).collect();
        let mut intent = place.declare(&manifests, &self.mover).map_err(failed)?;
        let delivered = self.deliver(sources, &mut intent, control);
        match delivered {
            Ok(report) => {
                intent.fulfil(&report.manifests).map_err(failed)?;
                Ok(report)
            }
            Err(e) => {
                intent.abandon(&self.mover);
                Err(to_request_error(&e, &known))
            }
        }
    }

    fn deliver(
        &self,
        sources: Vec<CopySource>,
        intent: &mut Intent,
        control: &Control,
    ) -> Result<CopyReport, MoverError> {
        let job = CopyJob {
            verify: Verify::Readback,
            ..copying(
                sources,
                intent.ready().to_path_buf(),
                intent.staging().to_path_buf(),
            )
        };
        let limiter = self.outside.clone();
        let report = self.mover.copy_limited(&job, control, limiter)?;
        intent.confirm(&report.manifests).map_err(of_failure)?;
        intent.publish(&self.mover).map_err(of_failure)?;
        Ok(report)
    }
}

fn may_write(folder: &Path) -> Result<(), RequestError> {
    let (write, plain) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty());
    rustix::fs::accessat(rustix::fs::CWD, folder, write, plain).map_err(|e| {
        let text = format!("cannot write to `{}`: {e}", folder.display());
        RequestError::new(Code::Denied, text)
    })
}

fn of_failure(failure: RunError) -> MoverError {
    MoverError::new(failure.kind, failure.message)
}
