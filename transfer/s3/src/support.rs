//! The known facts about a store's conditions: whether it takes them, and keeps to them.

use crate::request::S3Request;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Buckets, methods and conditions of which something is known at once.
const MAX_KNOWN: usize = 1024;

/// The known facts about one condition of one method in one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Support {
    /// The store took it, or passed over it. It is sent, and the object that is there is looked at too.
    Accepted,
    /// The same, and it was tried whether the store keeps to it.
    Probed,
    /// A request was refused because of it.
    Enforced,
    /// The store does not take it.
    Unsupported,
}

/// The facts found out about a store's conditions.
#[derive(Debug, Default)]
pub(crate) struct ConditionSupport {
    known: Mutex<BTreeMap<(String, &'static str, &'static str), Support>>,
}

impl ConditionSupport {
    pub(crate) fn get(&self, request: &S3Request<'_>, name: &'static str) -> Option<Support> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (request.at.bucket.clone(), request.doing(), name);
        known.get(&key).copied()
    }

    /// Records it; whether that is more than was known before.
    pub(crate) fn record(&self, request: &S3Request<'_>, name: &'static str, is: Support) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (request.at.bucket.clone(), request.doing(), name);
        let is_more = known.get(&key).is_none_or(|before| *before < is);
        if is_more {
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
            known.insert(key, is);
        }
        is_more
    }
}
