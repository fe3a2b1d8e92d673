//! A user's work for a project: its other members read the data, and make parts beside it.

use super::UserStore;
use crate::work::{ConfinedPath, to_request_error};
use rustix::fs::{AtFlags, Gid as Group, Mode, chmodat, chownat, fchmod};
use rustix::io::Errno;
use std::path::Path;
use tarn_ports::{Control, Mover};
use tarn_proto::local::RequestError;
use tarn_proto::site::{Gid, Owner, Part};
use tarn_sys::beneath::Root;
use tarn_types::manifest::{EntryKind, Manifest};

/// Folders above a part that its project's members make: those of its dataset and of its version.
const ABOVE: usize = 2;

/// The mode of a project's file: its members read it.
fn shared(mode: u32, is_folder: bool) -> u32 {
    let is_run = is_folder || mode & 0o100 != 0;
    mode | 0o040 | if is_run { 0o010 } else { 0 }
}

impl UserStore {
    /// Lets the project's other members make parts beside this one.
    pub(super) fn open_to_members(&self, root: &Path, part: &Part) -> Result<(), RequestError> {
        let (Owner::Project(_), Some(folder)) = (part.owner, part.folder()) else {
            return Ok(());
        };
        for above in folder.ancestors().skip(1).take(ABOVE) {
            let held = self.held(root, &above.join("."), false)?;
            match fchmod(held.folder(), Mode::from_raw_mode(0o2770)) {
                // The member who has made it has done it.
                Ok(()) | Err(Errno::PERM) => {}
                Err(e) => return Err(held.failed("open to the project's members", e)),
            }
        }
        Ok(())
    }

    /// Gives data that a member has made to the project, if it is one's.
    pub(super) fn share_made(
        &self,
        held: &ConfinedPath,
        tree: &Path,
        part: &Part,
        control: &Control,
    ) -> Result<(), RequestError> {
        let Owner::Project(gid) = part.owner else {
            return Ok(());
        };
        let list = self.mover.list(tree, control);
        let mut list = list.map_err(|e| to_request_error(&e, &[held]))?;
        self.share(held, tree, gid, &mut list)
    }

    /// Gives a tree that has become a project's to its group, to be read; `manifest` is of it.
    pub(super) fn share(
        &self,
        held: &ConfinedPath,
        tree: &Path,
        gid: Gid,
        manifest: &mut Manifest,
    ) -> Result<(), RequestError> {
        let failed = |e: Errno| held.failed("give to the project", e);
        let top = Root::open(tree).map_err(failed)?;
        let group = Some(Group::from_raw(gid));
        let own = rustix::fs::fstat(&top).map_err(failed)?.st_mode & 0o7777;
        rustix::fs::fchown(&top, None, group).map_err(failed)?;
        fchmod(&top, Mode::from_raw_mode(shared(own, true))).map_err(failed)?;
        // The content of a folder comes after it: the folder's new mode may be what lets it be opened.
        for entry in &mut manifest.entries {
            let (folder, name) = top.holder(&entry.path).map_err(failed)?;
            chownat(&folder, name, None, group, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            if !matches!(entry.kind, EntryKind::Symlink(_)) {
                // A user who gives a file to a group loses such bits of its mode.
                entry.mode = shared(entry.mode & 0o1777, entry.is_folder());
                let mode = Mode::from_raw_mode(entry.mode);
                chmodat(&folder, name, mode, AtFlags::empty()).map_err(failed)?;
            }
        }
        Ok(())
    }
}
