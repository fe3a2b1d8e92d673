//! How an item is divided over the nodes of its step.

use crate::diag::{Finding, FindingCode, quoted};
use crate::item::{Dist, RawStepItem};
use crate::step::RawStep;
use tarn_types::workflow::{Distribution, Role};

/// How an item is divided over the step's nodes.
pub(crate) fn distribution(step: &RawStep, item: &RawStepItem) -> Result<Distribution, Finding> {
    let what = quoted(&step.name.value);
    if item.dist == Some(Dist::Gather) && item.role != Role::In {
        return Err(Finding::error(
            FindingCode::BadDistribution,
            format!("step {what} cannot gather what it writes"),
        )
        .at(item.span, "`gather` is for `in`")
        .help(format!(
            "write \"{}:single\": the step's first node has all of it",
            item.name
        )));
    }
    if step.nodes() == 1 {
        return Ok(Distribution::Single);
    }
    match item.dist {
        Some(Dist::Single | Dist::Gather) => Ok(Distribution::Single),
        Some(Dist::Scatter) => Ok(Distribution::Scatter),
        Some(Dist::Broadcast) => Ok(Distribution::Broadcast),
        Some(Dist::Shared) => Ok(Distribution::Shared),
        None if item.role == Role::In => Ok(Distribution::Broadcast),
        None => {
            let name = &item.name;
            let mut problem = Finding::error(
                FindingCode::BadDistribution,
                format!(
                    "step {what} does not say how {} is divided over its {} nodes",
                    quoted(name),
                    step.nodes()
                ),
            )
            .at(item.span, "needs a distribution");
            if let Some(nodes) = &step.nodes {
                problem = problem.at(nodes.span, "several nodes");
            }
            Err(problem.help(format!(
                "write \"{name}:scatter\" (each node has its ranks' part), \"{name}:single\" (the first node has it) or \
                 \"{name}:broadcast\" (every node makes the same)"
            )))
        }
    }
}
