//! Manifest files: a written file is read; any other bytes are refused.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tarn_types::hash::Hash;
use tarn_types::manifest::{
    Entry, EntryKind, Manifest, ManifestError, PathError, check_path, parent,
};

fn kinds() -> impl Strategy<Value = EntryKind> {
    let extents = proptest::collection::vec((1u64..1000, 1u64..1000), 0..4);
    prop_oneof![
        Just(EntryKind::Directory),
        proptest::collection::vec(1u8..255, 1..20).prop_map(|t| EntryKind::Symlink(t.into())),
        (any::<Option<u128>>(), any::<u32>(), extents).prop_map(|(hash, link_group, gaps)| {
            let mut at = 0;
            let extents: Vec<_> = gaps
                .iter()
                .map(|(gap, len)| {
                    at += gap + len;
                    (at - len, *len)
                })
                .collect();
            EntryKind::File {
                size: at + u64::from(link_group),
                hash: hash.map(Hash),
                link_group,
                extents: extents.into(),
            }
        }),
    ]
}

fn manifests() -> impl Strategy<Value = Manifest> {
    let name = proptest::collection::vec((1u8..=255).prop_filter("no /", |b| *b != b'/'), 1..5)
        .prop_filter("no dots", |n| n != b"." && n != b"..");
    let path = proptest::collection::vec(name, 1..4).prop_map(|names| names.join(&b'/'));
    let xattrs = proptest::collection::btree_map(
        proptest::collection::vec(1u8..255, 1..9),
        proptest::collection::vec(any::<u8>(), 0..9),
        0..3,
    );
    let entry = (kinds(), 0u32..0o10000, any::<i64>(), xattrs);
    proptest::collection::btree_map(path, entry, 0..12).prop_map(|entries| {
        let mut all: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
        for (path, (kind, mode, mtime, xattrs)) in entries {
            let xattrs = xattrs
                .into_iter()
                .map(|(n, v)| (n.into(), v.into()))
                .collect();
            for above in std::iter::successors(parent(&path), |p| parent(p)) {
                let folder = Entry {
                    path: above.into(),
                    kind: EntryKind::Directory,
                    mode: 0o755,
                    mtime: 0,
                    xattrs: Box::default(),
                };
                all.insert(above.to_vec(), folder);
            }
            let path: Box<[u8]> = path.into();
            all.entry(path.to_vec()).or_insert(Entry {
                path,
                kind,
                mode,
                mtime,
                xattrs,
            });
        }
        Manifest {
            entries: all.into_values().collect(),
        }
    })
}

/// The same bytes with a checksum that fits: as a malicious writer would make them.
fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    let checksum = Hash::of(&body).0.to_le_bytes();
    body.extend_from_slice(&checksum);
    body
}

proptest! {
    #[test]
    fn what_is_written_is_read(manifest in manifests()) {
        prop_assert_eq!(manifest.check(), Ok(()));
        let bytes = manifest.encode();
        prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest));
    }

    #[test]
    fn damage_is_found(manifest in manifests(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = manifest.encode();
        let at = at.index(bytes.len());
        prop_assert!(Manifest::decode(&bytes[..at]).is_err());
        bytes[at] ^= 1 << bit;
        prop_assert!(Manifest::decode(&bytes).is_err());
    }

    #[test]
    fn garbage_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Manifest::decode(&noise).is_err());
        let mut body = Manifest::default().encode()[..12].to_vec();
        body.extend_from_slice(&noise);
        if let Ok(manifest) = Manifest::decode(&sealed(body)) {
            prop_assert_eq!(manifest.check(), Ok(()));
        }
    }

    #[test]
    fn damage_with_a_fitting_checksum_never_panics(
        manifest in manifests(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = manifest.encode();
        bytes.truncate(bytes.len() - 16);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            if at >= 12 {
                bytes[at] = byte;
            }
        }
        if let Ok(manifest) = Manifest::decode(&sealed(bytes)) {
            prop_assert_eq!(manifest.check(), Ok(()));
        }
    }
}

fn file(path: &[u8]) -> Entry {
    Entry {
        path: path.into(),
        kind: EntryKind::File {
            size: 0,
            hash: None,
            link_group: 0,
            extents: Box::default(),
        },
        mode: 0o644,
        mtime: 0,
        xattrs: Box::default(),
    }
}

fn refused(entries: Vec<Entry>) -> PathError {
    let bytes = Manifest { entries }.encode();
    match Manifest::decode(&bytes) {
        Err(ManifestError::Path { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn paths_that_no_tree_has() {
    let one = |path: &[u8]| refused(vec![file(path)]);
    assert_eq!(one(b""), PathError::Empty);
    assert_eq!(one(b"/a"), PathError::Absolute);
    assert_eq!(one(b".."), PathError::Dots);
    assert_eq!(one(b"a\0b"), PathError::Nul);
    assert_eq!(one(b"a/b"), PathError::Parent);
    assert_eq!(one(&[b'x'; 4097]), PathError::Long);
    assert_eq!(refused(vec![file(b"b"), file(b"a")]), PathError::Order);
    assert_eq!(refused(vec![file(b"a"), file(b"a")]), PathError::Order);
    assert_eq!(refused(vec![file(b"a"), file(b"a/b")]), PathError::Parent);
    let strange = Entry {
        mode: 0o20000,
        ..file(b"a")
    };
    assert_eq!(refused(vec![strange]), PathError::Attributes);
    for bad in [&b"a/../b"[..], b"./a", b"a//b", b"a/"] {
        assert!(check_path(bad).is_err());
    }
    assert_eq!(check_path(b"a/..b/c."), Ok(()));
}

#[test]
fn another_format_is_told_apart() {
    assert_eq!(
        Manifest::decode(b"something else"),
        Err(ManifestError::Magic)
    );
    let mut newer = Manifest::default().encode();
    newer[8] = 9;
    assert_eq!(Manifest::decode(&newer), Err(ManifestError::Version(9)));
}

#[test]
fn the_bytes_of_version_1() {
    let folder = Entry {
        path: (*b"d").into(),
        kind: EntryKind::Directory,
        mode: 0o755,
        mtime: -1,
        xattrs: Box::default(),
    };
    let mut inside = file(b"d/f");
    inside.kind = EntryKind::File {
        size: 300,
        hash: Some(Hash(1)),
        link_group: 0,
        extents: Box::default(),
    };
    let bytes = Manifest {
        entries: vec![folder, inside],
    }
    .encode();
    let mut expect = b"TARNMAN\n\x01\0\0\0\x02".to_vec();
    expect.extend_from_slice(b"\x00\x01d\xed\x03\x01\x00\x00");
    expect.extend_from_slice(
        b"\x01\x02/f\xa4\x03\x02\x00\x02\xac\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x00\x00",
    );
    assert_eq!(bytes, sealed(expect));
}

#[test]
fn links_are_the_same_with_the_same_mode_and_attributes_only() {
    let link = |target: &[u8]| Entry {
        kind: EntryKind::Symlink(target.into()),
        ..file(b"l")
    };
    let with_mode = Entry {
        mode: 0,
        ..link(b"a")
    };
    let with_attribute = Entry {
        xattrs: [(b"security.x".as_slice().into(), b"1".as_slice().into())].into(),
        ..link(b"a")
    };
    assert!(link(b"a").same_content(&link(b"a")));
    for other in [link(b"b"), with_mode, with_attribute] {
        assert!(!link(b"a").same_content(&other), "{other:?}");
    }
}
