//! Steps of a run may need more of this machine than programs and space: one namespace over nodes, images of processes.

use super::Config;
use crate::helper::image::Criu;
use crate::helper::image::able::try_images;
use crate::helper::namespaces::{Namespaces, isolation, probe_shared};
use crate::helper::protocol::StepIsolation;
use tarn_ports::CapabilityError;
use tarn_types::nodes::OwnedNodes;
use tarn_types::workflow::CheckpointMethod::Image;
use tarn_types::workflow::{Distribution, Workflow};

/// The capabilities of this machine for steps, or why they are missing.
pub(super) struct StepCapabilities {
    pub(super) isolation: Result<StepIsolation, CapabilityError>,
    pub(super) one_namespace: Result<(), CapabilityError>,
    /// Images of processes; none where no step wants them.
    pub(super) imaging: Option<Result<Criu, CapabilityError>>,
}

impl StepCapabilities {
    pub(super) fn probe(config: &Config) -> Self {
        let isolation = match (&config.own, config.namespaces) {
            (OwnedNodes::Some(nodes), _) if nodes.is_empty() => Err(no_step()),
            (_, Namespaces::Auto) => isolation(&config.helper_exe, &config.state.run(&config.run)),
            (_, Namespaces::Off) => Err(CapabilityError::new("namespaces are switched off")),
        };
        let isolated = isolation.clone().map(drop);
        let alone = wants_images(&config.workflow);
        Self {
            one_namespace: isolated.and_then(|()| one_namespace(config)),
            imaging: alone.map(|alone| imaging(config, &isolation, alone)),
            isolation,
        }
    }
}

/// Whether the nodes of a step can have one namespace. On one machine they have one folder; elsewhere it is looked, if a step wants
/// it, whether the programs for it are there and whether each tier can hold a brick.
fn one_namespace(config: &Config) -> Result<(), CapabilityError> {
    let wanted = config.workflow.steps.iter().flat_map(|s| &s.uses);
    let wanted = wanted
        .filter(|u| u.distribution == Distribution::Shared)
        .count()
        > 0;
    let OwnedNodes::Some(own) = &config.own else {
        return Ok(());
    };
    if !wanted || own.is_empty() {
        return Ok(());
    }
    probe_shared(&config.helper_exe)?;
    let nodes = own.iter().filter_map(|n| config.cluster.nodes.get(n.at()));
    for tier in nodes.flat_map(|n| &n.tiers) {
        let can = config.mover.capabilities(&tier.root);
        if !can.map_err(CapabilityError::new)?.xattrs {
            return Err(CapabilityError::new(format_args!(
                "the file system of tier {} ({}) has no user attributes, which GlusterFS needs (tmpfs has them from Linux 6.6 on)",
                tier.name,
                tier.root.display()
            )));
        }
    }
    Ok(())
}

fn no_step() -> CapabilityError {
    CapabilityError::new("no step runs here")
}

/// Whether images can be taken and restored here, for the steps of a run, of which one may be alone.
fn imaging(
    config: &Config,
    found: &Result<StepIsolation, CapabilityError>,
    alone: bool,
) -> Result<Criu, CapabilityError> {
    if matches!(&config.own, OwnedNodes::Some(nodes) if nodes.is_empty()) {
        return Err(no_step());
    }
    let isolate = found.as_ref().map_err(CapabilityError::needs_namespaces)?;
    let folder = config.state.run(&config.run);
    try_images(
        &config.helper_exe,
        &folder,
        *isolate,
        &config.caller_env,
        &*config.mover,
        alone,
    )
}

/// Whether one of the steps with images is alone, if there is one.
fn wants_images(workflow: &Workflow) -> Option<bool> {
    let restarts = workflow.steps.iter().filter_map(|s| s.restart);
    let of_images = restarts.filter(|r| r.from == Image);
    of_images.map(|r| r.alone).reduce(|one, other| one || other)
}
