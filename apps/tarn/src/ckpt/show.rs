//! `tarn ckpt show`.

use super::version_catalog::{PrintableName, ReadableArena, StagedFile, TierVersionCatalog};
use super::{CheckpointLocation, named, no_version, printable};
use crate::error::CliResult;
use crate::globals::Globals;
use crate::print::{self, message, out};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use tarn_checkpoint_core::{Object, ObjectPiece, PieceLocation, Shape, VersionId};
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

pub(super) fn show(
    globals: &Globals,
    place: &CheckpointLocation,
    run: &OsStr,
    wanted: Option<VersionId>,
) -> CliResult {
    let version_catalog = TierVersionCatalog::open(place)?;
    let run = version_catalog.run(run)?;
    let mut arenas = Vec::new();
    for held in run.arenas() {
        match held {
            Ok(held) => arenas.push(held),
            Err(why) => message!("warning: {}", printable(why.to_string().as_bytes())),
        }
    }
    let all = || {
        let versions = arenas.iter().flat_map(|held| held.arena.versions());
        versions.map(|v| v.id)
    };
    let found = wanted.or(all().max()).filter(|id| all().any(|v| v == *id));
    let Some(id) = found else {
        return Err(no_version(&run.printable(), wanted, all()));
    };
    if !globals.json {
        out!("version {} of {}", named(id), run.printable())?;
        out!(
            "{:>6} {:<24} {:>12} {:>6} {:<28} {:>6}  in",
            "rank",
            "object",
            "size",
            "unit",
            "shape",
            "pieces"
        )?;
    }
    let mut shown = BTreeSet::new();
    let mut all_here = true;
    for held in &arenas {
        let rank = held.arena.header().rank;
        let version = held.arena.versions().iter().find(|v| v.id == id);
        let Some(version) = version.filter(|_| shown.insert(rank)) else {
            continue;
        };
        let staged = run.staged(held);
        for object in &version.manifest.objects {
            all_here &= object.pieces.iter().all(|piece| is_here(piece, &staged));
            if globals.json {
                print::json(&line(&run.text(), id, held, &staged, object))?
            } else {
                out!(
                    "{rank:>6} {:<24} {:>12} {:>6} {:<28} {:>6}  {}",
                    printable(&object.key),
                    Bytes(object.size()),
                    object.unit,
                    shape(&object.shape),
                    object.pieces.len(),
                    places(object, &staged)
                )?
            }
        }
    }
    if !all_here {
        message!("the staged data of some ranks {}", place.is_not_in_memory());
    }
    Ok(Exit::Success)
}

fn is_here(piece: &ObjectPiece, staged: &[StagedFile]) -> bool {
    matches!(piece.place, PieceLocation::Arena(_)) || !copies(piece, staged).is_empty()
}

/// The files in memory that have a piece.
fn copies<'s>(piece: &ObjectPiece, staged: &'s [StagedFile]) -> Vec<&'s StagedFile> {
    match piece.place {
        PieceLocation::Arena(_) => Vec::new(),
        PieceLocation::Staged(at) => {
            let range = at..at.saturating_add(piece.length);
            staged.iter().filter(|s| s.has(&range)).collect()
        }
    }
}

fn places(object: &Object, staged: &[StagedFile]) -> String {
    let mut places = BTreeSet::new();
    for piece in &object.pieces {
        let copies = copies(piece, staged);
        match piece.place {
            PieceLocation::Arena(_) => drop(places.insert("arena")),
            PieceLocation::Staged(_) if copies.is_empty() => {
                places.insert("staging (not here)");
            }
            PieceLocation::Staged(_) => places.extend(copies.iter().map(|s| s.what)),
        }
    }
    places.into_iter().collect::<Vec<_>>().join(", ")
}

fn shape(shape: &Shape) -> String {
    match shape {
        Shape::Own => "own".into(),
        Shape::Replicated => "replicated".into(),
        Shape::Irregular(row) => format!("rows of {row} B"),
        Shape::Block(dimensions) => {
            let one = |d: &[u64; 4]| match d {
                [all, first, count, 0] => format!("{first}+{count}/{all}"),
                [all, first, count, ghost] => format!("{first}+{count}/{all}~{ghost}"),
            };
            let each: Vec<String> = dimensions.iter().map(one).collect();
            format!("block {}", each.join(" "))
        }
    }
}

fn line(
    run: &str,
    id: VersionId,
    held: &ReadableArena,
    staged: &[StagedFile],
    object: &Object,
) -> Value {
    let shape = match &object.shape {
        Shape::Own => json!({"kind": "own"}),
        Shape::Replicated => json!({"kind": "replicated"}),
        Shape::Irregular(row) => json!({"kind": "irregular", "row": row}),
        Shape::Block(dimensions) => {
            let one = |[all, first, count, ghost]: &[u64; 4]| json!({"all": all, "first": first, "count": count, "ghost": ghost});
            let each: Vec<Value> = dimensions.iter().map(one).collect();
            json!({"kind": "block", "dimensions": each})
        }
    };
    let piece = |piece: &ObjectPiece| {
        let here: Vec<Value> = match piece.place {
            PieceLocation::Arena(_) => {
                vec![json!({"in": "arena", "path": held.path.to_string_lossy()})]
            }
            PieceLocation::Staged(_) => copies(piece, staged)
                .iter()
                .map(|s| json!({"in": s.what, "path": s.path.to_string_lossy()}))
                .collect(),
        };
        let (place, at) = match piece.place {
            PieceLocation::Arena(at) => ("arena", at),
            PieceLocation::Staged(at) => ("staging", at),
        };
        json!({"place": place, "at": at, "bytes": piece.length, "here": here})
    };
    let pieces: Vec<Value> = object.pieces.iter().map(piece).collect();
    json!({
        "schema": 1, "run": run, "generation": id.generation, "number": id.number,
        "rank": held.arena.header().rank, "ranks": held.arena.header().ranks,
        "key": String::from_utf8_lossy(&object.key), "bytes": object.size(), "unit": object.unit,
        "shape": shape, "pieces": pieces,
    })
}
