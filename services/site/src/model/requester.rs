//! The requester.

use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Owner, Uid};

/// The sender of a request.
#[derive(Debug, Clone)]
pub(crate) struct Requester<'a> {
    pub(crate) user: Uid,
    pub(crate) groups: &'a [u32],
    pub(crate) trusted: bool,
}

impl Requester<'_> {
    pub(crate) fn is(&self, owner: Owner) -> bool {
        owner.is(self.user, self.groups)
    }

    /// Whether they may change an owner's data.
    pub(crate) fn may_change(&self, owner: Owner) -> Result<(), RequestError> {
        match self.is(owner) || self.user == 0 {
            true => Ok(()),
            false => {
                let text = "it belongs to somebody else";
                Err(RequestError::new(Code::Denied, text))
            }
        }
    }
}
