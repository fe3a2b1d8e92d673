//! Two ends, and trees to send between them.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tarn_data_plane::{
    ContentTransport, DataClient, DataClientTimeouts, DataServer, Key, Limits, ReplicaRegistry,
    RunId, Tree,
};
use tarn_mover::Trees;
use tarn_ports::{Control, CopyJob, CopyReport, CopySource, Mover, MoverError, PeerTree};
use tarn_types::manifest::Manifest;
use tarn_types::part::Verify;

pub(crate) const RUN: RunId = [7; 16];
pub(crate) const KEY: Key = Key([9; 32]);

pub(crate) fn tree() -> Tree {
    Tree::Replica(b"key".as_slice().into())
}

/// A server that offers `from` under [`tree`].
pub(crate) struct Ends {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    pub(crate) replica_registry: Arc<ReplicaRegistry>,
    pub(crate) server: DataServer,
    pub(crate) client: Arc<DataClient>,
}

pub(crate) fn replica_registry() -> Arc<ReplicaRegistry> {
    let replica_registry = ReplicaRegistry::new();
    replica_registry.admit(RUN, KEY);
    Arc::new(replica_registry)
}

pub(crate) fn client_of(server: &DataServer) -> DataClient {
    DataClient {
        node: "n1".into(),
        address: server.address(),
        others: Vec::new(),
        run: RUN,
        key: KEY,
        timeout: DataClientTimeouts {
            stall: Duration::from_secs(20),
            crowded: Duration::from_secs(2),
            ..DataClientTimeouts::default()
        },
        way: ContentTransport::Clear,
    }
}

/// A wire to a server: `back` carries what comes from it to the client, for each connection.
pub(crate) fn wire(
    to: SocketAddr,
    back: impl Fn(TcpStream, TcpStream) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let back = Arc::new(back);
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(to).unwrap();
            let (mut c, mut s) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut c, &mut s);
                let _ = s.shutdown(Shutdown::Both);
            });
            let back = Arc::clone(&back);
            std::thread::spawn(move || back(server, client));
        }
    });
    address
}

impl Ends {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        Self::by(limits, ContentTransport::Clear)
    }

    /// Of a server that gives content so.
    pub(crate) fn by(limits: Limits, way: ContentTransport) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        let replica_registry = replica_registry();
        replica_registry.offer(&RUN, tree(), &from).unwrap();
        let server =
            DataServer::start("127.0.0.1:0", replica_registry.clone(), limits, way).unwrap();
        let client = Arc::new(client_of(&server));
        Self {
            dir,
            from,
            to,
            replica_registry,
            server,
            client,
        }
    }

    pub(crate) fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.from.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn manifest(&self) -> Manifest {
        digest(&self.from)
    }

    pub(crate) fn job(&self) -> CopyJob {
        job(vec![remote(&self.client, self.manifest())], &self.to)
    }

    pub(crate) fn fetch(&self) -> Result<CopyReport, MoverError> {
        copy(&self.job())
    }
}

pub(crate) fn digest(root: &Path) -> Manifest {
    Trees::new().digest(root, &Control::default()).unwrap()
}

pub(crate) fn remote(client: &Arc<DataClient>, manifest: Manifest) -> CopySource {
    let peer: Arc<dyn PeerTree> = Arc::new(client.tree(tree()));
    CopySource {
        peer: Some(peer),
        manifest: Some(manifest),
        ..CopySource::of(PathBuf::new())
    }
}

pub(crate) fn local(root: &Path) -> CopySource {
    CopySource {
        manifest: Some(digest(root)),
        ..CopySource::of(root)
    }
}

pub(crate) fn job(sources: Vec<CopySource>, to: &Path) -> CopyJob {
    CopyJob {
        sources,
        dest: to.into(),
        staging: to.with_extension("staging"),
        replace: false,
        verify: Verify::Copy,
        sync: false,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: None,
    }
}

pub(crate) fn copy(job: &CopyJob) -> Result<CopyReport, MoverError> {
    Trees::new().with_threads(3).copy(job, &Control::default())
}

/// Bytes with a period that no chunk size is a multiple of.
pub(crate) fn bytes(size: usize, seed: u8) -> Vec<u8> {
    let block: Vec<u8> = (0..65_521u32)
        .map(|i| i.wrapping_mul(2_654_435_761).rotate_left(7) as u8 ^ seed)
        .collect();
    let mut all = block.repeat(size.div_ceil(block.len()));
    all.truncate(size);
    all
}

/// The content of a folder, read with nothing but the standard library: kind and mode, time, content or target, inode's
/// links.
pub(crate) type Model = BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>, u64)>;

pub(crate) fn model(root: &Path) -> Model {
    let mut found = Model::new();
    walk(root, root, &mut found);
    found
}

fn walk(root: &Path, at: &Path, found: &mut Model) {
    for entry in std::fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        let (content, links) = if meta.is_dir() {
            walk(root, &path, found);
            (Vec::new(), 0)
        } else if meta.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            (target.into_os_string().into_encoded_bytes(), 0)
        } else {
            (std::fs::read(&path).unwrap(), meta.nlink())
        };
        let of = (meta.mode(), meta.mtime(), meta.mtime_nsec(), content, links);
        found.insert(path.strip_prefix(root).unwrap().into(), of);
    }
}

/// Nothing of a copy is left but perhaps its destination.
pub(crate) fn clean(job: &CopyJob) -> bool {
    let progress = job.staging.with_extension("staging.progress");
    !job.staging.exists() && !progress.exists()
}
