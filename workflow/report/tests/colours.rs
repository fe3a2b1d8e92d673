//! Colours of the run's page: kinds of transfers stay apart for people who see no red or no green, and steps
//! are never taken for transfers.

mod common;

use common::mosaic::mosaic;
use tarn_report::evidence::{self, Results};
use tarn_report::{PageLinks, html};

/// The least distance in CIE Lab at which two colours of a legend are distinguished without effort.
const APART: f64 = 14.0;
const TRANSFERS: [&str; 6] = ["ext-in", "ext-out", "peer", "promote", "demote", "retained"];

/// The colours `--name: #rrggbb` of a page, as light from 0 to 1: first those by day, then those by night.
fn colours(page: &str, name: &str) -> Vec<[f64; 3]> {
    let key = format!("--{name}: #");
    let all = page.split(&key).skip(1);
    all.map(|rest| {
        let value = u32::from_str_radix(&rest[..6], 16).expect("six digits");
        [16, 8, 0].map(|shift| {
            let c = f64::from(value >> shift & 0xff) / 255.0;
            if c <= 0.04045 {
                c / 12.92
            } else {
                ((c + 0.055) / 1.055).powf(2.4)
            }
        })
    })
    .collect()
}

/// The colour that is seen without the cones for red or green (Viénot, Brettel and Mollon 1999).
fn seen(rgb: [f64; 3], without: Option<char>) -> [f64; 3] {
    let [r, g, b] = rgb;
    match without {
        Some('r') => {
            let yellow = 0.11238 * r + 0.88762 * g;
            [yellow, yellow, 0.00401 * r - 0.00401 * g + b]
        }
        Some(_) => {
            let yellow = 0.29275 * r + 0.70725 * g;
            [yellow, yellow, -0.02234 * r + 0.02234 * g + b]
        }
        None => rgb,
    }
}

fn lab([r, g, b]: [f64; 3]) -> [f64; 3] {
    let f = |t: f64| {
        if t > 0.008856 {
            t.cbrt()
        } else {
            7.787 * t + 16.0 / 116.0
        }
    };
    let x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
    let y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
    let z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

fn distance(a: [f64; 3], b: [f64; 3], without: Option<char>) -> f64 {
    let (a, b) = (lab(seen(a, without)), lab(seen(b, without)));
    let squares = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b));
    squares.sum::<f64>().sqrt()
}

#[test]
fn transfers_stay_apart_and_steps_are_no_transfers() {
    let page = html(&mosaic(3, 9, 2, 1), &PageLinks::default()).expect("it was started");
    for night in [0, 1] {
        // Steps have the same colours by night.
        let of = |name: &str| {
            *colours(&page, name)
                .iter()
                .take(night + 1)
                .next_back()
                .expect("a colour")
        };
        for without in [None, Some('r'), Some('g')] {
            for (at, one) in TRANSFERS.iter().enumerate() {
                let others = TRANSFERS[at + 1..].iter().map(|name| (*name).to_owned());
                for other in others.chain((0..10).map(|n| format!("step{n}"))) {
                    let found = distance(of(one), of(&other), without);
                    assert!(
                        found > APART,
                        "{one} and {other} by {}, without {without:?}: {found:.1}",
                        ["day", "night"][night]
                    );
                }
            }
        }
    }
}

#[test]
fn series_of_figures_have_the_colours_that_stay_apart() {
    let runs =
        r#"{"schema": 1, "machine": {}, "tarn": "0", "date": 0, "quick": true, "experiments": []}"#;
    let results = Results::parse(runs.as_bytes()).expect("results");
    let page = evidence::page(&results, None);
    let mut tones: Vec<&str> = (0..TRANSFERS.len())
        .map(|n| {
            let rule = format!(".tone{n} {{ --c: var(--");
            let rest = page.split(&rule).nth(1).expect("a tone");
            rest.split(')').next().expect("a colour")
        })
        .collect();
    tones.sort_unstable();
    tones.dedup();
    assert_eq!(tones.len(), TRANSFERS.len(), "{tones:?}");
    assert!(
        tones.iter().all(|tone| TRANSFERS.contains(tone)),
        "{tones:?}"
    );
}
