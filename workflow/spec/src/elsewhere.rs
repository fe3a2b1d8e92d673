//! Datasets that are not the workflow's own: `of`, and `project` of a site. docs/reference/workflow-file.md, docs/guide/on-a-site.md.

use crate::diag::{Finding, FindingCode, Findings, quoted};
use crate::section::{Located, Section, place};
use tarn_types::named::{NamedDataset, Whose, is_name};
use tarn_types::workflow::Dataset;

/// Which dataset of the site it is.
pub(crate) struct Elsewhere {
    pub(crate) named: NamedDataset,
    /// It is a project's, which its members change; a dataset that `of` names is only read.
    pub(crate) is_ours: bool,
}

/// Keys that make no sense for a dataset that somebody else makes.
const MAKERS: [&str; 10] = [
    "project",
    "source",
    "dest",
    "size",
    "scatter",
    "keep",
    "copies",
    "on_failure",
    "tier",
    "encrypt",
];
/// Keys that a project's dataset cannot have.
const NOT_OURS: [(&str, &str); 1] = [(
    "scatter",
    "a job's first node publishes what belongs to a project",
)];

pub(crate) fn read(
    out: &mut Findings,
    section: &Section<'_>,
    name: &str,
) -> Option<Located<Elsewhere>> {
    if section.get("of").is_some() {
        return of(out, section);
    }
    let group = section.string(out, "project", "\"climate\"")?;
    for (key, why) in NOT_OURS {
        if let Some(value) = section.get(key) {
            out.add(
                Finding::error(
                    FindingCode::BadValue,
                    format!("`{key}` of {}, which is a project's", section.what),
                )
                .at(place(value), "cannot stand here")
                .help(why),
            );
        }
    }
    let Some(named) = NamedDataset::of_project(&group.value, name) else {
        out.add_breaking(
            Finding::error(
                FindingCode::BadName,
                format!(
                    "{} cannot be the group of {}",
                    quoted(&group.value),
                    section.what
                ),
            )
            .at(group.span, "not the name of a group")
            .help("write the name of the project's group, such as \"climate\""),
        );
        return None;
    };
    let is_ours = true;
    Some(Located::new(Elsewhere { named, is_ours }, group.span))
}

fn of(out: &mut Findings, section: &Section<'_>) -> Option<Located<Elsewhere>> {
    let text = section.string(out, "of", "\"alice/foam/mesh\"");
    // One that cannot be read is still one: there is no report that nobody makes the dataset.
    out.uses_broken |= text.is_none();
    let text = text?;
    for key in MAKERS {
        if let Some(value) = section.get(key) {
            out.add(
                Finding::error(
                    FindingCode::BadValue,
                    format!("{} is made elsewhere (`of`), and has `{key}`", section.what),
                )
                .at(place(value), "cannot stand here")
                .at(text.span, "the dataset that is read")
                .help(format!(
                    "leave `{key}` out: the workflow that makes the dataset sets it; a step of yours that copies it makes your own dataset"
                )),
            );
        }
    }
    match named(&text.value) {
        Some(named) => {
            let is_ours = false;
            Some(Located::new(Elsewhere { named, is_ours }, text.span))
        }
        None => {
            out.add_breaking(
                Finding::error(
                    FindingCode::BadName,
                    format!("{} names no dataset", quoted(&text.value)),
                )
                .at(text.span, "not understood")
                .help("write \"DATASET\" or \"WORKFLOW/DATASET\" of your own; on a site also \"USER/WORKFLOW/DATASET\" or \"@GROUP/DATASET\" (docs/guide/on-a-site.md)"),
            );
            None
        }
    }
}

/// A dataset by its full name, or by its own name alone where only one workflow has one of that name.
fn named(text: &str) -> Option<NamedDataset> {
    if is_name(text) {
        return Some(NamedDataset {
            whose: Whose::Own,
            workflow: None,
            dataset: text.to_owned(),
        });
    }
    text.parse().ok()
}

/// Jobs of a site name the workflow too: which others there are is not known when they are submitted.
pub(crate) fn no_workflow(dataset: &Dataset, at: Option<miette::SourceSpan>) -> Option<Finding> {
    let (named, at) = (dataset.of.as_ref()?, at?);
    if named.whose != Whose::Own || named.workflow.is_some() {
        return None;
    }
    let finding = Finding::error(
        FindingCode::BadName,
        format!(
            "`of` of dataset {} names no workflow",
            quoted(&dataset.name)
        ),
    )
    .at(at, "which workflow's?");
    Some(finding.help(format!(
        "write \"WORKFLOW/{0}\" of your own, \"USER/WORKFLOW/{0}\" or \"@GROUP/{0}\" (docs/guide/on-a-site.md)",
        named.dataset
    )))
}

/// The refusal of a step that makes somebody else's dataset.
pub(crate) fn made_elsewhere(step: &str, item: &str, at: miette::SourceSpan) -> Finding {
    Finding::error(
        FindingCode::SourceAsOutput,
        format!(
            "step {} makes {}, which is somebody else's",
            quoted(step),
            quoted(item)
        ),
    )
    .at(at, "only `in` can name it")
    .help("give the step's output another name; a project's dataset is changed by `project = \"GROUP\"`")
}

/// The refusal of others' datasets where there is no site. One's own are read there too.
pub(crate) fn no_site(
    dataset: &str,
    named: &NamedDataset,
    at: miette::SourceSpan,
) -> Option<Finding> {
    let (whose, hint) = match named.whose {
        Whose::Own => return None,
        Whose::Project(_) => ("a project's dataset", ""),
        Whose::User(_) => (
            "a user's dataset",
            "; a dataset of your own is named without the user: \"WORKFLOW/DATASET\"",
        ),
    };
    let finding = Finding::error(
        FindingCode::NoSite,
        format!(
            "dataset {} is {whose} on a site ({}), and this is not a site",
            quoted(dataset),
            quoted(&named.to_string())
        ),
    )
    .at(at, "asked for here");
    Some(finding.help(format!(
        "submit the job with sbatch where tarn serves the cluster (docs/guide/on-a-site.md), or give the dataset a `source`{hint}"
    )))
}
