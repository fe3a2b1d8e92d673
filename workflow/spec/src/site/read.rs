//! Workloads from files of any kind.

use crate::diag::SpecError;
use crate::site::alone::Alone;
use crate::site::document::rejected;
use crate::site::gather::{Gather, Loaded};
use crate::site::history::read_history;
use crate::site::mix::read_mix;
use crate::site::open::{ReadFile, WorkloadFileContent, WorkloadFormat};
use crate::site::reader::{ReadOptions, WorkloadReader, flow_name, is_flow};
use crate::site::steps::ASSUMED_ENTRIES;
use std::path::Path;
use tarn_types::site::Machine;

/// Reads the workload of one file for a machine (docs/reference/workload-file.md). Its content decides what it
/// is: a trace in the Standard Workload Format, a recorded workflow in WfFormat, a site's history, each plain or
/// compressed; a workflow file of tarn; or a workload file, which mixes these. `read` gives the bytes of a file.
///
/// # Errors
/// All that is wrong with it, or with a file that it names.
///
/// # Examples
/// ```
/// use tarn_spec::site::{ReadOptions, parse_machine, read_workload};
///
/// # let text = "[external]\nclient-read = '1 GB/s'\nclient-write = '1 GB/s'\n[[island]]\nnodes = 8\ncores = 4\n";
/// # let machine = parse_machine("cluster.toml", text)?;
/// // A trace of one job: number, submitted, waited, ran (s), processors, ...
/// let trace = "1 0 0 60 4 -1 -1 4 120 -1 1 1 1 1 1 1 -1 -1\n";
/// let read = |_: &std::path::Path| Ok(trace.into());
/// let loaded = read_workload("site.swf".as_ref(), &machine, &ReadOptions::default(), &read)?;
/// assert_eq!(loaded.workload.jobs.len(), 1);
/// # Ok::<(), tarn_spec::SpecError>(())
/// ```
pub fn read_workload(
    path: &Path,
    machine: &Machine,
    options: &ReadOptions,
    read: &ReadFile<'_>,
) -> Result<Loaded, SpecError> {
    read_workloads(&[path], machine, options, read)
}

/// Like [`read_workload`] with several files, whose jobs come onto one machine.
///
/// # Errors
/// All that is wrong with the first wrong file.
pub fn read_workloads(
    paths: &[&Path],
    machine: &Machine,
    options: &ReadOptions,
    read: &ReadFile<'_>,
) -> Result<Loaded, SpecError> {
    let mut source = WorkloadReader {
        machine,
        alone: Alone(machine.store),
        read,
        gather: Gather::default(),
    };
    for path in paths {
        add_file(&mut source, path, options)?;
    }
    Ok(source.gather.finish())
}

/// Adds the content of one file of any kind.
fn add_file(
    source: &mut WorkloadReader<'_>,
    path: &Path,
    options: &ReadOptions,
) -> Result<(), SpecError> {
    let name = path.display().to_string();
    let of_file = |finding| rejected(&name, finding);
    let opened = WorkloadFileContent::read(source.read, path).map_err(of_file)?;
    match opened.kind().map_err(of_file)? {
        WorkloadFormat::Trace => {
            return source
                .trace_of(&opened, &name, &options.trace, options.arrives)
                .map_err(of_file);
        }
        WorkloadFormat::History => {
            let lines = &mut *opened.lines();
            let result = read_history(&mut source.gather, lines, options.arrives);
            source.gather.recorded(result.map_err(of_file)?);
            return Ok(());
        }
        WorkloadFormat::Json | WorkloadFormat::Toml => {}
    }
    let text = opened.text().map_err(of_file)?;
    if is_flow(&opened, &text) {
        let mut draft = source.draft_of(path, &opened, &text, &options.flow, ASSUMED_ENTRIES)?;
        source
            .gather
            .check_workload_size(draft.jobs.len(), draft.items.len())
            .map_err(of_file)?;
        let order = draft.order().unwrap_or_default();
        options.flow.submit.apply(&mut draft, &order);
        source
            .gather
            .flow(&draft, &flow_name(path), options.arrives);
        return Ok(());
    }
    read_mix(source, path, &name, &text, options)
}
