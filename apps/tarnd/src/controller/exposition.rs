//! The site's figures in the text format of Prometheus (version 0.0.4). No label has a value that a user chooses.

use std::fmt::Write;
use tarn_site::{SiteFigures, TIME_CLASSES};

/// Nanoseconds of a second.
const NANOS: f64 = 1e9;

/// The text.
pub(super) fn text_of(figures: &SiteFigures, read_at: u64) -> String {
    let mut page = ExpositionPage::default();
    let f = figures;
    let sums = &f.workflows;
    page.gauge(
        "tarn_build_info",
        "The version of tarn's controller.",
        &[(concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""), 1.0)],
    );
    page.gauge(
        "tarn_figures_timestamp_seconds",
        "When these figures were taken, in seconds since 1970.",
        &[("", read_at as f64)],
    );
    page.counter(
        "tarn_workflows_total",
        "Workflows that are over: of complete ones all jobs ended well.",
        &[
            ("outcome=\"complete\"", sums.complete as f64),
            ("outcome=\"incomplete\"", sums.incomplete as f64),
        ],
    );
    page.counter(
        "tarn_workflow_jobs_total",
        "Jobs of workflows that have ended; of unaccounted ones Slurm's accounting has nothing.",
        &[
            ("outcome=\"done\"", sums.jobs_done as f64),
            ("outcome=\"not_done\"", sums.jobs_not_done as f64),
            ("outcome=\"unaccounted\"", sums.jobs_unaccounted as f64),
        ],
    );
    page.counter(
        "tarn_workflow_queue_seconds_total",
        "Sum of the waits of their jobs in Slurm's queue (T_queue).",
        &[("", seconds(sums.queue))],
    );
    page.counter(
        "tarn_workflow_run_seconds_total",
        "Sum of the run times of their jobs (T_run).",
        &[("", seconds(sums.run))],
    );
    page.counter(
        "tarn_workflow_node_seconds_total",
        "Nodes times seconds of their jobs (R_all).",
        &[("", seconds(sums.node_time))],
    );
    page.histogram(sums);
    page.gauge(
        "tarn_open_workflows",
        "Workflows that are not over.",
        &[("", f.open_workflows as f64)],
    );
    page.gauge(
        "tarn_awaited_accounts",
        "Jobs that have left, and whose end is not in Slurm's accounting yet.",
        &[("", f.awaited_accounts as f64)],
    );
    page.gauge(
        "tarn_jobs",
        "Jobs with data lines, by state.",
        &[
            ("state=\"queued\"", f.queued_jobs as f64),
            ("state=\"staging\"", f.staging_jobs as f64),
            ("state=\"running\"", f.running_jobs as f64),
            ("state=\"ending\"", f.ending_jobs as f64),
        ],
    );
    page.gauge(
        "tarn_nodes",
        "Nodes, by whether tarn answers there.",
        &[
            ("state=\"up\"", f.nodes_up as f64),
            ("state=\"away\"", f.nodes_away as f64),
        ],
    );
    page.gauge(
        "tarn_store_bytes",
        "Bytes of the stores of nodes that answer: all, and those taken or promised.",
        &[
            ("kind=\"capacity\"", f.store_bytes as f64),
            ("kind=\"taken\"", f.taken_bytes as f64),
        ],
    );
    let [outside_in, outside_out, between] = f.moved_bytes;
    page.counter(
        "tarn_moved_bytes_total",
        "Bytes that were moved for jobs.",
        &[
            ("way=\"from_outside\"", outside_in as f64),
            ("way=\"to_outside\"", outside_out as f64),
            ("way=\"between_nodes\"", between as f64),
        ],
    );
    page.counter(
        "tarn_node_seconds_total",
        "Nodes times seconds of jobs with data lines, by tarn's log.",
        &[("", f.node_seconds as f64)],
    );
    page.0
}

fn seconds(nanos: u128) -> f64 {
    nanos as f64 / NANOS
}

#[derive(Default)]
struct ExpositionPage(String);

impl ExpositionPage {
    fn gauge(&mut self, name: &str, help: &str, values: &[(&str, f64)]) {
        self.family(name, "gauge", help, values);
    }

    fn counter(&mut self, name: &str, help: &str, values: &[(&str, f64)]) {
        self.family(name, "counter", help, values);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str, values: &[(&str, f64)]) {
        self.head(name, kind, help);
        for (label, value) in values {
            self.line(name, label, *value);
        }
    }

    /// T_all of complete workflows.
    fn histogram(&mut self, sums: &tarn_site::FlowSums) {
        let name = "tarn_workflow_time_seconds";
        let help = "From the submission of a complete workflow's first job to its end (T_all).";
        self.head(name, "histogram", help);
        let mut below = 0;
        for (at, count) in sums.classes.iter().enumerate() {
            below += count;
            let end = TIME_CLASSES.get(at);
            let end = end.map_or_else(|| "+Inf".to_owned(), u64::to_string);
            let label = format!("le=\"{end}\"");
            self.line(&format!("{name}_bucket"), &label, below as f64);
        }
        self.line(&format!("{name}_sum"), "", seconds(sums.time));
        self.line(&format!("{name}_count"), "", below as f64);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a text does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, label: &str, value: f64) {
        let _ = match label {
            "" => writeln!(self.0, "{name} {value}"),
            label => writeln!(self.0, "{name}{{{label}}} {value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_page_is_in_prometheus_format() {
        let mut figures = SiteFigures {
            nodes_up: 3,
            ..SiteFigures::default()
        };
        figures.workflows.classes[0] = 2;
        figures.workflows.classes[10] = 1;
        figures.workflows.time = 490_500_000_000;
        let page = text_of(&figures, 1_796_000_000);
        let mut named = BTreeSet::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let name = rest.split(' ').nth(1).unwrap();
                assert!(
                    line.starts_with("# TYPE") || named.insert(name),
                    "{name} twice"
                );
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = series.split('{').next().unwrap();
            let is_of = |family: &&str| name.starts_with(*family);
            assert!(named.iter().any(is_of), "{name} has no help");
        }
        assert!(page.ends_with('\n'));
        for line in [
            "tarn_nodes{state=\"up\"} 3",
            "tarn_workflow_time_seconds_bucket{le=\"60\"} 2",
            "tarn_workflow_time_seconds_bucket{le=\"604800\"} 2",
            "tarn_workflow_time_seconds_bucket{le=\"+Inf\"} 3",
            "tarn_workflow_time_seconds_sum 490.5",
            "tarn_workflow_time_seconds_count 3",
            "tarn_figures_timestamp_seconds 1796000000",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
    }
}
