//! Dividing and merging trees, against plain models on `BTreeMap`s.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::hash::Hash;
use tarn_types::manifest::{Entry, EntryKind, Manifest, parent};
use tarn_types::merge::{PartitionError, merge, merge_nodes, partition};
use tarn_types::part::PartClass;
use tarn_types::pattern::ScatterRule;
use tarn_types::workflow::VersionPartitioning;

/// A tree as a plain map: content of a file, `None` for a folder.
type Tree = BTreeMap<String, Option<u8>>;

fn with_parents(files: impl IntoIterator<Item = (String, Option<u8>)>) -> Tree {
    let mut tree = Tree::new();
    let mut blocked: BTreeSet<String> = BTreeSet::new();
    for (path, content) in files {
        let above: Vec<String> = ups(&path);
        if above.iter().any(|p| blocked.contains(p)) || tree.contains_key(&path) {
            continue;
        }
        for p in above {
            tree.entry(p).or_insert(None);
        }
        if content.is_some() {
            blocked.insert(path.clone());
        }
        tree.insert(path, content);
    }
    tree
}

fn ups(path: &str) -> Vec<String> {
    let above = std::iter::successors(parent(path.as_bytes()), |p| parent(p));
    above
        .map(|p| String::from_utf8_lossy(p).into_owned())
        .collect()
}

fn manifest(tree: &Tree) -> Manifest {
    let entry = |(path, content): (&String, &Option<u8>)| Entry {
        path: path.as_bytes().into(),
        kind: content.map_or(EntryKind::Directory, |c| EntryKind::File {
            size: 1,
            hash: Some(Hash::of(&[c])),
            link_group: 0,
            extents: Box::default(),
        }),
        mode: 0o755,
        mtime: 0,
        xattrs: Box::default(),
    };
    let mut entries: Vec<_> = tree.iter().map(entry).collect();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Manifest { entries }
}

fn tree_of(manifest: &Manifest) -> Tree {
    let content = |e: &Entry| match &e.kind {
        EntryKind::File { hash, .. } => (0..=255).find(|c| *hash == Some(Hash::of(&[*c]))),
        _ => None,
    };
    let path = |e: &Entry| String::from_utf8(e.path.to_vec()).unwrap();
    manifest
        .entries
        .iter()
        .map(|e| (path(e), content(e)))
        .collect()
}

fn paths() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("a"),
        Just("b"),
        Just("a-"),
        Just("p0"),
        Just("p1"),
        Just("p2")
    ];
    proptest::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn trees() -> impl Strategy<Value = Tree> {
    let content = prop_oneof![1 => Just(None), 4 => (0u8..4).prop_map(Some)];
    proptest::collection::vec((paths(), content), 0..10).prop_map(with_parents)
}

/// A change of a node to its tree.
#[derive(Debug, Clone)]
enum Edit {
    Put(String, Option<u8>),
    Delete(String),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        (
            paths(),
            prop_oneof![1 => Just(None), 3 => (0u8..4).prop_map(Some)]
        )
            .prop_map(|(p, c)| Edit::Put(p, c)),
        paths().prop_map(Edit::Delete),
    ];
    proptest::collection::vec(edit, 0..4)
}

fn below(folder: &str, path: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

fn edit(tree: &mut Tree, edits: &[Edit]) {
    for one in edits {
        match one {
            Edit::Delete(path) => tree.retain(|p, _| p != path && !below(path, p)),
            Edit::Put(path, content) => {
                if ups(path)
                    .iter()
                    .any(|p| tree.get(p).is_some_and(Option::is_some))
                {
                    continue;
                }
                for p in ups(path) {
                    tree.insert(p, None);
                }
                if content.is_some() {
                    tree.retain(|p, _| !below(path, p));
                }
                tree.insert(path.clone(), *content);
            }
        }
    }
}

/// The merge by its definition, path by path; `None` is a conflict.
fn naive_merge(base: &Tree, given: &[Tree], trees: &[Tree]) -> Option<Tree> {
    let all: BTreeSet<&String> = given
        .iter()
        .chain(trees)
        .chain([base])
        .flat_map(|t| t.keys())
        .collect();
    let mut merged = Tree::new();
    for path in all {
        let mut results: BTreeSet<Option<u8>> = BTreeSet::new();
        let (mut deleted, mut deleted_file, mut unchanged) = (false, false, None);
        for (had, has) in given.iter().zip(trees) {
            let had = had
                .get(path)
                .or(base.get(path).filter(|_| has.contains_key(path)));
            match (had, has.get(path)) {
                (None, None) => {}
                (Some(was), None) => {
                    deleted = true;
                    deleted_file |= was.is_some();
                }
                (Some(a), Some(b)) if a == b => unchanged = Some(*b),
                (_, Some(b)) => drop(results.insert(*b)),
            }
        }
        let content = match (results.len(), deleted) {
            (0, true) => continue,
            (0, false) => unchanged.or(base.get(path).copied()),
            (1, true) if deleted_file || results.first() != Some(&None) => return None,
            (1, _) => results.first().copied(),
            _ => return None,
        };
        if let Some(content) = content {
            merged.insert(path.clone(), content);
        }
    }
    for path in merged.keys().cloned().collect::<Vec<_>>() {
        for p in ups(&path) {
            if merged.get(&p).is_some_and(Option::is_some) {
                return None;
            }
            merged.insert(p, None);
        }
    }
    Some(merged)
}

fn rank(path: &str) -> Option<u32> {
    let top = path.split('/').next()?;
    top.strip_prefix('p').and_then(|r| r.parse().ok())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_are_disjoint_and_whole(tree in trees(), ranks in any::<bool>()) {
        let rule = ScatterRule::new("p{rank}").unwrap();
        let how = if ranks { VersionPartitioning::Ranks } else { VersionPartitioning::Entries };
        let parts = partition(&manifest(&tree), how, Some(&rule)).unwrap();
        prop_assert!(parts.windows(2).all(|w| w[0].0 < w[1].0));
        for (class, part) in &parts {
            prop_assert_eq!(part.check(), Ok(()));
            for path in tree_of(part).keys() {
                let belongs = match class {
                    PartClass::Entry(name) => path == name || below(name, path),
                    PartClass::Rank(r) => rank(path) == Some(*r),
                    PartClass::Common => rank(path).is_none(),
                    PartClass::Whole => false,
                };
                prop_assert!(belongs, "{:?} {}", class, path);
            }
        }
        let total: usize = parts.iter().map(|(_, p)| p.entries.len()).sum();
        prop_assert_eq!(total, tree.len());
        let all: Vec<&Manifest> = parts.iter().map(|(_, p)| p).collect();
        prop_assert_eq!(tree_of(&merge(&all).unwrap()), tree);
    }

    #[test]
    fn a_deep_rule_gives_ranks_their_folders(tree in trees()) {
        let rule = ScatterRule::new("a/p{rank}").unwrap();
        let whole = manifest(&tree);
        let parts = partition(&whole, VersionPartitioning::Ranks, Some(&rule)).unwrap();
        for (class, part) in &parts {
            prop_assert_eq!(part.check(), Ok(()));
            let held = |e: &Entry| match class {
                PartClass::Rank(r) => rule.rank(&e.path) == Some(*r),
                _ => rule.rank(&e.path).is_none(),
            };
            let own: Vec<_> = part.entries.iter().filter(|e| held(e)).collect();
            let expect: Vec<_> = whole.entries.iter().filter(|e| held(e)).collect();
            prop_assert_eq!(own, expect);
            prop_assert!(part.entries.iter().all(|e| held(e) || e.is_folder()));
        }
        let all: Vec<&Manifest> = parts.iter().map(|(_, p)| p).collect();
        prop_assert_eq!(merge(&all).unwrap(), whole);
    }

    #[test]
    fn a_merge_is_the_union_or_a_conflict(trees in proptest::collection::vec(trees(), 0..4)) {
        let manifests: Vec<_> = trees.iter().map(manifest).collect();
        let refs: Vec<_> = manifests.iter().collect();
        let mut union = Tree::new();
        let mut differing: BTreeSet<Vec<u8>> = BTreeSet::new();
        for (path, content) in trees.iter().flatten() {
            if *union.entry(path.clone()).or_insert(*content) != *content {
                differing.insert(path.clone().into_bytes());
            }
        }
        match merge(&refs) {
            Ok(merged) => {
                prop_assert!(differing.is_empty());
                prop_assert_eq!(tree_of(&merged), union);
                prop_assert_eq!(merged.check(), Ok(()));
            }
            Err(conflict) => {
                prop_assert_eq!(Some(&conflict.path.to_vec()), differing.first());
                let path = String::from_utf8(conflict.path.to_vec()).unwrap();
                prop_assert!(trees[conflict.first].get(&path) != trees[conflict.second].get(&path));
            }
        }
    }

    #[test]
    fn nodes_merge_as_defined(
        base in trees(),
        scattered in any::<bool>(),
        changes in proptest::collection::vec(edits(), 1..4),
    ) {
        let nodes = changes.len() as u32;
        let share = |node: u32| base.iter().filter(move |(p, _)| !scattered || rank(p).is_none_or(|r| r % nodes == node));
        let given: Vec<Tree> = (0..nodes).map(|n| share(n).map(|(p, c)| (p.clone(), *c)).collect()).collect();
        let trees: Vec<Tree> = given.iter().zip(&changes).map(|(g, e)| { let mut t = g.clone(); edit(&mut t, e); t }).collect();
        let manifests: Vec<_> = trees.iter().map(manifest).collect();
        let given_manifests: Vec<_> = given.iter().map(manifest).collect();
        let outcome = merge_nodes(&manifest(&base), &given_manifests, &manifests);
        let expect = naive_merge(&base, &given, &trees);
        prop_assert_eq!(outcome.is_ok(), expect.is_some(), "{:?}", outcome);
        let Ok(groups) = outcome else { return Ok(()) };
        let mut seen: BTreeSet<String> = BTreeSet::new();
        for (nodes, part) in &groups {
            prop_assert_eq!(part.check(), Ok(()));
            prop_assert!(!nodes.is_empty());
            for (path, content) in tree_of(part) {
                // Every node of the group holds it.
                prop_assert!(nodes.iter().all(|n| trees[*n].get(&path) == Some(&content)), "{} {:?}", path, nodes);
                prop_assert!(content.is_none() || seen.insert(path));
            }
        }
        let all: Vec<_> = groups.iter().map(|(_, m)| m).collect();
        prop_assert_eq!(Some(tree_of(&merge(&all).unwrap())), expect);
    }
}

#[test]
fn what_no_node_was_given_stays_with_no_node() {
    let base = manifest(&with_parents([
        ("d/f".to_owned(), Some(1)),
        ("g".to_owned(), Some(2)),
    ]));
    let given = [manifest(&with_parents([("g".to_owned(), Some(2))]))];
    let groups = merge_nodes(&base, &given, &given).unwrap();
    let nodes: Vec<_> = groups
        .iter()
        .map(|(n, m)| (n.clone(), tree_of(m).into_keys().collect::<Vec<_>>()))
        .collect();
    assert_eq!(
        nodes,
        [
            (vec![], vec!["d".to_owned(), "d/f".to_owned()]),
            (vec![0], vec!["g".to_owned()])
        ]
    );
}

#[test]
fn conflicts_name_path_and_nodes() {
    let base = manifest(&with_parents([("x".to_owned(), Some(1))]));
    let changed = |c| manifest(&with_parents([("x".to_owned(), Some(c))]));
    let given = [base.clone(), base.clone(), base.clone()];
    let differ = merge_nodes(&base, &given, &[base.clone(), changed(2), changed(3)]).unwrap_err();
    assert_eq!(
        (&*differ.path, differ.first, differ.second),
        (&b"x"[..], 1, 2)
    );
    let deleted = merge_nodes(
        &base,
        &given,
        &[Manifest::default(), base.clone(), changed(3)],
    )
    .unwrap_err();
    assert_eq!((deleted.first, deleted.second), (0, 2));
    assert!(deleted.to_string().contains("`x`"));
}

#[test]
fn links_across_parts_fall_apart() {
    let mut tree = manifest(&with_parents(
        ["a", "b", "p0/x", "p0/y"].map(|p| (p.to_owned(), Some(1))),
    ));
    for entry in &mut tree.entries {
        if let EntryKind::File { link_group, .. } = &mut entry.kind {
            *link_group = 1;
        }
    }
    let groups = |m: &Manifest| m.entries.iter().map(Entry::link_group).collect::<Vec<_>>();
    let parts = partition(&tree, VersionPartitioning::Entries, None).unwrap();
    assert_eq!(
        parts.iter().map(|(_, m)| groups(m)).collect::<Vec<_>>(),
        [vec![None], vec![None], vec![None, Some(1), Some(1)],]
    );
    // Groups of different trees stay different.
    let other = manifest(&with_parents([
        ("z".to_owned(), Some(1)),
        ("zz".to_owned(), Some(1)),
    ]));
    let mut other = other;
    for entry in &mut other.entries {
        if let EntryKind::File { link_group, .. } = &mut entry.kind {
            *link_group = 1;
        }
    }
    let merged = merge(&[&tree, &other]).unwrap();
    assert_eq!(
        groups(&merged),
        [Some(1), Some(1), None, Some(1), Some(1), Some(2), Some(2)]
    );
}

#[test]
fn what_cannot_be_divided() {
    let mut tree = manifest(&with_parents([("x".to_owned(), Some(1))]));
    assert_eq!(
        partition(&tree, VersionPartitioning::Ranks, None),
        Err(PartitionError::Rule)
    );
    let whole = partition(&Manifest::default(), VersionPartitioning::Whole, None).unwrap();
    assert_eq!(whole, [(PartClass::Whole, Manifest::default())]);
    tree.entries[0].path = (*b"\xff").into();
    assert!(matches!(
        partition(&tree, VersionPartitioning::Entries, None),
        Err(PartitionError::Name(_))
    ));
}
