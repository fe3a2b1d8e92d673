//! Objects of one node's store that another node's tarnd brings.

mod common;

use common::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use tarn_objects::{CheckpointErrorCode, NodeObjectStore};

/// The store of a node: a folder in its dataspace, the same on all.
fn store(node: &Daemon) -> NodeObjectStore {
    let path = node.path("fast/store");
    fs::create_dir_all(&path).unwrap();
    NodeObjectStore::open(Some(&path)).unwrap()
}

#[test]
fn an_object_is_brought_from_another_node_and_is_the_same_there() {
    let (a, b) = pair(&[]);
    let (here, there) = (store(&a), store(&b));
    let client = a.client();
    let fetch = |number| here.fetch_by(&client, "fields/rho", number, "b");
    let data = |seed| content(1_000_000, seed);
    assert_eq!(fetch(None).unwrap_err().code, CheckpointErrorCode::NotFound);
    for seed in 1..=3 {
        there.put("fields/rho", &data(seed), "f8").unwrap();
    }

    // The newest, then an older one, which does not become the newest.
    let newest = fetch(None).unwrap();
    assert_eq!((newest.number, &*newest.about), (3, "f8"));
    assert_eq!(fetch(Some(1)).unwrap().number, 1);
    assert_eq!(here.get("fields/rho", None).unwrap(), data(3));
    assert_eq!(here.get("fields/rho", Some(1)).unwrap(), data(1));
    let inode = |name: &str| a.path(name).metadata().unwrap().ino();
    let file = "fast/store/fields/rho/3.obj";
    assert_eq!(inode(file), inode("fast/store/fields/rho/newest.obj"));
    assert_eq!(a.path(file).metadata().unwrap().mode() & 0o333, 0);
    // A version that is here stays; one that was deleted here is fetched again.
    assert_eq!(fetch(Some(3)).unwrap(), newest);
    assert_eq!(fetch(None).unwrap(), newest);
    here.delete("fields/rho", Some(3)).unwrap();
    assert_eq!(fetch(None).unwrap(), newest);
    // The next number is behind all that were brought, also where all were deleted.
    assert_eq!(here.put("fields/rho", b"x", "").unwrap().number, 4);
    there.put("fields/rho", b"y", "").unwrap();
    for number in [None, Some(4)] {
        assert_eq!(fetch(number).unwrap_err().code, CheckpointErrorCode::Exists);
    }
    assert_eq!(here.get("fields/rho", None).unwrap(), b"x");

    // A version that was deleted there cannot be fetched, even if there is one of its number here.
    there.delete("fields/rho", None).unwrap();
    for number in [None, Some(4)] {
        assert_eq!(
            fetch(number).unwrap_err().code,
            CheckpointErrorCode::NotFound
        );
    }
    here.delete("fields/rho", None).unwrap();

    // A version that is damaged there does not arrive.
    there.put("k", &data(4), "").unwrap();
    let path = b.path("fast/store/k/1.obj");
    let mut bytes = fs::read(&path).unwrap();
    bytes[500_000] ^= 1;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, bytes).unwrap();
    let damaged = here.fetch_by(&client, "k", None, "b").unwrap_err();
    assert_eq!(damaged.code, CheckpointErrorCode::Corrupt, "{damaged}");
    assert_eq!(
        here.versions("k").unwrap_err().code,
        CheckpointErrorCode::NotFound
    );
    assert_eq!(fs::read_dir(a.path("fast/store/k")).unwrap().count(), 0);
    assert_eq!((a.leftovers(), b.leftovers()), (Vec::new(), Vec::new()));
}

#[test]
fn what_cannot_be_brought_is_told() {
    let (a, b) = pair(&[]);
    let (here, there) = (store(&a), store(&b));
    there.put("k", b"there", "").unwrap();
    let client = a.client();
    let code = |store: &NodeObjectStore, key, node| {
        store.fetch_by(&client, key, None, node).unwrap_err().code
    };
    assert_eq!(code(&here, "k", "c"), CheckpointErrorCode::Unsupported);
    assert_eq!(code(&here, "../k", "b"), CheckpointErrorCode::Invalid);
    let outside = tempfile::tempdir().unwrap();
    let outside = NodeObjectStore::open(Some(outside.path())).unwrap();
    assert_eq!(code(&outside, "k", "b"), CheckpointErrorCode::Unsupported);
    drop(b);
    assert!(matches!(
        code(&here, "k", "b"),
        CheckpointErrorCode::Io | CheckpointErrorCode::Lost
    ));
    assert_eq!(here.list().unwrap(), []);
}
