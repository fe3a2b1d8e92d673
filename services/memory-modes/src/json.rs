//! The format of ndctl, daxctl and cxl: JSON, an object or a list of them, nested or not, by their options.

use crate::{Garbled, MAX_THINGS};
use serde_json::{Map, Value};

/// An object, and where it was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JsonObject<'v> {
    fields: &'v Map<String, Value>,
    /// Position of the object that it is in.
    within: Option<usize>,
}

/// All objects of a text, outer ones first.
#[derive(Debug)]
pub(crate) struct Objects<'v>(Vec<JsonObject<'v>>);

/// The text as JSON. These tools print nothing at all if there is nothing.
pub(crate) fn value(tool: &'static str, text: &str) -> Result<Value, Garbled> {
    if text.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    serde_json::from_str(text).map_err(|e| Garbled::Format {
        tool,
        why: format!("no JSON: {e}"),
    })
}

impl<'v> Objects<'v> {
    pub(crate) fn of(tool: &'static str, value: &'v Value) -> Result<Self, Garbled> {
        let mut found: Vec<JsonObject<'v>> = Vec::new();
        let mut open: Vec<(&Value, Option<usize>)> = vec![(value, None)];
        while let Some((value, within)) = open.pop() {
            match value {
                Value::Array(list) => open.extend(list.iter().rev().map(|v| (v, within))),
                Value::Object(fields) => {
                    if found.len() == MAX_THINGS {
                        return Err(Garbled::TooMuch { tool });
                    }
                    let this = Some(found.len());
                    found.push(JsonObject { fields, within });
                    open.extend(fields.values().rev().map(|v| (v, this)));
                }
                _ => {}
            }
        }
        Ok(Self(found))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &JsonObject<'v>> {
        self.0.iter()
    }

    /// A text field of the object, or of the objects around it, nearest first.
    pub(crate) fn around(&self, object: &JsonObject<'v>, names: &[&str]) -> Option<String> {
        let mut at = Some(*object);
        // Each step leads to an earlier object, so this ends.
        while let Some(object) = at {
            if let Some(text) = names.iter().find_map(|n| object.text(n)) {
                return Some(text.to_owned());
            }
            at = object.within.map(|i| self.0[i]);
        }
        None
    }

    /// The object around this one.
    pub(crate) fn outer(&self, object: &JsonObject<'v>) -> Option<&JsonObject<'v>> {
        object.within.map(|i| &self.0[i])
    }
}

impl<'v> JsonObject<'v> {
    pub(crate) fn text(&self, name: &str) -> Option<&'v str> {
        self.fields.get(name)?.as_str()
    }

    /// A size, as a number or as `--human` writes it.
    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        match self.fields.get(name)? {
            Value::Number(n) => n.as_u64(),
            Value::String(text) => crate::size::parse(text),
            _ => None,
        }
    }

    /// An identifier of 64 bits, which older tools write with a sign.
    pub(crate) fn identifier(&self, name: &str) -> Option<u64> {
        match self.fields.get(name)? {
            Value::Number(n) => n.as_u64().or_else(|| n.as_i64().map(i64::cast_unsigned)),
            Value::String(text) => crate::size::parse(text),
            _ => None,
        }
    }

    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.fields.get(name)?.as_i64()
    }

    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.fields.get(name)?.as_bool()
    }
}
