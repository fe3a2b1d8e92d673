//! Versions whose content follows from their number.

use std::collections::BTreeMap;
use tarn_checkpoint_core::arena::{
    self, Arena, ArenaHeader, PersistenceLevel, ProgramStart, VersionId,
};
use tarn_checkpoint_core::manifest::{
    CHUNK, Object, ObjectPiece, PieceLocation, RankManifest, Shape,
};
use tarn_ports::{MediumWindow, ReadableMedium};

pub(crate) fn header() -> ArenaHeader {
    ArenaHeader {
        identity: 0x1234_5678_9abc_def0,
        run: b"a run".as_slice().into(),
        start: ProgramStart {
            generation: 1,
            identity: 5,
        },
        rank: 3,
        ranks: 4,
    }
}

pub(crate) fn id(number: u64) -> VersionId {
    VersionId {
        generation: 1,
        number,
    }
}

/// The contents of a version's objects, by key; `scale` times as large as the smallest.
pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn content(number: u64, scale: usize) -> Content {
    let sizes = [
        ("a", 100),
        ("bb", 10_000),
        ("empty", 0),
        ("large", CHUNK as usize / 4 + 13),
    ];
    let byte = |i: usize| (i as u64).wrapping_mul(31).wrapping_add(number * 7) as u8;
    sizes
        .into_iter()
        .map(|(key, size)| (key.into(), (0..size * scale).map(byte).collect()))
        .collect()
}

/// Writes a version, its data first, and publishes it; all versions but the newest `keep` go.
pub(crate) fn commit(
    arena: &mut Arena,
    window: &mut impl MediumWindow,
    number: u64,
    keep: u64,
    scale: usize,
) {
    let content = content(number, scale);
    let lengths: Vec<u64> = content.values().map(|v| v.len() as u64).collect();
    let places = arena.places(window, &lengths).unwrap();
    let mut objects = Vec::new();
    for ((key, bytes), at) in content.iter().zip(places) {
        let mut sums = Vec::new();
        let mut to = at;
        for chunk in bytes.chunks(CHUNK as usize) {
            sums.push(window.write(to, chunk).unwrap());
            to += chunk.len() as u64;
        }
        objects.push(object(key, bytes.len(), PieceLocation::Arena(at), sums));
    }
    window.persist().unwrap();
    let new = Some((
        id(number),
        PersistenceLevel::Durable,
        RankManifest::of(objects),
    ));
    arena
        .publish(window, new, |v| v.id.number + keep > number)
        .unwrap();
}

/// The versions that an arena can give back whole, and nothing that it has is anything else.
pub(crate) fn whole(stored: &impl ReadableMedium, scale: usize) -> Vec<u64> {
    let arena = Arena::open(stored).expect("an arena");
    assert_eq!(arena.header(), &header());
    let mut numbers = Vec::new();
    for version in arena.versions() {
        let mut found = Content::new();
        let mut good = true;
        for object in &version.manifest.objects {
            let mut bytes = vec![0; object.size() as usize];
            good &= arena::read(stored, object, &mut bytes).unwrap().is_empty();
            found.insert(object.key.to_vec(), bytes);
        }
        if good {
            assert_eq!(found, content(version.id.number, scale), "a mix");
            numbers.push(version.id.number);
        }
    }
    numbers
}

/// An object that is stored in one piece.
pub(crate) fn object(key: &[u8], length: usize, place: PieceLocation, sums: Vec<u64>) -> Object {
    Object {
        key: key.into(),
        unit: 1,
        shape: Shape::Own,
        pieces: vec![ObjectPiece {
            length: length as u64,
            place,
            sums,
        }],
    }
}
