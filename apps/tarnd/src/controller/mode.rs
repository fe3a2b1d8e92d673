//! What tarn does in Slurm with its decisions: docs/admin/site.md, "Modes".

use anyhow::{Context, bail};
use serde::Deserialize;
use tarn_proto::site::{ControllerReply, PlacementAdvice};
use tarn_types::policy::{Order, Policy};
use tarn_types::units::parse_time;

/// The mode of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SiteMode {
    /// It plans and logs, and changes nothing in Slurm.
    Observe,
    /// It has Slurm prefer nodes with data, and avoid those without space.
    #[default]
    Advise,
    /// It reserves nodes for workflows too.
    Drive,
}

impl SiteMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Advise => "advise",
            Self::Drive => "drive",
        }
    }

    /// Whether it changes anything in Slurm.
    pub(super) fn acts(self) -> bool {
        self != Self::Observe
    }

    /// A reply to Slurm's scripts, without what they would change in Slurm if this mode changes nothing.
    pub(super) fn permitted(self, reply: ControllerReply) -> ControllerReply {
        match reply {
            ControllerReply::Advice(_) if !self.acts() => {
                ControllerReply::Advice(PlacementAdvice::default())
            }
            ControllerReply::Advices(_) if !self.acts() => ControllerReply::Advices(Vec::new()),
            reply => reply,
        }
    }
}

/// The lines of site.toml about plans.
#[derive(Debug, Clone, Default)]
pub(super) struct PlanningLines<'a> {
    pub(super) mode: SiteMode,
    pub(super) policy: Option<&'a str>,
    pub(super) bound: Option<&'a str>,
}

impl PlanningLines<'_> {
    /// The policy that plans.
    pub(super) fn policy(&self) -> anyhow::Result<Policy> {
        let text = self.policy.unwrap_or("data");
        let mut policy: Policy = text.parse().context("policy")?;
        if policy.order == Order::Energy {
            bail!(
                "policy: tarn puts nodes of a site to sleep by `sleep`, not by a policy: take `data`"
            );
        }
        if let Some(bound) = self.bound {
            if policy.order != Order::Data {
                bail!(
                    "bound: policy `{text}` promises nothing: leave it out, or take policy `data`"
                );
            }
            if text.contains("bound=") {
                bail!("bound: policy `{text}` has one already: leave one of them out");
            }
            policy.bound = parse_time(bound).context("bound")?;
        }
        Ok(policy)
    }
}
