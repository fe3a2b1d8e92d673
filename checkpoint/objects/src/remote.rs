//! Objects of other nodes, brought by this node's tarnd.

use crate::folder::{KeyFolder, error};
use crate::object::{ObjectInfo, StoredObject};
use crate::store::NodeObjectStore;
use crate::writer::random;
use rustix::fs::{fstat, fsync, renameat};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use tarn_checkpoint_core::object::{NEWEST, check_key, file};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
use tarn_client::Client;
use tarn_proto::local::{Code as Why, RequestError, TaskLocation, TaskOperation, TaskSpec};
use tarn_sys::beneath::join;

/// How long a transfer may take.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// The file that tarnd makes, in a folder of its own.
const ARRIVED: &str = "object";

impl NodeObjectStore {
    /// Brings a version, or the newest, from the same store of another node: the folder of the same path in
    /// the dataspace of the same name. The tarnd that `$TARN_SOCKET` names copies it. It keeps its number,
    /// and is verified before anybody sees it.
    ///
    /// # Errors
    /// - [`NotFound`](CheckpointErrorCode::NotFound): `$TARN_SOCKET` is not set, or the node has no such
    ///   object.
    /// - [`Unsupported`](CheckpointErrorCode::Unsupported): the store is in no dataspace of this node's
    ///   tarnd, or that does not know the node.
    /// - [`Exists`](CheckpointErrorCode::Exists): another object has this number here.
    /// - [`Corrupt`](CheckpointErrorCode::Corrupt), [`Lost`](CheckpointErrorCode::Lost),
    ///   [`TimedOut`](CheckpointErrorCode::TimedOut) (after an hour),
    ///   [`NoSpace`](CheckpointErrorCode::NoSpace), [`Io`](CheckpointErrorCode::Io): why tarnd could not
    ///   bring it.
    ///
    /// # Examples
    /// It needs a tarnd on both nodes, each with a dataspace that has the store, so it is not run here:
    /// ```no_run
    /// use tarn_objects::NodeObjectStore;
    ///
    /// let store = NodeObjectStore::open(None)?; // that of $TARN_OBJECTS
    /// let info = store.fetch("fields/rho", None, "n2")?; // the newest version of node n2
    /// let object = store.map(&info.key, Some(info.number))?;
    /// # Ok::<(), tarn_objects::CheckpointError>(())
    /// ```
    pub fn fetch(
        &self,
        key: &str,
        number: Option<u64>,
        node: &str,
    ) -> Result<ObjectInfo, CheckpointError> {
        self.fetch_by(&Client::from_env().map_err(fault)?, key, number, node)
    }

    /// The same by another tarnd of this node.
    ///
    /// # Errors
    /// As [`NodeObjectStore::fetch`].
    pub fn fetch_by(
        &self,
        client: &Client,
        key: &str,
        number: Option<u64>,
        node: &str,
    ) -> Result<ObjectInfo, CheckpointError> {
        check_key(key)?;
        let (space, store) = self.place(client)?;
        let (part, folder) = KeyFolder::make(&self.root, key)?.begin_far(random()?)?;
        let own = join(&join(&store, key.as_bytes()), part.name.as_bytes());
        let to = TaskLocation::Space {
            name: space.clone(),
            path: (*join(&own, ARRIVED.as_bytes())).into(),
        };
        let name = number.map_or(NEWEST.to_owned(), file);
        let from = TaskLocation::Node {
            node: node.into(),
            space,
            path: (*join(&join(&store, key.as_bytes()), name.as_bytes())).into(),
        };
        copy(client, TaskOperation::Copy { from, to })?;
        let keep = &part.folder;
        let path = keep.path.join(&part.name).join(ARRIVED);
        let arrived = KeyFolder {
            fd: folder,
            path: keep.path.join(&part.name),
        };
        let fd = arrived.read(ARRIVED).map_err(error("open", &path))?;
        if fstat(&fd).map_err(error("examine", &path))?.st_size == 0 {
            let text = format!("this version of object {key:?} was deleted on {node}");
            return Err(CheckpointError::new(CheckpointErrorCode::NotFound, text));
        }
        let object = StoredObject::open(&fd, path.clone(), key, number)?;
        object.verify()?;
        fsync(&fd).map_err(error("sync", &path))?;
        let info = object.info();
        let _lock = keep.lock()?;
        let mut numbers = keep.numbers()?;
        if numbers.get(&info.number).is_some_and(|size| *size > 0) {
            let here = self.find(key, Some(info.number))?;
            if here.identity() == object.identity() {
                // The process that brought it may have been killed before this.
                fsync(&keep.fd).map_err(error("sync", &keep.path))?;
                return Ok(info);
            }
            let text = format!(
                "version {} of object {key:?} is here already, and differs from that of {node}: use separate keys on each node, or delete it here",
                info.number
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Exists, text));
        }
        numbers.insert(info.number, 1);
        let own_name = random()?;
        let name = file(info.number);
        let newest = numbers.into_iter().rev().find(|(_, size)| *size > 0);
        renameat(&arrived.fd, ARRIVED, &keep.fd, &name)
            .and_then(|()| keep.point(own_name, newest.map(|(n, _)| n)))
            .and_then(|()| fsync(&keep.fd))
            .map_err(error("name", &keep.path.join(&name)))?;
        Ok(info)
    }

    /// The dataspace of tarnd that has the store, and where in it.
    fn place(&self, client: &Client) -> Result<(String, Box<[u8]>), CheckpointError> {
        let path = &self.root.path;
        let real = std::fs::canonicalize(path).map_err(|e| {
            CheckpointError::new(
                CheckpointErrorCode::Io,
                format!("cannot find {}: {e}", path.display()),
            )
        })?;
        let real = real.as_os_str().as_bytes();
        let spaces = client.spaces().map_err(fault)?;
        let within = spaces.iter().find_map(|space| {
            let rest = real.strip_prefix(&*space.root.0)?;
            match rest {
                b"" => Some((space.name.clone(), rest.into())),
                [b'/', rest @ ..] => Some((space.name.clone(), rest.into())),
                _ => None,
            }
        });
        within.ok_or_else(|| {
            let text = format!(
                "the store {} is in no dataspace of this node's tarnd: start tarnd with --space NAME={}:SIZE",
                path.display(),
                path.display()
            );
            CheckpointError::new(CheckpointErrorCode::Unsupported, text)
        })
    }
}

/// Has a task done.
fn copy(client: &Client, kind: TaskOperation) -> Result<(), CheckpointError> {
    let done = client.carry_out(TaskSpec::new(kind), TIMEOUT);
    done.map(drop).map_err(fault)
}

/// The errors of tarnd, in the codes of this library.
fn fault(why: RequestError) -> CheckpointError {
    let code = match why.code {
        Why::Invalid => CheckpointErrorCode::Invalid,
        Why::Busy => CheckpointErrorCode::Busy,
        Why::NotFound => CheckpointErrorCode::NotFound,
        Why::Exists => CheckpointErrorCode::Exists,
        Why::NoSpace | Why::Quota => CheckpointErrorCode::NoSpace,
        Why::Corrupt => CheckpointErrorCode::Corrupt,
        Why::TimedOut => CheckpointErrorCode::TimedOut,
        Why::Lost => CheckpointErrorCode::Lost,
        Why::Unsupported | Why::Version | Why::Volatile => CheckpointErrorCode::Unsupported,
        Why::Internal => CheckpointErrorCode::Internal,
        Why::Denied | Why::Changed | Why::Io | Why::Cancelled | Why::Dependency => {
            CheckpointErrorCode::Io
        }
    };
    CheckpointError::new(code, why.text)
}
