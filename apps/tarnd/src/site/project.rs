//! A project's data on a node: its folders are root's and the group's, their content its members'. docs/internals/site.md, "The
//! store on a node".

use super::stores::{NodeStores, having};
use rustix::fs::{Gid as Group, Mode, Uid as User};
use std::io;
use std::path::Path;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Gid, Owner, Part, StoreContent, Uid, Work};
use tarn_sys::beneath::Root;
use tarn_sys::users::{groups_of, primary_group};

/// The group that a user's worker has, and all groups of the user: the node decides. A user whom it does not know has the
/// wanted group alone.
pub(super) fn standing(user: Uid, wanted: Gid) -> io::Result<(Gid, Vec<Gid>)> {
    let Some(own) = primary_group(user)? else {
        return Ok((wanted, vec![wanted]));
    };
    let groups = groups_of(user, own)?;
    let group = if groups.contains(&wanted) {
        wanted
    } else {
        own
    };
    Ok((group, groups))
}

/// The projects that have a folder in some store.
pub(super) fn all(stores: &NodeStores) -> Vec<Gid> {
    let entries = stores.roots().map(std::fs::read_dir);
    let entries = entries.flatten().flatten().flatten();
    let gid = |e: std::fs::DirEntry| e.file_name().to_str()?.strip_prefix('p')?.parse().ok();
    let mut all: Vec<Gid> = entries.filter_map(gid).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Makes a project's folders, as far as names are tarn's own.
pub(super) fn make(root: &Path, gid: Gid) -> io::Result<()> {
    // Members write in the last one alone: they can put nothing in place of a folder that root makes again.
    let mut path = root.join(Owner::Project(gid).to_string());
    for below in ["d", Owner::NO_WORKFLOW] {
        make_one(&path, gid, 0o2750)?;
        path.push(below);
    }
    make_one(&path, gid, 0o2770)
}

fn make_one(path: &Path, gid: Gid, mode: u32) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)) {
        Ok(()) => {}
        // It was given to the group when it was made, unless that was interrupted.
        Err(rustix::io::Errno::EXIST) => {
            let about = rustix::fs::lstat(path)?;
            if about.st_gid == gid && about.st_mode & 0o7777 == mode {
                return Ok(());
            }
        }
        Err(e) => return Err(e.into()),
    }
    let (root, group) = (User::ROOT, Group::from_raw(gid));
    rustix::fs::chown(path, Some(root), Some(group))?;
    // After the owner: a file loses such bits when its owner changes.
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
    Ok(())
}

/// The user and group whose worker does this, which the controller leaves to the node. `None` when nothing is there to be done.
pub(super) fn actor(
    stores: &NodeStores,
    user: Uid,
    group: Gid,
    work: &Work,
) -> io::Result<Option<(Uid, Gid)>> {
    let part = match work {
        Work::Check(part) | Work::CheckIn(part, _) | Work::Move { part, .. } => Some(part),
        Work::Remove(things) => match &things[..] {
            [StoreContent::Part(part) | StoreContent::Copy(part, _)] => Some(part),
            _ => None,
        },
        _ => None,
    };
    match part {
        Some(part) if user == 0 => match part.owner {
            Owner::Project(gid) => Ok(maker(stores, part)?.map(|maker| (maker, gid))),
            Owner::User(_) => Ok(Some((user, group))),
        },
        _ => Ok(Some((user, group))),
    }
}

/// The user who has written a part here.
pub(super) fn maker(stores: &NodeStores, part: &Part) -> io::Result<Option<Uid>> {
    let Some(folder) = part.folder() else {
        return Ok(None);
    };
    let Some(root) = having(stores.roots(), part) else {
        return Ok(None);
    };
    let owner = part.owner.to_string();
    let inside = folder.strip_prefix(&owner).unwrap_or(&folder);
    let inside = std::os::unix::ffi::OsStrExt::as_bytes(inside.as_os_str());
    // As root, but opened beneath a folder of root's, and only looked at.
    let found = Root::open(&root.join(owner)).and_then(|top| top.folder(inside));
    match found {
        Ok(folder) => Ok(Some(rustix::fs::fstat(&folder)?.st_uid)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Refuses a project's data to users who are no members, and makes the project's folders for members.
pub(super) fn admit(
    stores: &NodeStores,
    part: &Part,
    user: Uid,
    group: Gid,
) -> Result<(), RequestError> {
    let Owner::Project(gid) = part.owner else {
        return Ok(());
    };
    let failed = |e: io::Error| {
        let text = format!("the folder of project {gid} cannot be made: {e}");
        RequestError::new(Code::Io, text)
    };
    let (_, groups) = standing(user, group).map_err(failed)?;
    if gid == 0 || !groups.contains(&gid) {
        let text = format!(
            "{part} is of project {gid}, and user {user} is not in that group on this node"
        );
        return Err(RequestError::new(Code::Denied, text));
    }
    let mut roots = stores.roots();
    roots.try_for_each(|root| make(root, gid)).map_err(failed)
}
