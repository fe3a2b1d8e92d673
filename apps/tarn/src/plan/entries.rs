//! The outputs that a plan assumes of steps: entries that others select need names before anything has made them.

use std::collections::{BTreeMap, BTreeSet};
use tarn_types::id::{DataId, StepId};
use tarn_types::part::{PartClass, PartInfo};
use tarn_types::pattern::EntryPattern;
use tarn_types::workflow::{Foreach, Role, Step, VersionPartitioning, Workflow};

/// More elements of a step than this are not named one by one.
const MAX_NAMED: usize = 100_000;

/// Of each step and dataset that it makes by entries, the names that each instance makes.
pub(super) type Supposed = BTreeMap<(StepId, DataId), Vec<Vec<String>>>;

struct PlannedEntries<'a> {
    workflow: &'a Workflow,
    /// The entries of each version, with the instance that makes them.
    of: BTreeMap<(DataId, u32), BTreeMap<String, usize>>,
    /// Of entries that instances read by their own element, that element.
    own: BTreeMap<(DataId, u32), BTreeMap<String, String>>,
    /// The elements of steps that have been looked at.
    items: BTreeMap<StepId, Vec<Option<String>>>,
}

/// Names for all selected entries of steps' outputs: those that items of `in` say, and for a pattern that none of them matches
/// one for each instance that makes the dataset, called after its element.
pub(super) fn suppose<'p>(
    workflow: &Workflow,
    sources: impl IntoIterator<Item = (DataId, &'p [PartInfo])>,
) -> Supposed {
    let mut names = PlannedEntries {
        workflow,
        of: BTreeMap::new(),
        own: BTreeMap::new(),
        items: BTreeMap::new(),
    };
    for (data, parts) in sources {
        let entries = parts.iter().filter_map(|p| match &p.class {
            PartClass::Entry(name) => Some((name.clone(), 0)),
            _ => None,
        });
        names.of.insert((data, 0), entries.collect());
    }
    names.collect_static_entries();
    let mut left: BTreeSet<StepId> = (0..workflow.steps.len() as u32).map(StepId).collect();
    while !left.is_empty() {
        let ready: Vec<StepId> = left
            .iter()
            .copied()
            .filter(|id| {
                let mut reads = reads(workflow.step(*id)).into_iter();
                reads.all(|(d, v)| workflow.producer(d, v).is_none_or(|p| !left.contains(&p)))
            })
            .collect();
        // No circle is left in a workflow that was read.
        if ready.is_empty() {
            break;
        }
        for id in ready {
            names.take(id);
            left.remove(&id);
        }
    }
    names.by_maker()
}

fn reads(step: &Step) -> BTreeSet<(DataId, u32)> {
    let uses = step.uses.iter().filter(|u| u.role != Role::Out);
    let mut all: BTreeSet<_> = uses.filter_map(|u| Some((u.data, u.reads?))).collect();
    if let Some(Foreach::Entries { data, version, .. }) = &step.foreach {
        all.insert((*data, *version));
    }
    all
}

impl PlannedEntries<'_> {
    /// The entries that are named without any step's elements being known.
    fn collect_static_entries(&mut self) {
        for step in &self.workflow.steps {
            let items = match &step.foreach {
                None => vec![None],
                Some(Foreach::Values(values)) => values.iter().cloned().map(Some).collect(),
                Some(Foreach::Entries { .. }) => continue,
            };
            self.wanted_by(step, &items);
        }
    }

    /// Adds the entries that a step with these elements reads by name: they have to be there.
    fn wanted_by(&mut self, step: &Step, items: &[Option<String>]) {
        for used in &step.uses {
            let (Some(entry), Some(version)) = (&used.entry, used.reads) else {
                continue;
            };
            if version == 0 {
                continue;
            }
            let of = self.of.entry((used.data, version)).or_default();
            let own = self.own.entry((used.data, version)).or_default();
            for item in items {
                let name = entry.replace("{item}", item.as_deref().unwrap_or_default());
                if let Some(item) = item.as_ref().filter(|_| entry.contains("{item}")) {
                    own.entry(name.clone()).or_insert_with(|| item.clone());
                }
                of.entry(name).or_default();
            }
        }
    }

    fn take(&mut self, id: StepId) {
        let step = self.workflow.step(id);
        let items: Vec<Option<String>> = match &step.foreach {
            None => vec![None],
            Some(Foreach::Values(values)) => values.iter().cloned().map(Some).collect(),
            Some(Foreach::Entries {
                data,
                version,
                pattern,
                max,
                ..
            }) => {
                let mut matching = self.matching(*data, *version, pattern);
                if matching.is_empty() && *version > 0 {
                    self.invent(*data, *version, pattern, *max as usize);
                    matching = self.matching(*data, *version, pattern);
                }
                matching.into_iter().map(Some).collect()
            }
        };
        self.wanted_by(step, &items);
        self.items.insert(id, items);
    }

    fn matching(&self, data: DataId, version: u32, pattern: &EntryPattern) -> Vec<String> {
        let names = self.of.get(&(data, version)).into_iter().flatten();
        let names = names.map(|(name, _)| name);
        names.filter(|n| pattern.matches(n)).cloned().collect()
    }

    /// A name for each instance that makes a version.
    fn invent(&mut self, data: DataId, version: u32, pattern: &EntryPattern, most: usize) {
        let Some(maker) = self.workflow.producer(data, version) else {
            return;
        };
        let step = &self.workflow.step(maker).name;
        let items = self.items.get(&maker).cloned().unwrap_or_default();
        let of = self.of.entry((data, version)).or_default();
        for (at, item) in items.iter().enumerate().take(most.min(MAX_NAMED)) {
            let word = match item {
                Some(item) if !item.contains(['/', '*']) => item.clone(),
                _ => format!("{step}.{at}"),
            };
            // A word that matches as it is becomes the name.
            let name = if pattern.matches(&word) {
                word
            } else {
                pattern.as_str().replacen('*', &word, 1).replace('*', "")
            };
            of.insert(name, at);
        }
    }

    fn by_maker(self) -> Supposed {
        let mut supposed = Supposed::new();
        for ((data, version), names) in &self.of {
            let Some(maker) = self.workflow.producer(*data, *version) else {
                continue;
            };
            if self.workflow.dataset(*data).partition != VersionPartitioning::Entries {
                continue;
            }
            let items = self.items.get(&maker).map_or(&[][..], Vec::as_slice);
            let elements = items.iter().enumerate();
            let elements: BTreeMap<&str, usize> = elements
                .filter_map(|(at, item)| Some((item.as_deref()?, at)))
                .collect();
            let mut each = vec![Vec::new(); items.len().max(1)];
            let own = self.own.get(&(*data, *version));
            let own = |name: &str| elements.get(own?.get(name)?.as_str());
            for (name, at) in names {
                // Most are called after the element of the instance that makes them: `a`, `a.bam`, `a_1.fq`.
                let ends = name.match_indices(['.', '_', '-']).map(|(end, _)| end);
                let mut ends: Vec<usize> = ends.chain([name.len()]).collect();
                ends.reverse();
                let named = ends.iter().find_map(|end| elements.get(&name[..*end]));
                let named = own(name).or(named);
                let at = named.unwrap_or(at).min(&(each.len() - 1)).to_owned();
                each[at].push(name.clone());
            }
            supposed.insert((maker, *data), each);
        }
        supposed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn suppose_of(text: &str) -> (Workflow, Supposed) {
        let parsed = tarn_spec::parse("w.toml", text, Path::new("/w")).expect("it is right");
        let supposed = suppose(&parsed.workflow, []);
        (parsed.workflow, supposed)
    }

    #[test]
    fn what_is_selected_is_made_by_the_instance_that_it_is_called_after() {
        let (_, supposed) = suppose_of(
            "name = \"w\"\n[data.mid]\n[data.out]\ndest = \"o\"\n[[step]]\nname = \"one\"\nforeach = [\"a\", \"b\"]\n\
             out = [\"mid\"]\nrun = \"x\"\n[[step]]\nname = \"two\"\nforeach = [\"b\", \"a\"]\nin = [\"mid/{item}.x\"]\n\
             out = [\"out\"]\nrun = \"x\"\n",
        );
        let made = supposed.get(&(StepId(0), DataId(0)));
        let names = |n: &str| vec![n.to_owned()];
        assert_eq!(made, Some(&vec![names("a.x"), names("b.x")]));
    }

    #[test]
    fn what_an_instance_reads_by_its_element_is_made_by_the_instance_of_that_element() {
        let (_, supposed) = suppose_of(
            "name = \"w\"\n[data.mid]\n[data.out]\ndest = \"o\"\n[[step]]\nname = \"one\"\nforeach = [\"a\", \"b\"]\n\
             out = [\"mid\"]\nrun = \"x\"\n[[step]]\nname = \"two\"\nforeach = [\"b\", \"a\"]\nin = [\"mid/aligned_{item}\"]\n\
             out = [\"out\"]\nrun = \"x\"\n",
        );
        let made = supposed.get(&(StepId(0), DataId(0)));
        let names = |n: &str| vec![n.to_owned()];
        assert_eq!(made, Some(&vec![names("aligned_a"), names("aligned_b")]));
    }

    #[test]
    fn a_pattern_over_what_is_to_be_made_has_an_element_for_each_instance() {
        let (w, supposed) = suppose_of(
            "name = \"w\"\n[data.mid]\n[data.out]\ndest = \"o\"\n[[step]]\nname = \"one\"\nforeach = [\"a\", \"b\"]\n\
             out = [\"mid\"]\nrun = \"x\"\n[[step]]\nname = \"two\"\nforeach = \"mid/*.fits\"\nmax = 9\n\
             in = [\"mid/{item}\"]\nout = [\"out\"]\nrun = \"x\"\n",
        );
        let made = supposed.get(&(StepId(0), DataId(0)));
        let names = |n: &str| vec![n.to_owned()];
        assert_eq!(made, Some(&vec![names("a.fits"), names("b.fits")]));
        assert_eq!(w.steps.len(), 2);
    }
}
