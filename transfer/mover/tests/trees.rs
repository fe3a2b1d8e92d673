//! Every operation on random trees, against a plain model.

mod common;

use common::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tarn_mover::Trees;
use tarn_ports::{CopySource, Mover};
use tarn_types::manifest::Manifest;
use tarn_types::part::Verify;
use tarn_types::workflow::VersionPartitioning;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_is_the_same_tree(entries in trees(), threads in 1usize..4, readback in any::<bool>()) {
        let dir = Scratch::new();
        let (from, to) = (dir.at("from"), dir.at("to"));
        build(&from, &entries);
        let mover = Trees::new().with_threads(threads);
        let mut job = job(vec![source(&from)], &to);
        job.verify = if readback { Verify::Readback } else { Verify::Copy };
        let report = mover.copy(&job, &quiet()).unwrap();
        prop_assert_eq!(model(&from), model(&to));
        prop_assert!(clean(&job));
        let manifest = &report.manifests[0];
        prop_assert!(manifest.check().is_ok());
        prop_assert_eq!(&Manifest::decode(&manifest.encode()).unwrap(), manifest);
        // The copy, read again, is the same manifest; and the source must be the same from now on.
        prop_assert_eq!(&mover.digest(&to, &quiet()).unwrap().hash(), &manifest.hash());
        mover.verify(&to, manifest, &quiet()).unwrap();
        prop_assert_eq!(report.bytes, manifest.bytes());
        let listed = mover.list(&from, &quiet()).unwrap();
        prop_assert_eq!(without_hashes(&listed), without_hashes(manifest));
        job.sources[0].manifest = Some(manifest.clone());
        job.replace = true;
        mover.copy(&job, &quiet()).unwrap();
        prop_assert_eq!(model(&from), model(&to));
        prop_assert!(clean(&job));
    }

    #[test]
    fn views_show_the_tree_and_keep_it(entries in trees()) {
        let dir = Scratch::new();
        let from = dir.at("from");
        build(&from, &entries);
        let mover = Trees::new();
        let manifest = mover.digest(&from, &quiet()).unwrap();
        let before = model(&from);
        let roots = [(from.clone(), manifest.clone())];
        mover.link_view(&roots, &dir.at("view")).unwrap();
        prop_assert_eq!(model(&dir.at("view")), before.clone());
        mover.clone_view(&roots, &dir.at("clone"), &quiet()).unwrap();
        prop_assert_eq!(model(&dir.at("clone")), before.clone());
        mover.remove(&dir.at("view")).unwrap();
        mover.remove(&dir.at("clone")).unwrap();
        prop_assert_eq!(model(&from), before);
    }

    #[test]
    fn a_divided_tree_can_be_put_together(entries in trees(), ranks in any::<bool>()) {
        let dir = Scratch::new();
        let (from, all) = (dir.at("from"), dir.at("all"));
        build(&from, &entries);
        let mover = Trees::new();
        let manifest = mover.digest(&from, &quiet()).unwrap();
        let before = model(&from);
        let how = if ranks { VersionPartitioning::Ranks } else { VersionPartitioning::Entries };
        let Ok(parts) = dir.parts(&manifest, how) else {
            // Names that are not UTF-8 cannot be selected.
            prop_assert!(!ranks);
            return Ok(());
        };
        split(&from, &parts).unwrap();
        prop_assert!(!from.exists());
        let sources = parts.into_iter().map(|(m, path)| CopySource { manifest: Some(m), ..source(&path) }).collect();
        mover.copy(&job(sources, &all), &quiet()).unwrap();
        // Folders that parts share get the first part's time; everything else is as it was.
        prop_assert_eq!(model(&all), before);
    }

    #[test]
    fn only_what_is_wanted_is_copied(entries in trees(), chosen in proptest::collection::vec(any::<bool>(), 60)) {
        let dir = Scratch::new();
        let (from, to) = (dir.at("from"), dir.at("to"));
        build(&from, &entries);
        let all = contents(&model(&from));
        let wanted: Vec<_> = all.keys().zip(chosen).filter(|(_, c)| *c).map(|(p, _)| p.clone()).collect();
        let needed = |path: &Vec<u8>| wanted.iter().any(|w| w == path || w.starts_with(&[&path[..], b"/"].concat()));
        let expect: BTreeMap<_, _> = all.iter().filter(|(p, _)| needed(p)).map(|(p, c)| (p.clone(), c.clone())).collect();
        let only = Some(wanted.iter().map(|p| p.clone().into()).collect());
        let report = Trees::new().copy(&job(vec![CopySource { only, ..source(&from) }], &to), &quiet()).unwrap();
        prop_assert_eq!(contents(&model(&to)), expect);
        prop_assert!(report.manifests[0].check().is_ok());
    }
}

fn without_hashes(manifest: &Manifest) -> Manifest {
    let mut manifest = manifest.clone();
    for entry in &mut manifest.entries {
        if let tarn_types::manifest::EntryKind::File { hash, extents, .. } = &mut entry.kind {
            *hash = None;
            *extents = Box::default();
        }
    }
    manifest
}
