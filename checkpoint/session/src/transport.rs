//! How bytes go between ranks of different nodes: by TCP, or by a network's own means.

use crate::environment::text;
use std::sync::Arc;
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
use tarn_data_plane::{Rma, Transport, library};
use tarn_ports::{OneSided, Ranks};
use tarn_ranks::Meeting;

/// Providers of networks that read and write memory themselves, and then the one that every machine has: the first that can be opened is
/// taken where none is named. None of the first three has been tried on its network.
const PROVIDERS: [&str; 4] = ["cxi", "efa", "verbs;ofi_rxm", "tcp;ofi_rxm"];

/// The providers that are tried in turn; empty: TCP it is.
pub(crate) fn providers(given: Option<String>) -> Result<Vec<String>, CheckpointError> {
    let Some(text) = given.or_else(|| text("TARN_PHX_TRANSPORT")) else {
        return Ok(Vec::new());
    };
    let wrong = |why: &str| {
        let text = format!("the transport is {text:?}: {why}");
        Err(CheckpointError::new(CheckpointErrorCode::Invalid, text))
    };
    match text.parse() {
        Ok(Transport::Tcp) => Ok(Vec::new()),
        Ok(Transport::Libfabric(_)) if text == "libfabric" => {
            Ok(PROVIDERS.map(str::to_owned).into())
        }
        Ok(Transport::Libfabric(provider)) => Ok(vec![provider]),
        Ok(Transport::Sealed) => wrong(
            "checkpoints are sealed by `encrypt`, whatever the transport is; give tcp, libfabric or libfabric:PROVIDER",
        ),
        Err(_) => {
            wrong("give tcp, libfabric, or libfabric:PROVIDER, such as `libfabric:verbs;ofi_rxm`")
        }
    }
}

/// Makes the ranks meet. Where they are on several nodes, which is the second result, bytes go by the first of these providers
/// that can be opened.
pub(crate) fn join(
    options: tarn_ranks::Options,
    providers: &[String],
) -> Result<(Arc<Meeting>, bool), CheckpointError> {
    let ranks = Meeting::join(options)?;
    let several = (0..ranks.ranks()).any(|rank| ranks.node(rank) != ranks.node(0));
    if several && !providers.is_empty() {
        match open(providers) {
            Ok(one_sided) => ranks.reach_by(one_sided),
            Err(error) => ranks.report_streams_only(error),
        }
    }
    Ok((ranks, several))
}

/// The first of them that can be opened, or why none can.
fn open(providers: &[String]) -> Result<Arc<dyn OneSided>, CheckpointError> {
    let library =
        library().map_err(|e| unsupported(format!("this program does not find itself: {e}")))?;
    let mut why = String::new();
    for provider in providers {
        match Rma::load_as_guest(&library, provider) {
            Ok(rma) => return Ok(rma),
            // The error of the provider that every machine has is the most useful one.
            Err(e) => why = e.to_string(),
        }
    }
    Err(unsupported(why))
}

fn unsupported(why: String) -> CheckpointError {
    CheckpointError::new(CheckpointErrorCode::Unsupported, why)
}
