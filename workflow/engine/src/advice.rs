//! How much tier a workload is worth: the five-minute rule (Gray and Putzolu 1987) for external bandwidth against tier
//! capacity. `docs/guide/lower-bound.md` explains how to read it.
//!
//! An item of b bytes that is read every T seconds costs b / T of external bandwidth, or b of tier. The bytes cancel
//! out: it should be kept if T is below the price of a byte a second of bandwidth over the price of a byte of tier.

use std::collections::BTreeMap;
use tarn_types::site::{ItemId, JobId, Machine, Workload};
use tarn_types::units::{Nanos, SECOND, Time};

/// Points of the curve.
const MAX_POINTS: usize = 24;
/// Items that are named, those first whose repeated reading moves most.
const MAX_ITEMS: usize = 20;

/// The costs of a machine's parts, in any currency; only their ratio counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// A byte of tier.
    pub tier_byte: f64,
    /// A byte a second of bandwidth of the external store.
    pub external_byte_a_second: f64,
}

/// The value of keeping data on the nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct RetentionAdvice {
    /// Bytes of the reads that a tier could serve: all but the first of each item from outside; each item once a read,
    /// however many nodes get it.
    pub reread: u64,
    /// Keeping an item pays off if it is used again sooner than this. `None` if the external store has no limit.
    pub break_even: Option<Nanos>,
    /// The capacity and the saving of keeping just those items.
    pub worth: Option<RetentionPoint>,
    /// The retention points, by how long items are kept.
    pub curve: Vec<RetentionPoint>,
    /// The bend of the curve: further capacity saves less than it has saved on average so far.
    pub knee: Option<RetentionPoint>,
    /// Items that are read again, those first whose repeated reading moves most.
    pub items: Vec<ItemUse>,
}

/// Keeping all that is used again within a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetentionPoint {
    /// The longest time between two uses that is bridged.
    pub within: Nanos,
    /// The most bytes on the nodes at once, by the number of nodes: evenly spread.
    pub bytes_a_node: u64,
    /// The share of the re-read bytes that stay local, 0 to 1.
    pub local: f64,
}

/// An item and its uses.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemUse {
    /// Its name, or its number.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Reads that a tier could serve.
    pub rereads: u64,
    /// The mean time between the end of a use and the next use.
    pub mean_interval: Nanos,
}

/// Two uses of an item, one after the other.
#[derive(Debug, Clone, Copy)]
struct Reuse {
    item: usize,
    /// Between them.
    interval: Nanos,
    /// From the beginning of the first to the end of the second: for so long it is there.
    from: Time,
    to: Time,
}

/// The advice for a workload whose jobs hold their nodes at these times (of a simulation, or of a trace). Without prices
/// the machine itself states the ratio at which its owner has bought both: break-even is the time in which the external
/// store fills all tiers.
pub fn advice(
    machine: &Machine,
    workload: &Workload,
    held: impl Fn(JobId) -> Option<(Time, Time)>,
    prices: Option<Prices>,
) -> RetentionAdvice {
    let mut reuses = reuses(workload, held);
    reuses.sort_by_key(|r| (r.interval, r.item, r.from));
    let bytes_of = |item: usize| workload.items.get(item).map_or(0, |i| i.bytes);
    let reread = reuses.iter().map(|r| u128::from(bytes_of(r.item))).sum();
    let point = |within: Nanos| {
        let kept = &reuses[..reuses.partition_point(|r| r.interval <= within)];
        let local: u128 = kept.iter().map(|r| u128::from(bytes_of(r.item))).sum();
        RetentionPoint {
            within,
            bytes_a_node: whole(peak(kept, bytes_of).div_ceil(u128::from(machine.nodes().max(1)))),
            local: local as f64 / (reread as f64).max(1.0),
        }
    };
    let curve: Vec<RetentionPoint> = thresholds(&reuses).into_iter().map(point).collect();
    let break_even = break_even(machine, prices);
    RetentionAdvice {
        reread: whole(reread),
        break_even,
        worth: break_even.filter(|_| reread > 0).map(point),
        knee: knee(&curve),
        curve,
        items: most_read(workload, &reuses),
    }
}

fn whole(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Every use of an item but the first, with the one before.
fn reuses(workload: &Workload, held: impl Fn(JobId) -> Option<(Time, Time)>) -> Vec<Reuse> {
    let mut uses: Vec<(ItemId, Time, Time)> = Vec::new();
    for (number, job) in (0u32..).zip(&workload.jobs) {
        let Some((begin, end)) = held(JobId(number)) else {
            continue;
        };
        let touched = job.job.reads.iter().map(|r| r.item);
        uses.extend(
            touched
                .chain(job.job.writes.iter().copied())
                .map(|item| (item, begin, end)),
        );
    }
    uses.sort_unstable();
    let mut reuses = Vec::new();
    // An item that is used at the same time by several is busy until the last of them has ended.
    let mut before: Option<(ItemId, Time, Time)> = None;
    for (item, begin, end) in uses {
        before = match before {
            Some((same, from, until)) if same == item => {
                reuses.push(Reuse {
                    item: item.at(),
                    interval: begin.saturating_sub(until),
                    from,
                    to: end.max(until),
                });
                Some((item, begin, end.max(until)))
            }
            _ => Some((item, begin, end)),
        };
    }
    reuses
}

/// At most [`MAX_POINTS`] of the intervals, evenly by rank, the longest among them.
fn thresholds(sorted: &[Reuse]) -> Vec<Nanos> {
    let mut all: Vec<Nanos> = sorted.iter().map(|r| r.interval).collect();
    all.dedup();
    let count = all.len().min(MAX_POINTS);
    (1..=count)
        .map(|n| all[n * all.len() / count - 1])
        .collect()
}

/// The most bytes at once if these are bridged.
fn peak(kept: &[Reuse], bytes_of: impl Fn(usize) -> u64) -> u128 {
    let mut stays: Vec<(usize, Time, Time)> = kept.iter().map(|r| (r.item, r.from, r.to)).collect();
    stays.sort_unstable();
    // Stays that follow each other, or overlap, are one stay of one copy.
    let mut joined: Vec<(usize, Time, Time)> = Vec::new();
    for stay in stays {
        match joined.last_mut() {
            Some(last) if last.0 == stay.0 && stay.1 <= last.2 => last.2 = last.2.max(stay.2),
            _ => joined.push(stay),
        }
    }
    // At the same moment, removals make space for arrivals.
    let mut changes: Vec<(Time, bool, u64)> = Vec::new();
    for (item, from, to) in joined {
        changes.push((from, true, bytes_of(item)));
        changes.push((to, false, bytes_of(item)));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0u128, 0u128);
    for (_, comes, bytes) in changes {
        now = match comes {
            true => now + u128::from(bytes),
            false => now.saturating_sub(bytes.into()),
        };
        most = most.max(now);
    }
    most
}

fn break_even(machine: &Machine, prices: Option<Prices>) -> Option<Nanos> {
    let seconds = match prices {
        Some(p) => p.external_byte_a_second / p.tier_byte,
        None => {
            let tiers = machine.islands.iter().map(|i| {
                let each: u128 = i.kind.tiers.iter().map(|t| u128::from(t.capacity)).sum();
                each * u128::from(i.nodes)
            });
            tiers.sum::<u128>() as f64 / machine.store.rates.read as f64
        }
    };
    seconds
        .is_finite()
        .then_some((seconds.max(0.0) * SECOND as f64).round() as Nanos)
}

/// The point farthest above the line from nothing to the last point (Satopää et al. 2011).
fn knee(curve: &[RetentionPoint]) -> Option<RetentionPoint> {
    let last = curve.last().filter(|p| p.bytes_a_node > 0)?;
    let above = |p: &RetentionPoint| {
        p.local / last.local.max(f64::MIN_POSITIVE)
            - p.bytes_a_node as f64 / last.bytes_a_node as f64
    };
    curve
        .iter()
        .rev()
        .max_by(|a, b| above(a).total_cmp(&above(b)))
        .copied()
}

fn most_read(workload: &Workload, reuses: &[Reuse]) -> Vec<ItemUse> {
    let mut by_item: BTreeMap<usize, (u64, u128)> = BTreeMap::new();
    for reuse in reuses {
        let (count, sum) = by_item.entry(reuse.item).or_default();
        *count += 1;
        *sum += u128::from(reuse.interval);
    }
    let mut all: Vec<ItemUse> = by_item
        .into_iter()
        .filter_map(|(item, (rereads, sum))| {
            let found = workload.items.get(item)?;
            Some(ItemUse {
                name: match &*found.name {
                    "" => ItemId(u32::try_from(item).ok()?).to_string(),
                    name => name.to_owned(),
                },
                bytes: found.bytes,
                rereads,
                mean_interval: whole(sum / u128::from(rereads)),
            })
        })
        .collect();
    all.sort_by_key(|i| std::cmp::Reverse(u128::from(i.bytes) * u128::from(i.rereads)));
    all.truncate(MAX_ITEMS);
    all
}

#[cfg(test)]
mod tests;
