//! How content travels between nodes: the user's choice, and the transport that results.

use crate::rma::{Rma, RmaError, library};
use std::str::FromStr;
use std::sync::Arc;
use tarn_proto::data::MAX_NAME;

/// The provider of libfabric that is used where none is named.
const PROVIDER: &str = "tcp;ofi_rxm";

/// The choices of `--transport`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Transport {
    /// Over TCP streams, as it is.
    #[default]
    Tcp,
    /// Over TCP streams, sealed.
    Sealed,
    /// Large pieces from windows, by this provider of libfabric.
    Libfabric(String),
}

/// A text that names no transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give tcp, sealed, libfabric, or libfabric:PROVIDER, such as `libfabric:verbs;ofi_rxm`")]
pub struct TransportError;

impl FromStr for Transport {
    type Err = TransportError;

    fn from_str(text: &str) -> Result<Self, TransportError> {
        match text.split_once(':').unwrap_or((text, PROVIDER)) {
            _ if text == "tcp" => Ok(Self::Tcp),
            _ if text == "sealed" => Ok(Self::Sealed),
            ("libfabric", provider) if (1..=MAX_NAME).contains(&provider.len()) => {
                Ok(Self::Libfabric(provider.to_owned()))
            }
            _ => Err(TransportError),
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp => f.write_str("tcp"),
            Self::Sealed => f.write_str("sealed"),
            Self::Libfabric(provider) => write!(f, "libfabric:{provider}"),
        }
    }
}

impl Transport {
    /// Makes ready what it needs.
    ///
    /// # Errors
    /// When libfabric's library is not there or does not know the provider.
    pub fn way(&self) -> Result<ContentTransport, RmaError> {
        match self {
            Self::Tcp => Ok(ContentTransport::Clear),
            Self::Sealed => Ok(ContentTransport::Sealed),
            Self::Libfabric(provider) => {
                let library = library()
                    .map_err(|e| RmaError::new(format_args!("tarn does not find itself: {e}")))?;
                Rma::load(&library, provider).map(ContentTransport::Windows)
            }
        }
    }
}

/// How a client asks for content, or a server gives it.
#[derive(Debug, Clone, Default)]
pub enum ContentTransport {
    /// Over streams, as it is; sealed where the other end wants that.
    #[default]
    Clear,
    /// Over sealed streams only.
    Sealed,
    /// Over streams, and large pieces by windows where both ends have them.
    Windows(Arc<Rma>),
}

impl ContentTransport {
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed)
    }

    /// The libfabric provider that opens and reads windows, if there is one.
    pub fn rma(&self) -> Option<&Arc<Rma>> {
        match self {
            Self::Windows(rma) => Some(rma),
            Self::Clear | Self::Sealed => None,
        }
    }

    /// Nothing is read by windows any more.
    pub fn close(&self) {
        if let Some(rma) = self.rma() {
            rma.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_read_strictly() {
        for text in ["tcp", "sealed", "libfabric:shm", "libfabric:tcp;ofi_rxm"] {
            assert_eq!(text.parse::<Transport>().unwrap().to_string(), text);
        }
        let usual = "libfabric".parse::<Transport>().unwrap();
        assert_eq!(usual, Transport::Libfabric(PROVIDER.into()));
        let long = format!("libfabric:{}", "x".repeat(MAX_NAME + 1));
        for bad in ["", "TCP", "sealed:", "libfabric:", "pigeon", &long] {
            assert!(bad.parse::<Transport>().is_err(), "{bad}");
        }
    }
}
