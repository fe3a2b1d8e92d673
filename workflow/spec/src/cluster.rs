//! The requirements on the machine, checked before anything starts.

use crate::diag::{Finding, FindingCode, Findings, SpecError, quoted};
use crate::elsewhere::no_site;
use crate::parsed::Parsed;
use crate::partition_check::{check_clear, check_names, check_partition, check_site_partition};
use crate::space_check::{SpaceCheck, check_space};
use crate::spans::StepSpans;
use crate::tier_names::unknown_tier;
use miette::SourceSpan;
use std::collections::BTreeSet;
use std::fmt::Display;
use tarn_types::cluster::{Cluster, Node};
use tarn_types::units::Bytes;
use tarn_types::workflow::{CheckpointMethod, Distribution, Restart, Role, Step};

/// Why something cannot be done here, because of the machine or the user's settings: a text for people, who
/// alone can change that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Inability(String);

impl Inability {
    /// An inability, with its reason.
    pub fn new(why: impl Display) -> Self {
        Self(why.to_string())
    }
}

/// The abilities of a way of running.
#[derive(Debug, Clone)]
pub struct Abilities {
    /// Whether a step can run on several nodes; if not, why not.
    pub multi_node: Result<(), Inability>,
    /// Whether the nodes of a step can have one namespace; if not, why not.
    pub shared: Result<(), Inability>,
    /// Whether images of a step's processes can be taken; if not, why not.
    pub images: Result<(), Inability>,
    /// Whether a dataset can be encrypted; if not, why not.
    pub encryption: Result<(), Inability>,
}

/// Checks that a cluster can run the workflow: nodes, cores, memory, GPUs, tiers, space where it is certain
/// that there is too little, and distributions.
///
/// # Errors
/// All that the cluster lacks, each with its place in the workflow file.
///
/// # Examples
/// ```
/// use tarn_spec::{Abilities, Inability, check_cluster};
/// use tarn_types::cluster::{Cluster, Link};
///
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
/// # let parsed = tarn_spec::parse("words.toml", text, "/home/me".as_ref())?;
/// let link = Link { read: 1 << 30, write: 1 << 30, latency: 0, streams: 4, emulated: false };
/// let empty = Cluster { hosts: Vec::new(), nodes: Vec::new(), external: link.clone(), peer: link };
/// let no = || Err(Inability::new("this machine has no such thing"));
/// let abilities = Abilities { multi_node: no(), shared: no(), images: no(), encryption: no() };
/// let rejected = check_cluster(&parsed, &empty, &abilities).unwrap_err();
/// assert!(!rejected.problems().is_empty()); // it has no node for the step
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn check_cluster(
    parsed: &Parsed,
    cluster: &Cluster,
    abilities: &Abilities,
) -> Result<(), SpecError> {
    let mut out = Findings::new(parsed.source.clone());
    let tiers: BTreeSet<&str> = cluster
        .nodes
        .iter()
        .flat_map(|n| &n.tiers)
        .map(|t| t.name.as_str())
        .collect();
    for (dataset, spans) in parsed.workflow.data.iter().zip(&parsed.spans.data) {
        if let Some(span) = spans.copies
            && dataset.copies as usize > cluster.nodes.len()
        {
            let what = format!(
                "dataset {} wants {} copies",
                quoted(&dataset.name),
                dataset.copies
            );
            out.add(too_few_nodes(what, span, cluster.nodes.len()));
        }
        if let (true, Some(span), Err(why)) =
            (dataset.encrypt, spans.encrypt, &abilities.encryption)
        {
            out.add(no_encryption(&dataset.name, why, span));
        }
        if let (Some(named), Some(span)) = (&dataset.of, spans.elsewhere) {
            no_site(&dataset.name, named, span)
                .into_iter()
                .for_each(|finding| out.add(finding));
        }
        if let (Some(tier), Some(span)) = (&dataset.tier, spans.tier)
            && !tiers.contains(tier.as_str())
        {
            out.add(unknown_tier(
                &format!("dataset {}", quoted(&dataset.name)),
                tier,
                span,
                &tiers,
            ));
        }
    }
    let spaces = SpaceCheck::new(parsed, cluster);
    // Most steps of a large workflow need the same: resources that are known to fit are not tried again.
    let mut fitting = BTreeSet::new();
    for (step, spans) in parsed.workflow.steps.iter().zip(&parsed.spans.steps) {
        let shape = (step.nodes, step.cores, step.memory, step.gpus, &step.tier);
        if !fitting.contains(&shape) && check_step(&mut out, step, spans, cluster, &tiers) {
            fitting.insert(shape);
        }
        check_abilities(&mut out, step, spans, abilities);
        check_checkpoints(&mut out, parsed, step, spans);
        check_one_namespace(&mut out, parsed, step, spans);
        check_space(&mut out, parsed, step, spans, &spaces);
    }
    let partitions = parsed.workflow.partitions.iter();
    for (partition, spans) in partitions.zip(&parsed.spans.partitions) {
        check_partition(&mut out, parsed, (partition, spans), (cluster, &tiers));
        check_names(&mut out, parsed, (partition, spans), cluster);
        check_clear(&mut out, parsed, (partition, spans));
    }
    match out.is_empty() {
        true => Ok(()),
        false => Err(out.into_rejected()),
    }
}

/// Checks that the jobs of a site can have the resources in the script of one of them, by the script
/// alone.
///
/// # Errors
/// All that a site cannot do yet: each with its place, and a remedy.
pub fn check_site(parsed: &Parsed) -> Result<(), SpecError> {
    let mut out = Findings::new(parsed.source.clone());
    if let (true, Some(span)) = (parsed.workflow.erase, parsed.spans.erase) {
        out.add(
            Finding::error(FindingCode::NoErasure, "`erase` holds on no site: its nodes serve other workflows beside this one")
                .at(span, "asked for here")
                .help("use `encrypt` for data that must not be found again, or ask for nodes that overwrite all that they remove (`tarnd --site --erase`)"),
        );
    }
    let uses = parsed.workflow.steps.iter().flat_map(|step| &step.uses);
    let made: BTreeSet<usize> = uses
        .filter(|used| used.role != Role::In)
        .map(|used| used.data.at())
        .collect();
    let data = parsed.workflow.data.iter().zip(&parsed.spans.data);
    for (at, (dataset, spans)) in data.enumerate() {
        let is_unknown = dataset.size.is_none() && made.contains(&at);
        if let (true, true, Some(span)) = (dataset.encrypt, is_unknown, spans.encrypt) {
            out.add(no_encryption(&dataset.name, NO_SIZE, span).help(ADD_SIZE));
        }
    }
    for (step, spans) in parsed.workflow.steps.iter().zip(&parsed.spans.steps) {
        check_site_step(&mut out, step, spans);
        check_checkpoints(&mut out, parsed, step, spans);
    }
    let partitions = parsed.workflow.partitions.iter();
    for of in partitions.zip(&parsed.spans.partitions) {
        check_site_partition(&mut out, of);
        check_clear(&mut out, parsed, of);
    }
    match out.is_empty() {
        true => Ok(()),
        false => Err(out.into_rejected()),
    }
}

/// The settings of a step that a job cannot have.
fn check_site_step(out: &mut Findings, step: &Step, spans: &StepSpans) {
    let of_images = step.restart.filter(|r| r.from == CheckpointMethod::Image);
    if let (Some(_), Some(span)) = (of_images, spans.restart) {
        let (why, instead) = Restart::NO_IMAGES;
        let finding = Finding::error(FindingCode::NoImages, why);
        out.add(finding.at(span, "asked for here").help(instead));
    }
    let shared = spans.uses.iter().find(|(_, is_shared)| *is_shared);
    if let Some((span, _)) = shared.filter(|_| step.nodes > 1) {
        let (why, instead) = Distribution::NO_SHARED;
        let finding = Finding::error(FindingCode::NoShared, why);
        out.add(finding.at(*span, "`shared`").help(instead));
    }
}

/// Why a job's output of a dataset cannot be encrypted.
const NO_SIZE: &str = "a job writes it to memory, and its size is not stated";
const ADD_SIZE: &str = "add `size`, the most that its job writes";

fn no_encryption(dataset: &str, why: impl Display, at: SourceSpan) -> Finding {
    Finding::error(
        FindingCode::NoEncryption,
        format!("dataset {} cannot be encrypted: {why}", quoted(dataset)),
    )
    .at(at, "asked for here")
    .help("leave `encrypt` out, or run where this is possible (docs/admin/security.md, \"Encryption\")")
}

fn too_few_nodes(what: String, span: SourceSpan, there: usize) -> Finding {
    Finding::error(
        FindingCode::TooFewNodes,
        format!("{what}; there {}", are(there, "node")),
    )
    .at(span, "more than there are")
    .help("lower it, or run with more nodes")
}

/// "1 GPU", "2 GPUs".
fn some(n: impl Into<u64>, noun: &str) -> String {
    match n.into() {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
}

fn are(n: usize, noun: &str) -> String {
    match n {
        0 => format!("is no {noun}"),
        1 => format!("is 1 {noun}"),
        n => format!("are {n} {noun}s"),
    }
}

const LOWER: &str = "lower it, or run on nodes that offer more; `tarn nodes` lists what they offer";
const MORE_MEMORY: &str = "lower it, or give the nodes more memory: in a Slurm job ask for more (`#SBATCH --mem`); a tier in \
                           memory takes its size from the node's memory; `tarn nodes` lists both";

/// The hint if one machine is divided into more nodes than its cores allow for this step.
fn fewer_nodes(cluster: &Cluster, step: &Step) -> Option<String> {
    let [host] = cluster.hosts.as_slice() else {
        return None;
    };
    let fit = host.cores.checked_div(step.cores)?;
    let nodes = cluster.nodes.len();
    (fit >= step.nodes && (fit as usize) < nodes).then(|| {
        format!(
            "`--nodes {nodes}` divides the {} cores of this machine: use `--nodes {fit}`, or lower `cores`",
            host.cores
        )
    })
}

/// One thing that every node of a step must have.
struct Want<'s> {
    code: FindingCode,
    span: Option<SourceSpan>,
    /// The wanted resource, in words.
    text: String,
    /// The most that a node has, in words.
    most: String,
    help: String,
    has: Box<dyn Fn(&Node) -> bool + 's>,
}

fn wants<'s>(step: &'s Step, spans: &StepSpans, cluster: &Cluster) -> Vec<Want<'s>> {
    let most = |of: fn(&Node) -> u64| cluster.nodes.iter().map(of).max().unwrap_or(0);
    let mut wants = vec![Want {
        code: FindingCode::TooFewCores,
        span: spans.cores,
        text: some(step.cores, "core"),
        most: format!("the largest node offers {}", most(|n| u64::from(n.cores))),
        help: fewer_nodes(cluster, step).unwrap_or_else(|| LOWER.into()),
        has: Box::new(|n| n.cores >= step.cores),
    }];
    if step.memory > 0 {
        wants.push(Want {
            code: FindingCode::TooLittleMemory,
            span: spans.memory,
            text: format!("{} of memory", Bytes(step.memory)),
            most: format!("the largest node offers {}", Bytes(most(|n| n.memory))),
            help: MORE_MEMORY.into(),
            has: Box::new(|n| n.memory >= step.memory),
        });
    }
    if step.gpus > 0 {
        wants.push(Want {
            code: FindingCode::TooFewGpus,
            span: spans.gpus,
            text: some(step.gpus, "GPU"),
            most: format!("the largest node has {}", most(|n| u64::from(n.gpus))),
            help: LOWER.into(),
            has: Box::new(|n| n.gpus >= step.gpus),
        });
    }
    if let Some(tier) = &step.tier {
        wants.push(Want {
            code: FindingCode::UnknownTier,
            span: spans.tier,
            text: format!("tier {}", quoted(tier)),
            most: "not every node has it".into(),
            help:
                "name a tier that enough nodes have, or run on other nodes; `tarn nodes` lists them"
                    .into(),
            has: Box::new(move |n| n.tiers.iter().any(|t| t.name == *tier)),
        });
    }
    wants
}

/// Whether enough nodes have the resource that a step wants.
fn check_step(
    out: &mut Findings,
    step: &Step,
    spans: &StepSpans,
    cluster: &Cluster,
    tiers: &BTreeSet<&str>,
) -> bool {
    let what = format!("step {}", quoted(&step.name));
    let nodes = step.nodes as usize;
    if nodes > cluster.nodes.len() {
        let span = spans.nodes.unwrap_or(spans.name);
        out.add(too_few_nodes(
            format!("{what} wants {nodes} nodes"),
            span,
            cluster.nodes.len(),
        ));
        return false;
    }
    if let (Some(tier), Some(span)) = (&step.tier, spans.tier)
        && !tiers.contains(tier.as_str())
    {
        out.add(unknown_tier(&what, tier, span, tiers));
        return false;
    }
    let wants = wants(step, spans, cluster);
    let mut lacking = false;
    for want in &wants {
        let enough = cluster.nodes.iter().filter(|n| (want.has)(n)).count();
        if enough < nodes {
            lacking = true;
            let on = if nodes == 1 {
                "a node".to_owned()
            } else {
                format!("each of {nodes} nodes")
            };
            out.add(
                Finding::error(
                    want.code,
                    format!("{what} wants {} on {on}; {}", want.text, want.most),
                )
                .at(
                    want.span.unwrap_or(spans.name),
                    format!(
                        "{} it, {nodes} wanted",
                        if enough == 1 {
                            "1 node has".into()
                        } else {
                            format!("{enough} nodes have")
                        }
                    ),
                )
                .help(want.help.as_str()),
            );
        }
    }
    !lacking && check_together(out, &what, step, spans, cluster, &wants)
}

/// All wants on the same nodes, and within the sum of the hosts that they share.
fn check_together(
    out: &mut Findings,
    what: &str,
    step: &Step,
    spans: &StepSpans,
    cluster: &Cluster,
    wants: &[Want<'_>],
) -> bool {
    let mut fit = vec![0u64; cluster.hosts.len()];
    let mut nodes = 0u64;
    for node in cluster
        .nodes
        .iter()
        .filter(|n| wants.iter().all(|w| (w.has)(n)))
    {
        nodes += 1;
        if let Some(host) = fit.get_mut(node.host as usize) {
            *host += 1;
        }
    }
    let text = wants
        .iter()
        .map(|w| w.text.clone())
        .collect::<Vec<_>>()
        .join(", ");
    let wanted = u64::from(step.nodes);
    let span = spans.nodes.unwrap_or(spans.name);
    if nodes < wanted {
        out.add(
            Finding::error(
                FindingCode::TooFewNodes,
                format!(
                    "{what} wants {} with {text}; there {}",
                    some(wanted, "node"),
                    are(nodes as usize, "such node")
                ),
            )
            .at(span, "too few nodes have all of it")
            .help(
                "lower what it wants, or run with other nodes; `tarn nodes` lists what they offer",
            ),
        );
        return false;
    }
    // A host runs at most so many of these at once as its cores and memory allow, however many nodes it plays.
    let at_once: u64 = cluster
        .hosts
        .iter()
        .zip(fit)
        .map(|(host, nodes)| {
            let cores = u64::from(host.cores / step.cores.max(1));
            let memory = host.memory.checked_div(step.memory).unwrap_or(u64::MAX);
            nodes.min(cores).min(memory)
        })
        .sum();
    if at_once < wanted {
        out.add(
            Finding::error(
                FindingCode::TooFewNodes,
                format!("{what} wants {wanted} nodes with {text} at once; their hosts can run {at_once} at once"),
            )
            .at(span, "these nodes share hosts with too few cores or too little memory")
            .help("lower `nodes`, `cores` or `memory`, or run on a larger machine"),
        );
    }
    at_once >= wanted
}

fn check_abilities(out: &mut Findings, step: &Step, spans: &StepSpans, abilities: &Abilities) {
    let what = format!("step {}", quoted(&step.name));
    if let (true, Err(why)) = (step.nodes > 1, &abilities.multi_node) {
        out.add(
            Finding::error(FindingCode::NoMultiNode, format!("{what} wants {} nodes, which this way of running does not give: {why}", step.nodes))
                .at(spans.nodes.unwrap_or(spans.name), "several nodes")
                .help("set `nodes = 1`, or run where this is possible; `tarn doctor` shows what this machine offers"),
        );
    }
    let is_imaged = step
        .restart
        .is_some_and(|r| r.from == CheckpointMethod::Image);
    if let (true, Err(why)) = (is_imaged, &abilities.images) {
        out.add(
            Finding::error(
                FindingCode::NoImages,
                format!("{what} has `restart = \"image\"`, and no images can be taken of its processes: {why}"),
            )
            .at(spans.name, "resumes from images")
            .help("leave `restart` out, or run where CRIU works (docs/reference/workflow-file.md, \"restart\"); `tarn doctor` shows what this machine offers"),
        );
    }
    let Err(why) = &abilities.shared else {
        return;
    };
    // On one node every distribution is the same.
    for (span, shared) in spans.uses.iter().filter(|_| step.nodes > 1) {
        if *shared {
            out.add(
                Finding::error(
                    FindingCode::NoShared,
                    format!("{what} wants a shared dataset, and its nodes can have no shared namespace: {why}"),
                )
                .at(*span, "`shared`")
                .help("use `broadcast` for data that is only read, `scatter` for data of which each rank writes its own part; docs/guide/shared-namespace.md lists what `shared` needs"),
            );
        }
    }
}

/// Several nodes cannot share an encrypted dataset in one namespace: each node opens it for itself.
fn check_one_namespace(out: &mut Findings, parsed: &Parsed, step: &Step, spans: &StepSpans) {
    let uses = step.uses.iter().zip(&spans.uses).filter(|_| step.nodes > 1);
    let mut encrypted = uses.filter(|(used, _)| parsed.workflow.dataset(used.data).encrypt);
    if let Some((used, (span, _))) = encrypted.find(|(_, (_, shared))| *shared) {
        let name = &parsed.workflow.dataset(used.data).name;
        out.add(
            Finding::error(
                FindingCode::NoEncryption,
                format!(
                    "step {} wants {} shared, and it is encrypted: each node opens it for itself",
                    quoted(&step.name),
                    quoted(name)
                ),
            )
            .at(*span, "`shared`")
            .help("use `broadcast` or `scatter`, or leave `encrypt` out"),
        );
    }
}

/// Checkpoints are not encrypted: in them the content of an encrypted dataset would be in clear on the tier.
fn check_checkpoints(out: &mut Findings, parsed: &Parsed, step: &Step, spans: &StepSpans) {
    let mut uses = step.uses.iter().zip(&spans.uses);
    let encrypted = uses.find(|(used, _)| parsed.workflow.dataset(used.data).encrypt);
    if let (Some((used, (span, _))), true) = (encrypted, step.restart.is_some()) {
        let name = &parsed.workflow.dataset(used.data).name;
        out.add(
            Finding::error(
                FindingCode::NoEncryption,
                format!(
                    "step {} has `restart`, and its checkpoints would be stored on the tier unencrypted",
                    quoted(&step.name)
                ),
            )
            .at(*span, format!("{} is encrypted", quoted(name)))
            .help("leave `restart` or `encrypt` out"),
        );
    }
}
