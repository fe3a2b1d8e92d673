//! The notes on a workflow that is accepted.

use crate::diag::{Finding, FindingCode, quoted};
use crate::spans::Spans;
use miette::SourceSpan;
use tarn_types::id::DataId;
use tarn_types::workflow::{Foreach, Keep, KeepPartition, Workflow};

/// Notes of one workflow that are made at most: more would not be read.
const MAX_NOTES: usize = 32;

/// The notes. `places` are those of the datasets' names.
pub(crate) fn notes(workflow: &Workflow, places: &[SourceSpan], spans: &Spans) -> Vec<Finding> {
    let reads = reads(workflow);
    let made = made(workflow);
    let mut notes = Vec::new();
    let mut partitions = workflow.partitions.iter();
    let edges = reads.iter().any(|(_, version)| *version > 0)
        || partitions.any(|p| p.keep == KeepPartition::Workflow && p.steps.len() > 1);
    if let (false, [first, _, ..]) = (edges, spans.steps.as_slice()) {
        notes.push(
            Finding::note(
                FindingCode::NoteNoDataEdges,
                "no step reads what another step makes",
            )
            .at(
                first.name,
                "this and the other steps are independent in their data",
            )
            .help(
                "tarn keeps data between steps: name it in `out` of one step and `in` of another",
            ),
        );
    }
    for (partition, places) in workflow.partitions.iter().zip(&spans.partitions) {
        if partition.steps.is_empty() && notes.len() < MAX_NOTES {
            let name = quoted(&partition.name);
            notes.push(
                Finding::note(
                    FindingCode::NoteUnusedPartition,
                    format!("partition {name} is not used"),
                )
                .at(places.name, "no step names it")
                .help("remove it, or name it in `partitions` of a step"),
            );
        }
    }
    let mut read = vec![false; workflow.data.len()];
    for (data, _) in &reads {
        read[data.at()] = true;
    }
    for (at, dataset) in workflow.data.iter().enumerate() {
        let name = quoted(&dataset.name);
        if !read[at] && made[at] == 0 {
            notes.push(
                Finding::note(
                    FindingCode::NoteUnusedData,
                    format!("dataset {name} is not used"),
                )
                .at(places[at], "no step names it")
                .help("remove it, or name it in `in`, `out` or `inout` of a step"),
            );
        } else if !read[at]
            && dataset.dest.is_none()
            && dataset.of.is_none()
            && matches!(dataset.keep, Keep::UntilConsumed | Keep::Workflow)
        {
            notes.push(
                Finding::note(
                    FindingCode::NoteUnreadOutput,
                    format!("dataset {name} is made, but nobody gets it"),
                )
                .at(places[at], "no step reads it; it is removed at the end")
                .help("give it a `dest`, or keep it on the nodes with `keep`"),
            );
        }
        if notes.len() == MAX_NOTES {
            break;
        }
    }
    notes
}

/// Every dataset and version that a step reads.
fn reads(workflow: &Workflow) -> Vec<(DataId, u32)> {
    let mut all = Vec::new();
    for step in &workflow.steps {
        all.extend(step.uses.iter().filter_map(|u| Some((u.data, u.reads?))));
        if let Some(Foreach::Entries { data, version, .. }) = &step.foreach {
            all.push((*data, *version));
        }
    }
    all
}

/// How many versions of each dataset steps make.
fn made(workflow: &Workflow) -> Vec<u32> {
    let mut made = vec![0; workflow.data.len()];
    for used in workflow
        .steps
        .iter()
        .flat_map(|s| &s.uses)
        .filter(|u| u.makes.is_some())
    {
        made[used.data.at()] += 1;
    }
    made
}

/// The datasets of which the policy `stage-through` must put a version into `external`: those that steps make
/// and that have no `dest`, and those with several made versions, of which `dest` takes the last only.
///
/// # Examples
/// ```
/// # let text = r#"
/// #     name = "words"
/// #     [data.text]
/// #     source = "books"
/// #     [data.total]
/// #     dest = "result"
/// #     [[step]]
/// #     name = "count"
/// #     run = "cat $TARN_text/* | wc -w > $TARN_total/words"
/// #     in = ["text"]
/// #     out = ["total"]
/// # "#;
/// # let workflow = tarn_spec::parse("words.toml", text, "/home/me".as_ref())?.workflow;
/// assert!(tarn_spec::needs_external(&workflow).is_empty()); // `total` has a `dest`
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn needs_external(workflow: &Workflow) -> Vec<DataId> {
    let made = made(workflow);
    let without_place = |at: &usize| made[*at] > u32::from(workflow.data[*at].dest.is_some());
    (0..made.len())
        .filter(without_place)
        .map(|at| DataId(at as u32))
        .collect()
}
