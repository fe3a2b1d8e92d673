//! The folders of the dataspaces: held open and locked while tarnd serves them, and none of them within another, so that the
//! content of a dataspace is counted once.

use crate::TarndError;
use crate::work::{above, open_folder};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tarn_proto::local::{Code, RequestError, SpaceInfo, SpaceSpec};
use tarn_types::codes::Exit;

/// How long a lock is waited for: a tarnd that was killed a moment ago lets go when its last thread has ended.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Those of one tarnd, by name.
#[derive(Default)]
pub(super) struct SpaceRoots(BTreeMap<String, OwnedFd>);

impl SpaceRoots {
    /// Takes the folders of all, before anything is done there; of these, `given` are the command line's.
    pub(super) fn take_all(
        &mut self,
        given: &[(String, SpaceSpec)],
        all: Vec<SpaceInfo>,
    ) -> Result<(), TarndError> {
        let is_given = |space: &SpaceInfo| given.iter().any(|(name, _)| *name == space.name);
        // Last, so that the error about an overlap names those that can be changed at once.
        let (given, known): (Vec<_>, Vec<_>) = all.into_iter().partition(is_given);
        let first_given = known.len();
        for (at, space) in known.iter().chain(&given).enumerate() {
            let root = Path::new(OsStr::from_bytes(&space.root.0));
            let Err(why) = self.take(&space.name, root, TIMEOUT) else {
                continue;
            };
            let exit = match why.code {
                Code::Busy => Exit::Busy,
                _ if at >= first_given => Exit::Usage,
                // Made by a program before: its folder is gone, which its tasks report.
                _ => {
                    tracing::warn!("{}", why.text);
                    continue;
                }
            };
            return Err(TarndError::new(exit, anyhow::anyhow!(why.text)));
        }
        Ok(())
    }

    /// Takes a dataspace's folder; its lock is waited for so long.
    pub(super) fn take(
        &mut self,
        name: &str,
        root: &Path,
        timeout: Duration,
    ) -> Result<(), RequestError> {
        let refuse = |code, text: String| Err(RequestError::new(code, text));
        let shown = root.display();
        let folder = match open_folder(root) {
            Ok(folder) => folder,
            Err(e) => return refuse(Code::NotFound, format!("{shown} cannot be opened: {e}")),
        };
        let own = above(&folder);
        for (other, held) in &self.0 {
            let theirs = above(held);
            let within = |a: &[_], b: &[_]| a.first().is_some_and(|id| b.contains(id));
            if within(&own, &theirs) || within(&theirs, &own) {
                let text = format!(
                    "dataspaces `{name}` ({shown}) and `{other}` overlap: the folder of one is inside that of the other, so neither capacity would hold; choose separate folders, or remove one dataspace"
                );
                return refuse(Code::Invalid, text);
            }
        }
        let until = Instant::now() + timeout;
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Errno::WOULDBLOCK) => {
                    let text = format!(
                        "another tarnd serves {shown}, the folder of dataspace `{name}`: stop it, or choose another folder"
                    );
                    return refuse(Code::Busy, text);
                }
                Err(e) => {
                    tracing::warn!(
                        "{shown} cannot be locked ({e}): let no other tarnd have it as a dataspace"
                    );
                    break;
                }
            }
        }
        self.0.insert(name.to_owned(), folder);
        Ok(())
    }

    /// Lets go of all but these.
    pub(super) fn keep(&mut self, is: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is(name));
    }
}
