//! Carrying out a transfer or an eviction: from the engine's words to the mover's.

use crate::staging::dests;
use crate::staging::sources::{forget, list_again, remember, resolve, wall_clock};
use crate::storage::data_context::DataContext;
use crate::storage::run_facts::RunFacts;
use crate::storage::store::{
    failure, hash_of, make_folder, sealed, stored_estimate, write_manifests,
};
use crate::storage::untouched::{self, MarkValidity};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_ports::{
    Arrivals, Control, CopyJob, CopyReport, CopySource, DeliveryJob, Follow, MoverError, Over,
    Peers,
};
use tarn_types::event::{Event, RunError, RunErrorKind};
use tarn_types::hash::Hash;
use tarn_types::id::TierRef;
use tarn_types::layout::source_part;
use tarn_types::manifest::{EntryKind, Manifest};
use tarn_types::object::is_object;
use tarn_types::part::{PartClass, PartMove, PartRef, Place, StoreKey, Transfer, Verify};

/// How long a copy that is read while it arrives may take, after its last byte, to be verified and published.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause between two looks whether it is.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

struct PartTransferOutput {
    bytes: u64,
    hashes: Vec<Hash>,
    stored: Vec<u64>,
}

/// Why a transfer has failed, and the part that is to blame, if one is: its replica was found damaged.
struct PartTransferError {
    failure: RunError,
    damaged: Option<PartRef>,
}

impl PartTransferError {
    /// The error of one part alone.
    fn of(part: PartRef, failure: RunError) -> Self {
        let damaged = (failure.kind == RunErrorKind::Corrupt).then_some(part);
        Self { failure, damaged }
    }
}

impl From<RunError> for PartTransferError {
    fn from(failure: RunError) -> Self {
        Self {
            failure,
            damaged: None,
        }
    }
}

/// A part on its way.
struct PendingPartTransfer<'a> {
    order: &'a PartMove,
    key: StoreKey,
    class: PartClass,
    manifest: Manifest,
}

/// Carries out a transfer; the event to report.
pub(crate) fn run(shared: &DataContext, t: &Transfer, control: &Arc<Control>) -> Event {
    let began = Instant::now();
    let result = find_parts(shared, t, control).and_then(|mut parts| {
        if control.cancelled() {
            return Err(failure(RunErrorKind::Cancelled, "abandoned before it began").into());
        }
        let total = parts.iter().map(|p| p.manifest.bytes()).sum();
        shared.progress.moving(t.id, t.data, t.kind, total, control);
        match &t.to {
            Place::External(dest) => deliver_tree(shared, t, &mut parts, dest, control),
            Place::Node(_) | Place::Drained => make_replicas(shared, t, &mut parts, control),
            Place::Source => Err(failure(RunErrorKind::Io, "a source is never written").into()),
        }
    });
    shared.progress.moved(t.id);
    match result {
        Ok(done) => Event::TransferDone {
            id: t.id,
            bytes: done.bytes,
            hashes: done.hashes,
            stored: done.stored,
            took: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        },
        Err(PartTransferError {
            mut failure,
            damaged,
        }) => {
            let name = shared
                .dataset(t.data)
                .map_or_else(|_| t.data.to_string(), |d| d.name.clone());
            failure.message = format!(
                "moving version {} of `{name}` to {} failed: {}",
                t.version,
                shared.place_name(&t.to),
                failure.message
            );
            Event::TransferFailed {
                id: t.id,
                failure,
                damaged,
            }
        }
    }
}

fn find_parts<'a>(
    shared: &DataContext,
    t: &'a Transfer,
    control: &Control,
) -> Result<Vec<PendingPartTransfer<'a>>, PartTransferError> {
    let part = |order: &'a PartMove| {
        let (class, key) = shared.known(&order.part)?;
        let manifest = match shared.manifest(&key) {
            Err(_) if order.from == Place::Source => {
                list_again(shared, order.part.data, (&class, &key), control)
            }
            manifest => manifest,
        };
        let manifest = manifest.map_err(|failure| PartTransferError::of(order.part, failure))?;
        Ok(PendingPartTransfer {
            order,
            key,
            class,
            manifest,
        })
    };
    t.parts.iter().map(part).collect()
}

/// To a tier or the drained area: every part becomes a replica of its own. If one fails, none is left.
fn make_replicas(
    shared: &DataContext,
    t: &Transfer,
    parts: &mut [PendingPartTransfer<'_>],
    control: &Control,
) -> Result<PartTransferOutput, PartTransferError> {
    let mut done = PartTransferOutput {
        bytes: 0,
        hashes: Vec::new(),
        stored: Vec::new(),
    };
    // Of all parts before the first begins: a transfer that follows this one may request any of them.
    let mut arrivals: Vec<_> = parts
        .iter()
        .map(|p| find_arrivals(shared, &t.to, &p.key))
        .collect();
    if let Some(peers) = &shared.peers {
        peers.begun(t.id);
    }
    for at in 0..parts.len() {
        match make_replica(shared, t, &mut parts[at], arrivals[at].take(), control) {
            Ok((bytes, hash, stored)) => {
                done.bytes = done.bytes.saturating_add(bytes);
                done.hashes.push(hash);
                done.stored.push(stored);
            }
            Err(broken) => {
                for part in &parts[..=at] {
                    shared.take_back(&t.to, &part.key);
                }
                return Err(broken);
            }
        }
    }
    Ok(done)
}

/// Makes one replica; bytes moved, the part's hash, the space that the replica takes.
fn make_replica(
    shared: &DataContext,
    t: &Transfer,
    part: &mut PendingPartTransfer<'_>,
    arrivals: Option<Arc<dyn Arrivals>>,
    control: &Control,
) -> Result<(u64, Hash, u64), PartTransferError> {
    if t.to == Place::Drained {
        let dest = shared.drained(&part.key)?;
        if is_object(&dest) {
            return drain_objects(shared, t, part, &dest, control);
        }
    }
    let mut claim = match t.to {
        Place::Node(tier_ref) => {
            let bytes = shared.estimate(t.data, &part.manifest);
            Some(shared.reserve(tier_ref, bytes, &|| control.cancelled())?)
        }
        _ => None,
    };
    let (dest, staging) = replica_paths(shared, &t.to, &part.key)?;
    let seal = shared.new_key(t.data, &part.key)?;
    let began = wall_clock();
    let job = CopyJob {
        sources: Vec::new(),
        // It can be there only from a transfer whose end was not recorded: its key is its own.
        replace: dest.exists(),
        dest: dest.clone(),
        staging,
        verify: t.verify,
        sync: t.to == Place::Drained,
        rate: rate(shared, &part.order.from, &t.to),
        latency: latency(shared, &part.order.from, &t.to),
        arrivals,
        seal,
    };
    let run = copy_with(shared, &job, control);
    let report = copy(shared, std::slice::from_mut(part), &run)
        .map_err(|e| classify_error(shared, std::slice::from_ref(part), e))?;
    let manifest = report.manifests.into_iter().next().unwrap_or_default();
    if matches!(part.order.from, Place::Node(_)) && part.manifest.hash().is_none() {
        await_known_content(shared, part, &manifest, control)?;
    }
    let hash = record_arrival(shared, part, manifest, began, &t.to)?;
    if matches!(t.to, Place::Node(_)) {
        let _ = untouched::mark(&dest, MarkValidity::ThisBoot);
    }
    let stored = shared.mover.stored(&dest).map_err(RunError::from)?;
    if let Some(claim) = &mut claim {
        claim.arrived(&part.key, stored);
    }
    Ok((report.bytes, hash, stored))
}

/// Makes one replica that is a tree of an object store.
fn drain_objects(
    shared: &DataContext,
    t: &Transfer,
    part: &mut PendingPartTransfer<'_>,
    dest: &Path,
    control: &Control,
) -> Result<(u64, Hash, u64), PartTransferError> {
    let began = wall_clock();
    let mut job = delivery_job(shared, t, &part.order.from, dest);
    let seal = shared.key(t.data, &part.key)?;
    if seal.is_some() {
        // All of it is read again below.
        job.verify = Verify::Copy;
    }
    let (report, manifest) = match &seal {
        None => {
            let report = copy(
                shared,
                std::slice::from_mut(part),
                &deliver_with(shared, &job, control),
            )
            .map_err(|e| classify_error(shared, std::slice::from_ref(part), e))?;
            let manifest = report.manifests.first().cloned().unwrap_or_default();
            (report, manifest)
        }
        // The files go as they are stored; that they hold what they must is seen when they are opened there.
        Some(key) => {
            let as_stored = CopySource {
                manifest: Some(sealed(&part.manifest)),
                sealed: None,
                ..source_of(shared, part)?
            };
            let report = deliver_with(shared, &job, control)(vec![as_stored])
                .map_err(|e| classify_error(shared, std::slice::from_ref(part), e))?;
            let opened = shared.mover.digest_sealed(dest, key, control);
            let opened = opened.map_err(|e| PartTransferError::of(part.order.part, e.failure))?;
            (report, opened)
        }
    };
    if part.manifest.hash().is_none() && matches!(part.order.from, Place::Node(_)) {
        await_known_content(shared, part, &manifest, control)?;
    }
    if seal.is_some() && manifest.hash() != part.manifest.hash() {
        let what = "the data that was put there lacks entries of the part";
        return Err(PartTransferError::of(
            part.order.part,
            failure(RunErrorKind::Corrupt, what),
        ));
    }
    let manifest = match &seal {
        // The store knows the sizes of what is sealed.
        Some(_) => part.manifest.clone(),
        None => manifest,
    };
    let stored = stored_estimate(&manifest);
    let hash = record_arrival(shared, part, manifest, began, &t.to)?;
    Ok((report.bytes, hash, stored))
}

/// To a folder of the external store: one tree of all parts.
fn deliver_tree(
    shared: &DataContext,
    t: &Transfer,
    parts: &mut [PendingPartTransfer<'_>],
    dest: &Path,
    control: &Control,
) -> Result<PartTransferOutput, PartTransferError> {
    if is_object(dest) {
        return deliver_objects(shared, t, parts, dest, control);
    }
    let dataset = shared.dataset(t.data)?;
    let manifests: Vec<_> = parts.iter().map(|p| &p.manifest).collect();
    let mut intent = dests::Intent::declare(shared, &dataset.name, dest, &manifests, control)?;
    match write_destination(shared, t, parts, &mut intent, control) {
        Ok((done, manifests)) => Ok(intent.fulfil(&manifests).map(|()| done)?),
        Err(broken) => {
            intent.abandon(&*shared.mover);
            Err(broken)
        }
    }
}

/// To a tree of an object store, which holds what it is about to be given, so that no intent is noted.
fn deliver_objects(
    shared: &DataContext,
    t: &Transfer,
    parts: &mut [PendingPartTransfer<'_>],
    dest: &Path,
    control: &Control,
) -> Result<PartTransferOutput, PartTransferError> {
    let began = wall_clock();
    let job = delivery_job(shared, t, &Place::Source, dest);
    let report = copy(shared, parts, &deliver_with(shared, &job, control))
        .map_err(|e| classify_error(shared, parts, e))?;
    dests::delivered(shared, dest, control)?;
    record_arrivals(shared, t, parts, report, began)
}

/// The job that puts data into an object store for a transfer.
fn delivery_job(shared: &RunFacts, t: &Transfer, from: &Place, dest: &Path) -> DeliveryJob {
    DeliveryJob {
        sources: Vec::new(),
        dest: dest.to_path_buf(),
        single: false,
        owner: shared.workspace.clone(),
        over: Over::Own,
        verify: t.verify,
        rate: rate(shared, from, &t.to),
        latency: latency(shared, from, &t.to),
    }
}

/// Puts sources as this job orders.
fn deliver_with<'a>(
    shared: &'a DataContext,
    job: &'a DeliveryJob,
    control: &'a Control,
) -> impl Fn(Vec<CopySource>) -> Result<CopyReport, MoverError> + 'a {
    move |sources| {
        let job = DeliveryJob {
            sources,
            ..job.clone()
        };
        shared.mover.deliver(&job, control)
    }
}

/// Writes what a destination is to hold; also the manifests of what it holds then.
fn write_destination(
    shared: &DataContext,
    t: &Transfer,
    parts: &mut [PendingPartTransfer<'_>],
    intent: &mut dests::Intent,
    control: &Control,
) -> Result<(PartTransferOutput, Vec<Manifest>), PartTransferError> {
    let began = wall_clock();
    let job = CopyJob {
        sources: Vec::new(),
        dest: intent.ready().to_path_buf(),
        staging: intent.staging().to_path_buf(),
        replace: false,
        verify: t.verify,
        sync: true,
        rate: rate(shared, &Place::Source, &t.to),
        latency: latency(shared, &Place::Source, &t.to),
        arrivals: None,
        seal: None,
    };
    let report = copy(shared, parts, &copy_with(shared, &job, control))
        .map_err(|e| classify_error(shared, parts, e))?;
    let manifests = report.manifests.clone();
    intent.confirm(&manifests)?;
    intent.publish(&*shared.mover)?;
    Ok((record_arrivals(shared, t, parts, report, began)?, manifests))
}

/// All parts have arrived as one tree.
fn record_arrivals(
    shared: &DataContext,
    t: &Transfer,
    parts: &[PendingPartTransfer<'_>],
    report: CopyReport,
    began: i64,
) -> Result<PartTransferOutput, PartTransferError> {
    if report.manifests.len() != parts.len() {
        let why = "the mover reported fewer trees than it was given";
        return Err(failure(RunErrorKind::Io, why).into());
    }
    let stored = report.manifests.iter().map(stored_estimate).collect();
    let mut hashes = Vec::new();
    for (part, manifest) in parts.iter().zip(report.manifests) {
        hashes.push(record_arrival(shared, part, manifest, began, &t.to)?);
    }
    Ok(PartTransferOutput {
        bytes: report.bytes,
        hashes,
        stored,
    })
}

/// Copies sources as this job orders.
fn copy_with<'a>(
    shared: &'a DataContext,
    job: &'a CopyJob,
    control: &'a Control,
) -> impl Fn(Vec<CopySource>) -> Result<CopyReport, MoverError> + 'a {
    move |sources| {
        let job = CopyJob {
            sources,
            ..job.clone()
        };
        shared.mover.copy(&job, control)
    }
}

/// A source is what it is now: where its content differs from what an earlier run remembered, it is read again.
fn copy(
    shared: &DataContext,
    parts: &mut [PendingPartTransfer<'_>],
    run: &dyn Fn(Vec<CopySource>) -> Result<CopyReport, MoverError>,
) -> Result<CopyReport, MoverError> {
    let sources = |parts: &[PendingPartTransfer<'_>]| {
        let sources: Result<_, RunError> = parts.iter().map(|p| source_of(shared, p)).collect();
        sources.map_err(|f| MoverError::new(f.kind, f.message))
    };
    let first = run(sources(parts)?);
    let remembered = |p: &PendingPartTransfer<'_>| {
        p.order.from == Place::Source && p.manifest.entries.iter().any(|e| hash_of(e).is_some())
    };
    match first {
        Err(MoverError { failure: f, .. })
            if f.kind == RunErrorKind::Corrupt && parts.iter().any(&remembered) =>
        {
            for part in parts.iter_mut().filter(|p| remembered(p)) {
                forget(shared, part.order.part.data);
                for entry in &mut part.manifest.entries {
                    if let EntryKind::File { hash, .. } = &mut entry.kind {
                        *hash = None;
                    }
                }
            }
            run(sources(parts)?)
        }
        other => other,
    }
}

fn source_of(shared: &DataContext, part: &PendingPartTransfer<'_>) -> Result<CopySource, RunError> {
    if let Place::Node(tier_ref) = part.order.from
        && !shared.own.has(tier_ref.node)
    {
        return Ok(CopySource {
            root: PathBuf::new(),
            peer: Some(peers(shared, tier_ref)?.tree(tier_ref, &part.key)?),
            as_entry: None,
            manifest: Some(part.manifest.clone()),
            only: None,
            sealed: shared.key(part.order.part.data, &part.key)?,
            follow: Follow::None,
        });
    }
    let paths = || {
        Some(
            part.manifest
                .entries
                .iter()
                .map(|e| e.path.clone())
                .collect(),
        )
    };
    let (root, as_entry, only) = match &part.order.from {
        Place::Node(tier_ref) => (shared.replica(*tier_ref, &part.key)?, None, None),
        Place::Drained => (shared.drained(&part.key)?, None, None),
        Place::External(folder) => (resolve(folder), None, paths()),
        Place::Source => {
            let dataset = shared.dataset(part.order.part.data)?;
            let source = dataset.source.as_deref().ok_or_else(|| {
                failure(
                    RunErrorKind::Io,
                    format!("dataset `{}` has no source", dataset.name),
                )
            })?;
            let root = resolve(source);
            match &part.class {
                // The paths of an object are in the manifest.
                _ if is_object(&root) => (root, None, None),
                // A source that is one file.
                _ if !root.is_dir() => {
                    let name = root.file_name().map(|n| n.to_string_lossy().into_owned());
                    (root.clone(), name, None)
                }
                PartClass::Entry(name) => {
                    (source_part(&root, &part.class), Some(name.clone()), None)
                }
                PartClass::Whole => (root, None, None),
                PartClass::Rank(_) | PartClass::Common => (root, None, paths()),
            }
        }
    };
    Ok(CopySource {
        root,
        peer: None,
        as_entry,
        manifest: Some(part.manifest.clone()),
        only,
        sealed: match part.order.from {
            Place::Node(_) | Place::Drained => shared.key(part.order.part.data, &part.key)?,
            Place::Source | Place::External(_) => None,
        },
        follow: match part.order.from {
            Place::Source => Follow::All,
            _ => Follow::None,
        },
    })
}

fn peers(shared: &DataContext, tier_ref: TierRef) -> Result<&dyn Peers, RunError> {
    shared.peers.as_deref().ok_or_else(|| {
        failure(
            RunErrorKind::Io,
            format!(
                "node {} is another machine's, and none can be reached from here",
                tier_ref.node
            ),
        )
    })
}

/// The receiver of what has arrived of a replica, so that other nodes can read it before it is whole.
fn find_arrivals(shared: &DataContext, to: &Place, key: &StoreKey) -> Option<Arc<dyn Arrivals>> {
    match to {
        Place::Node(tier_ref) => shared.peers.as_deref()?.arriving(*tier_ref, key),
        _ => None,
    }
}

/// The path of a replica, and the path at which it grows.
fn replica_paths(
    shared: &DataContext,
    to: &Place,
    key: &StoreKey,
) -> Result<(PathBuf, PathBuf), RunError> {
    let (dest, staging) = match to {
        Place::Node(tier_ref) => {
            let dir = shared.tier_dir(*tier_ref)?;
            (dir.part(key), dir.incoming().join(&key.0))
        }
        _ => {
            let dest = shared.drained(key)?;
            let staging = dest.with_file_name(format!(".incoming-{}", key.0));
            (dest, staging)
        }
    };
    for path in [&dest, &staging] {
        path.parent().map_or(Ok(()), make_folder)?;
    }
    Ok((dest, staging))
}

fn is_external(place: &Place) -> bool {
    !matches!(place, Place::Node(_))
}

fn rate(shared: &RunFacts, from: &Place, to: &Place) -> u64 {
    let link = &shared.cluster.external;
    match link.emulated {
        true if is_external(to) => link.write,
        true if is_external(from) => link.read,
        _ => 0,
    }
}

fn latency(shared: &RunFacts, from: &Place, to: &Place) -> u64 {
    match is_external(to) || is_external(from) {
        true => shared.cluster.external.latency,
        false => 0,
    }
}

/// Compares the data that was read of a copy that was still arriving with that copy, once its hashes are known: nobody had read
/// the data before.
fn await_known_content(
    shared: &DataContext,
    part: &mut PendingPartTransfer<'_>,
    read: &Manifest,
    control: &Control,
) -> Result<(), RunError> {
    let until = Instant::now() + PUBLISH_TIMEOUT;
    let known = loop {
        let manifest = shared.manifest(&part.key)?;
        if manifest.hash().is_some() {
            break manifest;
        }
        if control.cancelled() {
            return Err(failure(
                RunErrorKind::Cancelled,
                "the transfer was cancelled",
            ));
        }
        if Instant::now() >= until {
            let why = "the copy that it was read from was not completed";
            return Err(failure(RunErrorKind::Io, why));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    if known.hash() != read.hash() {
        let why = "the data that arrived differs from the copy that it was read from";
        return Err(failure(RunErrorKind::Corrupt, why));
    }
    part.manifest = known;
    Ok(())
}

/// The part has arrived: its manifest is completed by what was read, and made durable where its replica is.
fn record_arrival(
    shared: &DataContext,
    part: &PendingPartTransfer<'_>,
    manifest: Manifest,
    began: i64,
    to: &Place,
) -> Result<Hash, RunError> {
    let hash = manifest
        .hash()
        .or_else(|| part.manifest.hash())
        .ok_or_else(|| {
            failure(
                RunErrorKind::Io,
                format!("part {} was copied without being hashed", part.order.part),
            )
        })?;
    let recorded = shared.hashes.lock().ok();
    let recorded = recorded.and_then(|hashes| hashes.get(&part.key).copied());
    if part.order.from == Place::Source && recorded.is_some_and(|recorded| recorded != hash) {
        let why = "the source holds something else than this run has read of it before";
        return Err(failure(RunErrorKind::SourceChanged, why));
    }
    if part.order.from == Place::Source {
        remember(shared, part.order.part.data, &manifest, began);
    }
    // Data outside survives a crash of the machine, so its manifest must.
    let drained = matches!(to, Place::Drained);
    if part.manifest.hash().is_none() || drained {
        let path = shared.manifest_file(&part.key);
        write_manifests([(path.as_path(), &manifest)], drained)?;
    }
    Ok(hash)
}

/// The failure when parts cannot be copied. A source that has vanished is more than an I/O error. A replica never changes, so a
/// changed one is damaged, and there may be another.
fn classify_error(
    shared: &DataContext,
    parts: &[PendingPartTransfer<'_>],
    error: MoverError,
) -> PartTransferError {
    let is_source = |p: &PendingPartTransfer<'_>| p.order.from == Place::Source;
    let vanished = || match parts {
        [only] if is_source(only) => {
            source_of(shared, only).is_ok_and(|s| !is_object(&s.root) && !s.root.exists())
        }
        _ => false,
    };
    let MoverError {
        mut failure, tree, ..
    } = error;
    let found = tree.and_then(|at| parts.get(at));
    match failure.kind {
        RunErrorKind::Io if vanished() => {
            failure.kind = RunErrorKind::SourceChanged;
            failure.message.push_str(
                "; the source vanished while it was read: bring it back, then `tarn resume`",
            );
        }
        RunErrorKind::SourceChanged if found.is_some_and(|p| !is_source(p)) => {
            failure.kind = RunErrorKind::Corrupt;
        }
        _ => {}
    }
    match found {
        Some(part) => PartTransferError::of(part.order.part, failure),
        None => failure.into(),
    }
}
