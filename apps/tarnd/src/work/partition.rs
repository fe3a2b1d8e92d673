//! Partitions of the dataspaces.

use super::{ConfinedPath, FilePoolState, TaskEndpoint, TaskPlan};
use crate::connection::ProgramConnectionId;
use crate::peers::unexpected;
use rustix::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tarn_partitions::{HEAD, MAX_UNIT, PAGE, PartitionDetails, PartitionFolder, SUFFIX, Serving};
use tarn_ports::Control;
use tarn_proto::local::{
    Allocation, Code, PartitionInfo, PeerTarndReply, PeerTarndRequest, RemotePartition, Reply,
    RequestError, UserId,
};
use tarn_tasks::{Finish, TaskSize};
use tarn_types::grant::admits;

/// Bytes of partitions in one reply: another request gets the rest.
const MAX_LISTED: usize = 48 << 10;
/// Bytes that one takes there beside its name, its text and its list.
const LISTED: usize = 64;

/// How long a stream that was closed may be there still, and between two looks.
const CLOSING: Duration = Duration::from_millis(300);
const BETWEEN: Duration = Duration::from_millis(5);

/// The folder of a partition's file, and its name in it.
fn place(tier_ref: &TaskEndpoint, make: bool) -> Result<(PartitionFolder, String), RequestError> {
    let held = ConfinedPath::open(tier_ref, make)?;
    let name = std::str::from_utf8(held.name()).ok();
    let name = name.and_then(|name| name.strip_suffix(SUFFIX));
    let name = name.ok_or_else(|| {
        let text = format!(
            "`{}` is no partition: its name ends with {SUFFIX}",
            held.place()
        );
        RequestError::new(Code::Invalid, text)
    })?;
    Ok((folder_of(&held)?, name.to_owned()))
}

fn folder_of(held: &ConfinedPath) -> Result<PartitionFolder, RequestError> {
    let folder = held.folder().try_clone().map_err(|e| {
        let text = format!("`{}` cannot be opened: {e}", held.place());
        RequestError::new(Code::Io, text)
    })?;
    Ok(PartitionFolder::opened(folder, held.shown().into()))
}

/// Bytes that a partition takes which is written by such units, if it is.
fn file(bytes: u64, unit: u32) -> u64 {
    HEAD.saturating_add(bytes)
        .checked_next_multiple_of(PAGE.max(unit.into()))
        .unwrap_or(u64::MAX)
}

/// Bytes that one takes.
fn takes(info: &PartitionDetails) -> u64 {
    file(info.size, info.unit)
}

/// Does an operation for which nobody else may have the partition open. For a moment, somebody may: a program of another node has
/// closed it, and the end of its stream is not noticed yet.
fn patiently(does: impl Fn() -> Result<(), RequestError>) -> Result<(), RequestError> {
    let until = Instant::now() + CLOSING;
    loop {
        match does() {
            Err(why) if why.code == Code::Busy && Instant::now() < until => {
                std::thread::sleep(BETWEEN);
            }
            done => return done,
        }
    }
}

/// The additional space that a partition needs.
pub(super) fn measure(
    plan: &TaskPlan,
    bytes: u64,
    how: &Allocation,
) -> Result<TaskSize, RequestError> {
    let space = match how {
        // One that is no unit is refused when it is made.
        Allocation::Make { unit, .. } => file(bytes, unit.unwrap_or(0).min(MAX_UNIT)),
        Allocation::MakeWith { .. } => file(bytes, MAX_UNIT),
        Allocation::Resize | Allocation::Grow => {
            let (folder, name) = place(&plan.from, false)?;
            let info = folder.look(&name)?;
            file(bytes, info.unit).saturating_sub(takes(&info))
        }
    };
    Ok(TaskSize { bytes: 0, space })
}

/// Makes one, or gives it another size.
pub(super) fn allocate(
    plan: &TaskPlan,
    bytes: u64,
    how: &Allocation,
) -> Result<Finish, RequestError> {
    let is_new = matches!(how, Allocation::Make { .. } | Allocation::MakeWith { .. });
    let (folder, name) = place(&plan.from, is_new)?;
    let before = if is_new {
        0
    } else {
        takes(&folder.look(&name)?)
    };
    let owner = rustix::process::geteuid().as_raw();
    let make = |made: Result<(), RequestError>| match made {
        // An earlier tarnd has come to the end.
        Err(why) if plan.resumed && why.code == Code::Exists => Ok(()),
        made => made,
    };
    match how {
        Allocation::Make { grants, unit } => {
            make(folder.create(&name, bytes, *unit, owner, grants.clone()))?;
        }
        Allocation::MakeWith { first } => {
            make(folder.create_with(&name, bytes, owner, first))?;
        }
        Allocation::Resize => patiently(|| folder.resize(&name, bytes))?,
        Allocation::Grow => drop(folder.grow(&name, bytes)?),
    }
    Ok(Finish {
        stored: takes(&folder.look(&name)?),
        replaced: before,
        ..Finish::nothing()
    })
}

/// Takes a partition away that nobody has open; bytes that were freed. None where it is no partition's file.
pub(super) fn delete(plan: &TaskPlan) -> Option<Result<u64, RequestError>> {
    let TaskEndpoint::Path { path, .. } = &plan.from else {
        return None;
    };
    path.ends_with(SUFFIX.as_bytes()).then(|| {
        let (folder, name) = place(&plan.from, false)?;
        let size = match folder.look(&name) {
            Err(why) if plan.resumed && why.code == Code::NotFound => return Ok(0),
            Err(why) if why.code == Code::Corrupt => 0,
            info => takes(&info?),
        };
        patiently(|| folder.delete(&name))?;
        Ok(size)
    })
}

/// Opens one for a program of another node.
pub(crate) fn serve(
    space: (String, PathBuf),
    path: &[u8],
    write: bool,
) -> Result<Serving, RequestError> {
    let shown = PathBuf::from(format!("{}/{}", space.0, String::from_utf8_lossy(path)));
    let tier_ref = TaskEndpoint::Path {
        space: Some(space),
        path: path.to_vec(),
    };
    let (folder, name) = place(&tier_ref, false)?;
    let (file, _) = folder.export_file(&name, write)?;
    Serving::new(file, &shown, write)
}

/// The partitions of a folder whose names come after one, as many as one reply holds.
pub(crate) fn list(
    space: (String, PathBuf),
    path: &[u8],
    after: &str,
    admits: impl Fn(&PartitionDetails) -> bool,
) -> Result<Vec<PartitionInfo>, RequestError> {
    let inside = match path {
        b"" => SUFFIX.as_bytes().to_vec(),
        path => [path, b"/", SUFFIX.as_bytes()].concat(),
    };
    let tier_ref = TaskEndpoint::Path {
        space: Some(space),
        path: inside,
    };
    let folder = folder_of(&ConfinedPath::open(&tier_ref, false)?)?;
    let mut space = MAX_LISTED;
    let all = folder.list()?.into_iter();
    let wanted = all.filter(|info| *info.name > *after && admits(info));
    let some = wanted.map_while(|info| {
        let text = info.damaged.as_ref().map_or(0, String::len);
        let takes = LISTED + info.name.len() + text + 8 * info.grants.len();
        space = space.checked_sub(takes)?;
        Some(PartitionInfo::from(info))
    });
    Ok(some.collect())
}

/// A program's query about partitions.
#[derive(Debug)]
pub(crate) enum PartitionQuery {
    /// This file, to be written too.
    One(bool),
    /// Those of this folder that come after a name.
    List(String),
}

/// Partitions for a program.
#[derive(Debug)]
pub(crate) struct PartitionRequest {
    /// The request that is answered.
    pub(crate) to: (ProgramConnectionId, u32),
    /// The node that has it, if it is another one.
    pub(crate) node: Option<String>,
    /// The space and its root; no root of another node's.
    pub(crate) space: (String, PathBuf),
    /// Below it.
    pub(crate) path: Vec<u8>,
    pub(crate) wanted: PartitionQuery,
    /// The user who asks, and their groups; none for a user who may have all.
    pub(crate) guest: Option<(UserId, Vec<u32>)>,
}

/// The reply.
pub(crate) struct PartitionReply {
    pub(crate) to: (ProgramConnectionId, u32),
    pub(crate) reply: Reply,
    pub(crate) file: Option<OwnedFd>,
}

impl PartitionRequest {
    pub(super) fn answer(self, shared: &FilePoolState) -> PartitionReply {
        let (reply, file) = match &self.wanted {
            PartitionQuery::One(write) if self.node.is_some() => {
                match self.open_there(shared, *write) {
                    Ok((far, stream)) => (Reply::OpenedThere(far), Some(stream)),
                    Err(why) => (Reply::Refused(why), None),
                }
            }
            PartitionQuery::One(write) => match self.open(*write) {
                Ok(file) => (Reply::Opened, Some(file)),
                Err(why) => (Reply::Refused(why), None),
            },
            PartitionQuery::List(after) => match self.list(shared, after) {
                Ok(some) => (Reply::Partitions(some), None),
                Err(why) => (Reply::Refused(why), None),
            },
        };
        PartitionReply {
            to: self.to,
            reply,
            file,
        }
    }

    fn admits(&self, info: &PartitionDetails, write: bool) -> bool {
        let Some((user, groups)) = &self.guest else {
            return true;
        };
        info.damaged.is_none() && admits(info.owner, &info.grants, *user, groups, write)
    }

    fn open(&self, write: bool) -> Result<OwnedFd, RequestError> {
        // A user who is not on its list does not learn whether there is one.
        let denied = || {
            let text = format!(
                "user {} may not have the partition, or it does not exist: its owner can make one with this user on its access list",
                self.guest.as_ref().map_or(0, |(user, _)| *user)
            );
            RequestError::new(Code::Denied, text)
        };
        let tier_ref = TaskEndpoint::Path {
            space: Some(self.space.clone()),
            path: self.path.clone(),
        };
        let (folder, name) = match (place(&tier_ref, false), &self.guest) {
            (Err(_), Some(_)) => return Err(denied()),
            (found, _) => found?,
        };
        match (folder.export_file(&name, write), &self.guest) {
            (Ok((file, info)), _) if self.admits(&info, write) => Ok(file),
            (Ok(_) | Err(_), Some(_)) => Err(denied()),
            (exported, None) => exported.map(|(file, _)| file),
        }
    }

    /// Has another node open it.
    fn open_there(
        &self,
        shared: &FilePoolState,
        write: bool,
    ) -> Result<(RemotePartition, OwnedFd), RequestError> {
        let ask = PeerTarndRequest::Export {
            space: self.space.0.clone(),
            path: self.path.as_slice().into(),
            write,
        };
        let node = self.node.as_deref().unwrap_or_default();
        shared.peers()?.open_partition(node, &ask)
    }

    fn list(
        &self,
        shared: &FilePoolState,
        after: &str,
    ) -> Result<Vec<PartitionInfo>, RequestError> {
        let Some(node) = &self.node else {
            return list(self.space.clone(), &self.path, after, |info| {
                self.admits(info, false)
            });
        };
        let ask = PeerTarndRequest::Partitions {
            space: self.space.0.clone(),
            path: self.path.as_slice().into(),
            after: after.to_owned(),
        };
        match shared.peers()?.ask(node, &ask, &Control::default())? {
            PeerTarndReply::Partitions(some) => Ok(some),
            _ => Err(unexpected(node)),
        }
    }
}
