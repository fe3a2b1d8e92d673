//! The output of the advice on how much tier a workload is worth.

use super::SimArgs;
use serde_json::{Value, json};
use std::fmt::Write;
use tarn_engine::advice::{Prices, RetentionAdvice, RetentionPoint, advice};
use tarn_types::site::{Fate, JobId, Machine, SiteResult, Workload};
use tarn_types::units::{Bytes, Elapsed, SECOND};

/// Bytes of the gigabyte in which prices are given.
const GIGABYTE: f64 = 1e9;

/// The advice with its basis.
pub(super) struct AdviceReport {
    advice: RetentionAdvice,
    priced: bool,
    /// The advice to save energy, if the arguments give the energy of storage and of transfers.
    energy: Option<RetentionAdvice>,
    policy: String,
}

/// The advice from the last policy's times.
pub(super) fn of(
    args: &SimArgs,
    machine: &Machine,
    workload: &Workload,
    result: &SiteResult,
) -> AdviceReport {
    let both = |tier: Option<f64>, external: Option<f64>| {
        let (tier, external) = tier.zip(external)?;
        Some(Prices {
            tier_byte: tier / GIGABYTE,
            external_byte_a_second: external / GIGABYTE,
        })
    };
    let prices = both(args.tier_price, args.external_price);
    // To keep a byte for T seconds takes T times its watts, to read it again its joules: the same rule.
    let energy = both(args.tier_watts, args.external_joules);
    let held = |job: JobId| {
        let job = result.jobs.get(job.at()).filter(|j| j.fate == Fate::Done)?;
        Some((job.begun, job.released))
    };
    AdviceReport {
        advice: advice(machine, workload, held, prices),
        priced: prices.is_some(),
        energy: energy.map(|energy| advice(machine, workload, held, Some(energy))),
        policy: args
            .policy
            .0
            .last()
            .map_or_else(String::new, ToString::to_string),
    }
}

fn seconds(time: u64) -> f64 {
    time as f64 / SECOND as f64
}

fn point(p: &RetentionPoint) -> Value {
    json!({"within_s": seconds(p.within), "bytes_a_node": p.bytes_a_node, "local": p.local})
}

impl AdviceReport {
    pub(super) fn json(&self) -> Value {
        let a = &self.advice;
        let items = a.items.iter().map(|i| {
            json!({
                "item": i.name, "bytes": i.bytes, "rereads": i.rereads,
                "mean_interval_s": seconds(i.mean_interval),
            })
        });
        json!({
            "policy": self.policy,
            "reread_bytes": a.reread,
            "break_even_s": a.break_even.map(seconds),
            "worth": a.worth.as_ref().map(point),
            "energy": self.energy.as_ref().map(|e| json!({
                "break_even_s": e.break_even.map(seconds), "worth": e.worth.as_ref().map(point),
            })),
            "knee": a.knee.as_ref().map(point),
            "curve": a.curve.iter().map(point).collect::<Vec<_>>(),
            "items": items.collect::<Vec<_>>(),
        })
    }

    pub(super) fn text(&self) -> String {
        let a = &self.advice;
        let mut text = format!(
            "\nHow much tier this workload is worth (uses as under {})\n",
            self.policy
        );
        if a.reread == 0 {
            text.push_str(
                "nothing is read twice, and nothing that is made is read: no tier saves a byte\n",
            );
            return text;
        }
        let _ = writeln!(text, "read again                {}", Bytes(a.reread));
        let by = if self.priced {
            "these prices"
        } else {
            "all tiers over the external bandwidth"
        };
        match (a.break_even, &a.worth) {
            (Some(time), Some(p)) => {
                let _ = writeln!(
                    text,
                    "worth keeping             what is used again within {} ({by})",
                    Elapsed(time)
                );
                let _ = writeln!(text, "  takes                   {}", taking(p));
            }
            _ => text
                .push_str("the external store has no limit: nothing is gained by keeping data\n"),
        }
        let saves = self.energy.as_ref().map(|e| (e.break_even, &e.worth));
        if let Some((Some(time), Some(p))) = saves {
            let _ = writeln!(
                text,
                "saves energy to keep      what is used again within {}",
                Elapsed(time)
            );
            let _ = writeln!(text, "  takes                   {}", taking(p));
        }
        if let Some(knee) = &a.knee {
            let _ = writeln!(text, "the curve bends at        {}", taking(knee));
        }
        text.push_str("\ntier a node   stays local   used again within\n");
        for p in &a.curve {
            let _ = writeln!(
                text,
                "{:>11}   {:>10.1}%   {}",
                Bytes(p.bytes_a_node).to_string(),
                p.local * 100.0,
                Elapsed(p.within)
            );
        }
        self.items(&mut text);
        text
    }

    fn items(&self, text: &mut String) {
        text.push_str("\n      bytes   read again   mean time between   item\n");
        for i in &self.advice.items {
            let _ = writeln!(
                text,
                "{:>11}   {:>10}   {:>17}   {}",
                Bytes(i.bytes).to_string(),
                i.rereads,
                Elapsed(i.mean_interval).to_string(),
                i.name
            );
        }
    }
}

fn taking(p: &RetentionPoint) -> String {
    format!(
        "{} a node; {:.1} % of it stays local",
        Bytes(p.bytes_a_node),
        p.local * 100.0
    )
}
