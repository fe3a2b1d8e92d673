//! Copying: everything from an empty staging folder to a published tree.

use crate::error::{Result, corrupt, show, show_path};
use crate::finish::{link_files, seal};
use crate::gather::{Against, Gathered, compare, conflict, gather, name_of};
use crate::job::{Goal, TreeOperation};
use crate::meta::times;
use crate::progress::path_of;
use crate::publish::{exists, publish, sync};
use crate::remove::{remove, sweep};
use crate::resume::{discard, prepare};
use crate::target::CopyTarget;
use crate::throttle::Limiter;
use crate::tree::SourceTree;
use rustix::fs::{AtFlags, utimensat};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_ports::{Control, CopyJob, CopyReport, MoverError};
use tarn_types::event::RunErrorKind;
use tarn_types::manifest::Manifest;
use tarn_types::merge::merge;
use tarn_types::object::is_object;
use tarn_types::part::Verify;

/// Carries out a job.
pub(crate) fn copy(
    job: &CopyJob,
    control: &Control,
    threads: usize,
    limiter: Option<Arc<Limiter>>,
) -> Result<CopyReport> {
    if is_object(&job.dest) {
        let text = format!(
            "`{}` cannot be made by a rename: it is put into its store",
            show_path(&job.dest)
        );
        return Err(MoverError::new(RunErrorKind::Io, text));
    }
    if !job.replace && job.dest.symlink_metadata().is_ok() {
        return Err(exists(&job.dest));
    }
    let sources = job.sources.iter().enumerate();
    let open = |(at, source)| SourceTree::of(source).map_err(|e| e.of_source(at));
    let trees = sources.map(open).collect::<Result<Vec<_>>>()?;
    check_conflicts(job, &trees)?;
    let streams = job
        .sources
        .iter()
        .filter_map(|s| s.peer.as_ref()?.streams());
    let threads = streams.fold(threads, usize::max);
    let outcome = attempts(job, &trees, control, threads, limiter);
    if let Some(arrivals) = &job.arrivals {
        arrivals.ended(outcome.is_ok());
    }
    outcome
}

fn attempts(
    job: &CopyJob,
    trees: &[SourceTree<'_>],
    control: &Control,
    threads: usize,
    limiter: Option<Arc<Limiter>>,
) -> Result<CopyReport> {
    let mut retried = false;
    loop {
        let mut clash = false;
        let failure = match attempt(job, trees, control, threads, limiter.clone(), &mut clash) {
            Ok(report) => return Ok(report),
            Err(failure) => failure,
        };
        let resumable = matches!(
            failure.failure.kind,
            RunErrorKind::Cancelled | RunErrorKind::NoSpace | RunErrorKind::Io
        );
        if clash || !resumable {
            discard(&job.staging)?;
        }
        // A leftover of an earlier attempt stood in the way: once more, from nothing.
        if !clash || retried {
            return Err(failure);
        }
        control.done.store(0, Ordering::Relaxed);
        retried = true;
    }
}

/// Finds conflicts before anything is copied, where all manifests are known.
fn check_conflicts(job: &CopyJob, trees: &[SourceTree<'_>]) -> Result<()> {
    let whole = |s: &&tarn_ports::CopySource| s.only.is_none();
    let known: Vec<&Manifest> = job
        .sources
        .iter()
        .filter(whole)
        .filter_map(|s| s.manifest.as_ref())
        .collect();
    if known.len() < 2
        || known.len() < job.sources.len()
        || known.iter().any(|m| m.hash().is_none())
    {
        return Ok(());
    }
    merge(&known)
        .map(drop)
        .map_err(|c| conflict(&c, name_of(trees)))
}

fn attempt(
    job: &CopyJob,
    trees: &[SourceTree<'_>],
    control: &Control,
    threads: usize,
    limiter: Option<Arc<Limiter>>,
    clash: &mut bool,
) -> Result<CopyReport> {
    let earlier = prepare(&job.staging, job.seal.as_deref(), control, threads)?;
    let resumed = !earlier.is_empty();
    if let Some(arrivals) = &job.arrivals {
        arrivals.growing(&job.staging);
    }
    let manifests = job.sources.iter().map(|s| s.manifest.as_ref());
    let whole = manifests.map(|m| Some(m?.bytes())).sum();
    let mut target = CopyTarget::new(&job.staging, job.verify, job.sync, limiter, earlier, whole)?;
    target.arrivals = job.arrivals.clone();
    target.seal = job.seal.clone();
    let clashed = Arc::clone(&target.clash);
    let outcome = TreeOperation::new(trees, Goal::Copy(Box::new(target)), control, threads).run();
    *clash = resumed && clashed.load(Ordering::Relaxed);
    let (output, goal) = outcome?;
    let Goal::Copy(target) = goal else {
        return Ok(CopyReport::default());
    };
    let found = gather(trees, output)?;
    for (at, (tree, manifest)) in trees.iter().zip(&found.manifests).enumerate() {
        if let Some(expected) = tree.expected {
            compare(tree, manifest, expected, Against::Source).map_err(|e| e.of_source(at))?;
        }
    }
    let merged = unite(trees, &found)?;
    check_taken(trees, &found, &target).inspect_err(|_| *clash = true)?;
    complete(&target, &found, &merged, resumed)?;
    if target.sync {
        sync(&target, &merged)?;
    }
    if job.verify == Verify::Readback {
        // A file that is damaged now is no source.
        read_back(job, &target, &merged, control, threads).map_err(|e| match e.failure.kind {
            RunErrorKind::SourceChanged => {
                let how = "was changed by somebody else while it was written";
                corrupt(&show_path(&job.staging), how)
            }
            _ => MoverError { tree: None, ..e },
        })?;
    }
    if control.cancelled() {
        return Err(crate::error::cancelled());
    }
    remove(&path_of(&job.staging))?;
    publish(&job.staging, &job.dest, job.replace, target.sync)?;
    Ok(CopyReport {
        lost: lost(&target),
        manifests: found.manifests,
        bytes: found.bytes,
        resumed: found.resumed,
    })
}

fn unite<'m>(trees: &[SourceTree<'_>], found: &'m Gathered) -> Result<Cow<'m, Manifest>> {
    if let [one] = &found.manifests[..] {
        return Ok(Cow::Borrowed(one));
    }
    let all: Vec<&Manifest> = found.manifests.iter().collect();
    merge(&all)
        .map(Cow::Owned)
        .map_err(|c| conflict(&c, name_of(trees)))
}

/// Every entry that was not made because something was there must have been made by another source.
fn check_taken(trees: &[SourceTree<'_>], found: &Gathered, target: &CopyTarget) -> Result<()> {
    for (tree, path) in &found.taken {
        let others = found
            .manifests
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != *tree as usize);
        let made = others
            .filter_map(|(_, m)| m.find(path))
            .any(|e| !e.is_folder());
        if !made {
            return Err(MoverError::new(
                RunErrorKind::Io,
                format!(
                    "`{}` of `{}` could not be made: something else is at `{}`; nobody but tarn may write there: run again",
                    show(path),
                    show_path(&trees[*tree as usize].path),
                    target.show(path)
                ),
            ));
        }
    }
    Ok(())
}

/// Hard links, leftovers, times of merged files, folders.
fn complete(target: &CopyTarget, found: &Gathered, merged: &Manifest, resumed: bool) -> Result<()> {
    for links in &found.links {
        link_files(target, links)?;
    }
    if resumed {
        let kept =
            |path: &[u8], folder: bool| merged.find(path).is_some_and(|e| e.is_folder() == folder);
        sweep(&target.root, kept)?;
    }
    for manifest in found.manifests.iter().skip(1) {
        for entry in manifest.entries.iter().filter(|e| !e.is_folder()) {
            // The first source in order gives the time, no matter which one was first on the disk.
            if let Some(first) = merged.find(&entry.path).filter(|m| m.mtime != entry.mtime) {
                let error = |e| target.failed("set the time of", &entry.path, e);
                let (folder, name) = target.root.holder(&entry.path).map_err(error)?;
                utimensat(folder, name, &times(first.mtime), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(error)?;
            }
        }
    }
    let kept = seal(&target.root, merged)
        .map_err(|(path, e)| target.failed("set the attributes of", &path, e))?;
    if !kept {
        target.lost_xattrs.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads the destination again, from the device where it has reached one, and compares.
fn read_back(
    job: &CopyJob,
    target: &CopyTarget,
    merged: &Manifest,
    control: &Control,
    threads: usize,
) -> Result<()> {
    let trees = [SourceTree::open(&job.staging)?.sealed_with(job.seal.as_ref())];
    let (output, _) =
        TreeOperation::new(&trees, Goal::Digest { read_back: true }, control, threads).run()?;
    let found = gather(&trees, output)?;
    let mut expected = Cow::Borrowed(merged);
    if target.lost_xattrs.load(Ordering::Relaxed) {
        // Attributes that could not be kept are reported, and are no damage.
        for (entry, is) in expected
            .to_mut()
            .entries
            .iter_mut()
            .zip(&found.manifests[0].entries)
        {
            entry.xattrs = is.xattrs.clone();
        }
    }
    compare(&trees[0], &found.manifests[0], &expected, Against::Replica)
}

fn lost(target: &CopyTarget) -> Vec<String> {
    let xattrs = target.lost_xattrs.load(Ordering::Relaxed);
    let sentence = || {
        format!(
            "extended attributes were not kept: the file system of `{}` cannot hold them all",
            show_path(&target.root.path)
        )
    };
    xattrs.then(sentence).into_iter().collect()
}
