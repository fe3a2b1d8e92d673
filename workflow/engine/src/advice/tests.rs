use super::*;
use std::sync::Arc;
use tarn_types::site::{
    Input, Island, Item, Job, Mode, NodeKind, NodePowerModel, Rates, Spread, Store, Submit,
    TierKind, WorkItem, WorkJob,
};

const GB: u64 = 1_000_000_000;

/// Four nodes with 100 GB of tier each, an external store of 2 GB/s.
fn machine() -> Machine {
    let tier = TierKind {
        name: "pmem".into(),
        capacity: 100 * GB,
        rates: Rates::default(),
        app_direct: false,
    };
    let kind = NodeKind {
        sockets: 1,
        cores: 1,
        memory: 0,
        gpus: 0,
        tiers: vec![tier],
        link: Rates::default(),
        mode: Mode::OneLevel,
        mode_change: None,
        power: NodePowerModel::default(),
        temperature: 0.0,
    };
    let island = Island {
        name: "n".into(),
        nodes: 4,
        kind,
    };
    let rates = Rates {
        read: 2 * GB,
        write: 2 * GB,
    };
    Machine {
        name: "m".into(),
        islands: vec![island],
        store: Store {
            rates,
            client: Rates::default(),
            saturates: 1,
        },
    }
}

fn job(reads: &[u32], writes: &[u32]) -> WorkJob {
    let input = |item: &u32| Input {
        item: ItemId(*item),
        spread: Spread::Share,
    };
    WorkJob {
        job: Arc::new(Job {
            flow: None,
            nodes: 1,
            cores: 0,
            memory: 0,
            gpus: 0,
            mode: None,
            limit: 0,
            expect: 0,
            after: Vec::new(),
            continues: None,
            submitted: None,
            place: None,
            on: None,
            not_before: 0,
            reads: reads.iter().map(input).collect(),
            writes: writes.iter().copied().map(ItemId).collect(),
        }),
        name: "".into(),
        submit: Submit::At(0),
        compute: 0,
    }
}

fn item(name: &str, gigabytes: u64, outside: bool) -> WorkItem {
    WorkItem {
        item: Item {
            bytes: gigabytes * GB,
            outside,
            keep: false,
        },
        name: name.into(),
        bytes: gigabytes * GB,
    }
}

/// `soon`, 40 GB, is written until 10 s and read from 20 s to 30 s; `late`, 400 GB from outside, is read until 10 s and
/// again from 510 s; `once` is read once.
fn advise(prices: Option<Prices>) -> RetentionAdvice {
    let workload = Workload {
        jobs: vec![
            job(&[1, 2], &[0]),
            job(&[0], &[]),
            job(&[1], &[]),
            job(&[1], &[]),
        ],
        items: vec![
            item("soon", 40, false),
            item("late", 400, true),
            item("", 7, true),
        ],
        ..Workload::default()
    };
    let times = [(0, 10), (20, 30), (510, 520)];
    let held = |job: JobId| {
        let (begin, end) = times.get(job.at())?;
        Some((begin * SECOND, end * SECOND))
    };
    advice(&machine(), &workload, held, prices)
}

#[test]
fn what_is_used_again_sooner_is_worth_more() {
    let advice = advise(None);
    assert_eq!(advice.reread, 440 * GB);
    // 4 x 100 GB of tier at 2 GB/s.
    assert_eq!(advice.break_even, Some(200 * SECOND));
    let soon = RetentionPoint {
        within: 10 * SECOND,
        bytes_a_node: 10 * GB,
        local: 40.0 / 440.0,
    };
    let all = RetentionPoint {
        within: 500 * SECOND,
        bytes_a_node: 110 * GB,
        local: 1.0,
    };
    assert_eq!(advice.curve, [soon, all]);
    let worth = advice.worth.expect("a price is known");
    assert_eq!(
        (worth.bytes_a_node, worth.local),
        (soon.bytes_a_node, soon.local)
    );
    let names: Vec<_> = advice
        .items
        .iter()
        .map(|i| (i.name.as_str(), i.rereads, i.mean_interval))
        .collect();
    assert_eq!(names, [("late", 1, 500 * SECOND), ("soon", 1, 10 * SECOND)]);
}

#[test]
fn only_the_ratio_of_prices_counts() {
    let prices = |factor: f64| Prices {
        tier_byte: 2e-9 * factor,
        external_byte_a_second: 1.2e-6 * factor,
    };
    for factor in [1.0, 0.001] {
        let advice = advise(Some(prices(factor)));
        assert_eq!(advice.break_even, Some(600 * SECOND));
        assert_eq!(advice.worth.map(|w| w.local), Some(1.0));
    }
}

#[test]
fn copies_that_overlap_are_one() {
    let all = |reads: &[(u64, u64)]| {
        let workload = Workload {
            jobs: reads.iter().map(|_| job(&[0], &[])).collect(),
            items: vec![item("x", 8, true)],
            ..Workload::default()
        };
        advice(&machine(), &workload, |j| reads.get(j.at()).copied(), None)
    };
    let three = all(&[(0, 10), (5, 30), (20, 25)]);
    assert_eq!((three.reread, three.curve.len()), (16 * GB, 1));
    assert_eq!(three.curve[0].bytes_a_node, 2 * GB);
    assert_eq!(three.curve[0].within, 0);
    let one = all(&[(0, 10)]);
    assert_eq!(
        (one.reread, one.curve, one.worth, one.knee),
        (0, vec![], None, None)
    );
}
