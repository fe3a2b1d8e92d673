//! Datasets of a site that are not the workflow's own: `of` and `project`. docs/site.md.

use crate::diag::{Code, Finding, Findings, quoted};
use crate::section::{Located, Section, place};
use tarn_base::named::{Named, Whose};

/// Which dataset of the site it is.
pub(crate) struct Elsewhere {
    pub(crate) named: Named,
    /// It is a project's, which its members change; what `of` names is only read.
    pub(crate) is_ours: bool,
}

/// Keys that say nothing of a dataset that somebody else makes.
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
                    Code::BadValue,
                    format!("`{key}` of {}, which is a project's", section.what),
                )
                .at(place(value), "cannot stand here")
                .help(why),
            );
        }
    }
    let Some(named) = Named::of_project(&group.value, name) else {
        out.add_breaking(
            Finding::error(
                Code::BadName,
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
    // One that cannot be read is still one: do not say that nobody makes the dataset.
    out.uses_broken |= text.is_none();
    let text = text?;
    for key in MAKERS {
        if let Some(value) = section.get(key) {
            out.add(
                Finding::error(
                    Code::BadValue,
                    format!("{} is somebody else's, and has `{key}`", section.what),
                )
                .at(place(value), "not yours to say")
                .at(text.span, "it is this dataset of the site")
                .help(
                    "leave it out: whoever makes the dataset says it; your own copy has another name",
                ),
            );
        }
    }
    match text.value.parse::<Named>() {
        Ok(named) => {
            let is_ours = false;
            Some(Located::new(Elsewhere { named, is_ours }, text.span))
        }
        Err(_) => {
            out.add_breaking(
                Finding::error(
                    Code::BadName,
                    format!("{} names no dataset of a site", quoted(&text.value)),
                )
                .at(text.span, "not understood")
                .help("write \"USER/WORKFLOW/DATASET\", \"@GROUP/DATASET\", or \"WORKFLOW/DATASET\" of your own (docs/site.md)"),
            );
            None
        }
    }
}

/// What is somebody else's is made and changed by them.
pub(crate) fn made_elsewhere(step: &str, item: &str, at: miette::SourceSpan) -> Finding {
    Finding::error(
        Code::SourceAsOutput,
        format!(
            "step {} makes {}, which is somebody else's",
            quoted(step),
            quoted(item)
        ),
    )
    .at(at, "only `in` can name it")
    .help("give what the step makes a name of its own; a project's dataset is changed by `project = \"GROUP\"`")
}

/// Where it is refused: where there is no site.
pub(crate) fn no_site(dataset: &str, named: &Named, at: miette::SourceSpan) -> Finding {
    let whose = match named.whose {
        Whose::Project(_) => "a project's dataset",
        _ => "another workflow's dataset",
    };
    Finding::error(
        Code::NoSite,
        format!(
            "dataset {} is {whose} on a site ({}), and this is none",
            quoted(dataset),
            quoted(&named.to_string())
        ),
    )
    .at(at, "asked for here")
    .help("submit the job with sbatch where tarn serves the cluster (docs/site.md), or give the dataset a `source`")
}
