//! The three hosts of a planner (simulated cluster, run, site service) share one table of nodes, one order of them, one
//! account of cores and space, one rule for retries and one set of policies; one of them has leases.
//! docs/internals/driving-slurm.md.

use tarn_tests::tree::{self, Text};

/// The code of the hosts: everything that decides on nodes, space and retries for a job.
const HOSTS: &[&str] = &[
    "workflow/engine/src/",
    "services/site/src/",
    "apps/site-planner/src/",
    "apps/tarnd/src/controller",
];

/// Types and functions that exist once, and where.
const ONCE: &[(&str, &str)] = &[
    ("struct TierSpace", "foundation/types/src/space.rs"),
    ("struct NodeRank", "foundation/types/src/placement.rs"),
    ("fn best_nodes", "foundation/types/src/placement.rs"),
    ("struct RetryRule", "foundation/types/src/retry.rs"),
    ("struct Compute", "foundation/types/src/compute.rs"),
    ("struct Demand", "foundation/types/src/compute.rs"),
    ("enum NodeAvailability", "foundation/types/src/ledger.rs"),
    ("struct NodeLedger", "foundation/types/src/ledger.rs"),
    ("struct NodeLedgers", "foundation/types/src/ledger.rs"),
    ("trait HasLedger", "foundation/types/src/ledger.rs"),
    ("fn lease_end", "services/site/src/keep.rs"),
    ("trait SchedulerView", "workflow/engine/src/plan/view.rs"),
    (
        "trait SchedulingPolicy",
        "workflow/engine/src/plan/policy.rs",
    ),
    ("struct Planner", "workflow/engine/src/plan.rs"),
];

/// The files in which each host uses what is shared.
const USES: &[(&str, &str)] = &[
    (
        "workflow/engine/src/plan/nodes.rs",
        "NodeLedgers<PlannerNode>",
    ),
    ("workflow/engine/src/plan/nodes.rs", "TierSpace"),
    ("workflow/engine/src/plan/nodes.rs", "self.all.lose("),
    ("workflow/engine/src/plan/fits.rs", "ledger.is_usable()"),
    ("workflow/engine/src/plan/recount.rs", ".check(id, shares,"),
    ("workflow/engine/src/plan/view.rs", "NodeRank"),
    ("workflow/engine/src/plan/site.rs", "best_nodes("),
    ("workflow/engine/src/plan/life.rs", "RetryRule"),
    ("workflow/engine/src/ledger.rs", "NodeLedgers<RunNode>"),
    ("workflow/engine/src/ledger.rs", "TierSpace"),
    ("workflow/engine/src/ledger.rs", "ledger.can_run("),
    ("workflow/engine/src/lost.rs", "ledger.nodes.lose("),
    ("workflow/engine/src/decide/free.rs", "nodes.usable()"),
    ("workflow/engine/src/state/recount.rs", ".check(id, shares,"),
    ("workflow/engine/src/decide/view.rs", "NodeRank"),
    ("workflow/engine/src/failed.rs", "RetryRule"),
    ("services/site/src/model/node.rs", "NodeLedger::new("),
    ("services/site/src/model/node.rs", "TierSpace"),
    ("services/site/src/stock.rs", "NodeLedgers<StockedNode"),
    ("services/site/src/placement.rs", "ledgers.usable()"),
    ("services/site/src/figures.rs", "ledgers.space()"),
    ("services/site/src/requests.rs", "ledger().space()"),
    ("services/site/src/keep.rs", "self.lease_end("),
    ("services/site/src/checkpoints.rs", "self.lease_end("),
    ("services/site/src/stock.rs", "TierSpace"),
    ("services/site/src/stock.rs", "RetryRule"),
    ("services/site/src/model/job.rs", "RetryRule"),
    ("services/site/src/placement.rs", "best_nodes("),
    ("apps/site-planner/src/lib.rs", "Planner::new("),
];

/// Words of a name that a second implementation would have, with the names that are something else.
const NAMES: &[(&str, &[&str])] = &[
    ("TierSpace", &["TierSpace", "TierSpaceOutlook"]),
    ("StoreSpace", &[]),
    ("NodeSpace", &[]),
    ("SpaceLedger", &[]),
    ("SpaceAccount", &[]),
    // That of a run has the hosts of its nodes beside them.
    ("Ledger", &["Ledger"]),
    ("NodeTable", &[]),
    ("NodeAccount", &[]),
    ("NodeState", &[]),
    ("PowerState", &[]),
    ("NodeAvailability", &[]),
    ("Compute", &[]),
    ("NodeDemand", &[]),
    ("NodeCapacity", &[]),
    ("Lease", &[]),
    ("NodeRank", &["NodeRank"]),
    ("NodeScore", &[]),
    ("Retry", &["RetryRule"]),
    ("Backoff", &[]),
    ("Policy", &["SchedulingPolicy", "DataAwarePolicy"]),
    ("SchedulerView", &["SchedulerView"]),
];

/// The code of a file: without comments, white space as single blanks.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    let words = lines.flat_map(str::split_whitespace);
    words.collect::<Vec<_>>().join(" ")
}

fn is_tests(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs")
}

fn sources() -> Vec<Text> {
    let mut sources = tree::texts(&tree::root(), &["rs"]).expect("sources");
    sources.retain(|file| !is_tests(&file.path) && !file.path.starts_with("tests/"));
    sources
}

/// The names of types and traits that a text defines.
fn defined(code: &str) -> Vec<&str> {
    let words: Vec<&str> = code.split(' ').collect();
    let is_kind = |word: &str| matches!(word, "struct" | "enum" | "trait");
    let names = words.windows(2).filter(|two| is_kind(two[0]));
    let end = |c: char| !c.is_alphanumeric() && c != '_';
    names
        .map(|two| two[1].split(end).next().unwrap_or_default())
        .collect()
}

/// The second implementations in the code of a host.
fn second_implementations(file: &Text) -> Vec<String> {
    let code = code(&file.text);
    let mut found = Vec::new();
    let mut add = |what: String| found.push(format!("{}: {what}", file.path));
    for name in defined(&code) {
        let known = NAMES.iter().filter(|(word, _)| name.contains(word));
        for (word, allowed) in known {
            if !allowed.contains(&name) {
                add(format!("`{name}` is a second `{word}`"));
            }
        }
    }
    // Accounts of bytes are `TierSpace`: nobody else subtracts what is taken from a capacity.
    for amount in ["taken", "used", "promised", "reserved"] {
        for text in [
            "saturating_sub(",
            "checked_sub(",
            "saturating_sub(*",
            "checked_sub(*",
        ] {
            if code.contains(&format!("capacity.{text}{amount})"))
                || code.contains(&format!("capacity() .{text}{amount})"))
                || code.contains(&format!("bytes.{text}{amount})"))
            {
                add(format!("`{amount}` is subtracted by hand: use `TierSpace`"));
            }
        }
        for sign in ["-=", "+="] {
            if code.contains(&format!(".{amount} {sign}")) {
                add(format!("`{amount} {sign}`: use `TierSpace` or `account`"));
            }
        }
    }
    // Accounts of cores, memory and GPUs are `Compute`, within a `NodeLedger`.
    for amount in ["cores", "memory", "gpus"] {
        let has = |text: &str| code.contains(&text.replace("AMOUNT", amount));
        let is_account = [
            ".AMOUNT -=",
            ".AMOUNT +=",
            "free_AMOUNT -=",
            "free_AMOUNT +=",
        ];
        let mut calls = ["sub(&mut ", "add(&mut "]
            .iter()
            .flat_map(|call| code.split(call).skip(1));
        let is_called = calls.any(|rest| {
            let account = rest.split(',').next().unwrap_or_default();
            account.ends_with(&format!(".{amount}")) || account.ends_with(&format!("_{amount}"))
        });
        if is_account.into_iter().any(has) || is_called {
            add(format!("`{amount}` are counted by hand: use `Compute`"));
        }
    }
    // Nodes that cannot be used are known by their ledgers.
    for set in ["lost", "up", "down", "away", "asleep", "usable"] {
        for of in ["BTreeSet<NodeId>", "HashSet<NodeId>", "Vec<bool>"] {
            if code.contains(&format!(" {set}: {of}")) {
                add(format!("`{set}: {of}`: use `NodeLedgers`"));
            }
        }
    }
    // When a lease is over says `lease_end`.
    let is_home = file.path == "services/site/src/keep.rs";
    for lease in ["used.saturating_add(", ".used) >=", "(self.config.lease)"] {
        let mut uses = code.match_indices(lease);
        let is_shown = |at: usize| code[..at].ends_with("Elapsed");
        if !is_home && uses.any(|(at, _)| !is_shown(at)) {
            add(format!("`{lease}`: use `lease_end`"));
        }
    }
    // Numbers of trials are `RetryRule`.
    for word in code.split(' ').filter(|word| word.ends_with(':')) {
        let is_trials = ["TRIES:", "RETRIES:", "ATTEMPTS:"].iter().any(|end| {
            let stem = word.strip_suffix(end);
            stem.is_some_and(|stem| stem.is_empty() || stem.ends_with('_'))
        });
        if is_trials {
            add(format!("`{word}` is a number of trials: use `RetryRule`"));
        }
    }
    // The order of nodes is `NodeRank`.
    for order in ["Reverse(*bytes)", "Reverse(bytes)", "c.begin(), c.missing"] {
        if code.contains(order) {
            add(format!("`{order}` orders nodes: use `NodeRank`"));
        }
    }
    found
}

#[test]
fn each_rule_exists_once() {
    let sources = sources().into_iter();
    let sources: Vec<(String, String)> = sources.map(|f| (f.path, code(&f.text))).collect();
    for (what, home) in ONCE {
        let is_here = |(_, code): &&(String, String)| {
            let mut after = code.split(what).skip(1);
            after.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        let here = sources.iter().filter(is_here);
        let homes: Vec<&str> = here.map(|(path, _)| &path[..]).collect();
        assert_eq!(homes, [*home], "{what}");
    }
}

#[test]
fn each_host_uses_them() {
    for (path, what) in USES {
        let text = std::fs::read_to_string(tree::root().join(path)).expect("a source");
        let lines = text.lines().filter(|line| !line.starts_with("use "));
        let used = code(&lines.collect::<Vec<_>>().join("\n"));
        assert!(used.contains(what), "{path} does not use {what}");
    }
}

#[test]
fn policies_decide_through_two_views() {
    let (mut views, mut policies) = (Vec::new(), Vec::new());
    for file in sources() {
        let code = code(&file.text);
        if code.contains(" SchedulerView for ") {
            views.push(file.path.clone());
        }
        if code.contains(" SchedulingPolicy<D> for ") || code.contains(" SchedulingPolicy for ") {
            policies.push(file.path);
        }
    }
    assert_eq!(
        views,
        [
            "workflow/engine/src/decide/view.rs",
            "workflow/engine/src/plan/site.rs"
        ]
    );
    let home = "workflow/engine/src/plan/policy/";
    assert!(policies.len() >= 2, "{policies:?}");
    assert!(
        policies.iter().all(|path| path.starts_with(home)),
        "{policies:?}"
    );
}

#[test]
fn no_host_has_a_second_implementation() {
    let hosts = sources().into_iter();
    let hosts = hosts.filter(|file| HOSTS.iter().any(|host| file.path.starts_with(host)));
    let hosts: Vec<Text> = hosts.collect();
    for host in HOSTS {
        assert!(
            hosts.iter().any(|file| file.path.starts_with(host)),
            "{host}"
        );
    }
    let found: Vec<String> = hosts.iter().flat_map(second_implementations).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn second_implementations_are_found() {
    let wrong = [
        "struct TierSpaces { all: u64 }",
        "pub(crate) struct StoreSpace(u64);",
        "trait SiteSchedulerView {}",
        "enum RetryState { Once }",
        "struct NodeScore<'a> { node: &'a str }",
        "let free = node.capacity.saturating_sub(taken);",
        "let free = level\n    .bytes.saturating_sub(*taken);",
        "self.promised -= bytes;",
        "struct StoreLedger<T>(T);",
        "struct NodeTable { nodes: Vec<u32> }",
        "pub(super) enum NodePowerState { Up, Down }",
        "struct LeaseTable;",
        "node.free.cores -= demand.cores;",
        "sub(&mut node.free.memory, share, \"free memory\");",
        "free_gpus += 1;",
        "struct Site { lost: BTreeSet<NodeId> }",
        "let over = now.saturating_sub(version.used) >= lease;",
        "let end = version.used.saturating_add(lease);",
        "let end = at.saturating_add(self.config.lease);",
        "const MAX_TRIES: u32 = 3;",
        "const ATTEMPTS: u32 = 3;",
        "best.sort_by_key(|(node, bytes)| (Reverse(*bytes), *node));",
        "all.min_by_key(|c| (c.begin(), c.missing, c.node))",
    ];
    for text in wrong {
        let path = "services/site/src/a.rs".to_owned();
        let text = text.to_owned();
        let found = second_implementations(&Text {
            path,
            text: text.clone(),
        });
        assert_eq!(found.len(), 1, "{text}: {found:?}");
    }
    let right = "// const MAX_TRIES: u32 = 3;\nlet free = space.free();\nconst ENTRIES: u32 = 3;\n\
                 let left = Elapsed(self.config.lease); let cores = node.free().cores;";
    let path = "services/site/src/a.rs".to_owned();
    let text = right.to_owned();
    assert_eq!(second_implementations(&Text { path, text }), [""; 0]);
}
