//! How far something is that a job needs.

use tarn_proto::local::RequestError;

/// How far something is that a job needs.
pub(crate) enum PreparationState {
    /// Something is under way, or was ordered.
    Pending,
    /// Nothing is missing.
    Complete,
    /// It cannot be done.
    Failed(RequestError),
}

impl PreparationState {
    /// `Complete`, or `Pending` where something is missing.
    pub(crate) fn of(is_complete: bool) -> Self {
        if is_complete {
            Self::Complete
        } else {
            Self::Pending
        }
    }

    /// Whether it is complete; the error is why it cannot be done.
    pub(crate) fn into_result(self) -> Result<bool, RequestError> {
        match self {
            Self::Complete => Ok(true),
            Self::Pending => Ok(false),
            Self::Failed(why) => Err(why),
        }
    }
}

impl From<Result<bool, RequestError>> for PreparationState {
    fn from(done: Result<bool, RequestError>) -> Self {
        done.map_or_else(Self::Failed, Self::of)
    }
}
