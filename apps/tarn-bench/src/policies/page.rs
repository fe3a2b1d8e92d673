//! The page with curves.

use super::points::ShareOf;
use super::points::{BandwidthPoint, Medians, family_rows, medians, rows, subject, worst};
use serde_json::json;
use tarn_report::site::curves::{Card, Comparison, Curve, Panel, TableOf, comparison_page};
use tarn_types::site::Machine;

pub(super) fn page(
    machine: &Machine,
    of: ShareOf,
    points: &[BandwidthPoint],
    families: &Medians,
) -> String {
    let subject = subject(points);
    let share = match of {
        ShareOf::TimeToSolution => "I/O share of the time to solution under easy",
        ShareOf::NodeTime => "I/O share of the node time under easy",
    };
    let all: Vec<&BandwidthPoint> = points.iter().collect();
    let cards = medians(&all).into_iter().zip(worst(points));
    let cards = cards.map(|((name, median), (_, worst, at))| Card {
        label: format!("{subject} / {name}"),
        value: format!("{median:.2}"),
        below: format!("median; worst {worst:.2}, {}", at.instance),
    });
    let mut panels: Vec<Panel> = Vec::new();
    for family in &families.0 {
        if panels.last().is_none_or(|p| p.name != family.family) {
            panels.push(panel(&family.family, points, families));
        }
    }
    let workflows: std::collections::BTreeSet<_> = points.iter().map(|p| &p.instance).collect();
    comparison_page(&Comparison {
        title: format!("{subject} on {}", machine.name),
        sub: format!(
            "{} nodes · {} workflows · {share}",
            machine.nodes(),
            workflows.len()
        ),
        heading: format!("Makespan of {subject} over that of the others"),
        note: format!(
            "Below 1 {subject} is faster. Lines are medians of a family, dots its workflows; across: {share}. No policy can \
             come below 1 against the bound."
        ),
        across: share.into(),
        upwards: format!("makespan of {subject} / that of the other"),
        cards: cards.collect(),
        panels,
        tables: vec![
            TableOf {
                name: "Families".into(),
                rows: family_rows(points, families),
            },
            TableOf {
                name: "Workflows".into(),
                rows: rows(points),
            },
        ],
        json: json!({"points": points, "families": families}),
    })
}

fn panel(family: &str, points: &[BandwidthPoint], families: &Medians) -> Panel {
    let of_family = || points.iter().filter(|p| p.family == family);
    let lines = families.0.iter().filter(|m| m.family == family);
    let mut curves: Vec<Curve> = Vec::new();
    for m in lines {
        for (name, ratio) in &m.ratios {
            let at = (m.wanted_share, *ratio);
            match curves.iter_mut().find(|c| c.name == *name) {
                Some(curve) => curve.line.push(at),
                None => curves.push(Curve {
                    name: name.clone(),
                    line: vec![at],
                    dots: Vec::new(),
                }),
            }
        }
    }
    for point in of_family() {
        for (name, ratio) in point.ratios() {
            if let Some(curve) = curves.iter_mut().find(|c| c.name == name) {
                curve.dots.push((point.wanted_share, ratio));
            }
        }
    }
    let workflows: std::collections::BTreeSet<_> = of_family().map(|p| &p.instance).collect();
    Panel {
        name: family.to_owned(),
        note: match workflows.len() {
            1 => "1 workflow".into(),
            n => format!("{n} workflows"),
        },
        curves,
    }
}
