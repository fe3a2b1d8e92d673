//! The formats of ipmctl: XML (`-o nvmxml`), tables with `|`, and lists of `Key=Value`. All become records.

use crate::{Garbled, MAX_THINGS};
use std::collections::BTreeMap;

const TOOL: &str = "ipmctl";
/// Nodes of an XML document: a machine's modules with all their fields are some 20,000.
const MAX_NODES: u32 = 1 << 17;

/// A record of ipmctl: fields by name. In XML, the fields of the elements around it are its own too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IpmctlRecord(BTreeMap<String, String>);

impl IpmctlRecord {
    /// A field with a value.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name)?.trim();
        (!matches!(value, "" | "N/A" | "-" | "Unknown")).then_some(value)
    }

    /// A field in words, empty where there is none.
    pub(crate) fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// A small number, as `0x0011` or `17`.
    pub(crate) fn number(&self, name: &str) -> Option<u16> {
        number(self.get(name)?)
    }

    /// A capacity.
    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        crate::size::parse(self.get(name)?)
    }
}

/// `0x0011` or `17`.
pub(crate) fn number(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The records of ipmctl's output, in any of its formats. None if it reports that there is nothing.
pub(crate) fn records(text: &str) -> Result<Vec<IpmctlRecord>, Garbled> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    if lower.contains("requires root privileges") || lower.contains("permission denied") {
        return Err(Garbled::Rights { tool: TOOL });
    }
    // A warning may come before the document.
    if let Some(start) = text.find("<?xml") {
        return xml(&text[start..]);
    }
    if text.starts_with('<') {
        return xml(text);
    }
    let found = plain(text)?;
    if found.is_empty() && !is_empty_report(&lower) {
        let first: String = text.chars().take(80).take_while(|c| *c != '\n').collect();
        return Err(Garbled::Format {
            tool: TOOL,
            why: format!("`{first}`"),
        });
    }
    Ok(found)
}

/// "No PMem modules in the system", "There are no goal configs defined in the system", "... no Regions defined ...".
fn is_empty_report(lower: &str) -> bool {
    let what = ["pmem", "dimm", "dcpmm", "goal", "region", "module"];
    lower.is_empty()
        || lower.lines().any(|line| {
            let no = line.starts_with("no ") || line.contains(" no ") || line.contains(" not ");
            no && what.iter().any(|w| line.contains(w))
        })
}

fn xml(text: &str) -> Result<Vec<IpmctlRecord>, Garbled> {
    let options = roxmltree::ParsingOptions {
        nodes_limit: MAX_NODES,
        ..Default::default()
    };
    let document =
        roxmltree::Document::parse_with_options(text, options).map_err(|e| Garbled::Format {
            tool: TOOL,
            why: format!("no XML: {e}"),
        })?;
    let is_field = |n: &roxmltree::Node<'_, '_>| {
        n.is_element() && !n.children().any(|child| child.is_element())
    };
    let mut found = Vec::new();
    for element in document.descendants().filter(roxmltree::Node::is_element) {
        if !element.children().any(|n| is_field(&n)) {
            continue;
        }
        if found.len() == MAX_THINGS {
            return Err(Garbled::TooMuch { tool: TOOL });
        }
        let mut record = IpmctlRecord::default();
        for around in element.ancestors() {
            for field in around.children().filter(is_field) {
                let name = field.tag_name().name();
                if !record.0.contains_key(name) {
                    let value = field.text().unwrap_or_default();
                    record.0.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        found.push(record);
    }
    Ok(found)
}

/// Tables and lists, in one text or alone.
fn plain(text: &str) -> Result<Vec<IpmctlRecord>, Garbled> {
    let mut found: Vec<IpmctlRecord> = Vec::new();
    let mut header: Vec<String> = Vec::new();
    // Whether fields of a list go to the last record.
    let mut open = false;
    for line in text.lines().map(str::trim) {
        if found.len() > MAX_THINGS {
            return Err(Garbled::TooMuch { tool: TOOL });
        }
        if line.is_empty() || line.chars().all(|c| c == '=') {
            continue;
        }
        if let Some(head) = line.strip_prefix("---").and_then(|l| l.strip_suffix("---")) {
            let mut record = IpmctlRecord::default();
            if let Some((name, value)) = head.split_once('=') {
                record.0.insert(name.trim().into(), value.trim().into());
            }
            found.push(record);
            open = true;
        } else if line.contains('|') {
            let cells: Vec<String> = line.split('|').map(|c| c.trim().to_owned()).collect();
            open = false;
            if header.len() == cells.len() {
                found.push(IpmctlRecord(header.iter().cloned().zip(cells).collect()));
            } else if header.is_empty() {
                header = cells;
            }
        } else if let Some((name, value)) = line.split_once('=')
            && !name.contains(' ')
        {
            if !open {
                found.push(IpmctlRecord::default());
                open = true;
            }
            if let Some(record) = found.last_mut() {
                record.0.insert(name.into(), value.trim().into());
            }
        }
    }
    Ok(found)
}
