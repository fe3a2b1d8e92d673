//! The keys of a run: who has them belongs to it.
//! Both ends prove it by mutual TLS ([`RunKeys::server`], [`RunKeys::client`]); the data plane has another key (`Start::data` in
//! `tarn_proto::node`).

use crate::PEER;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde::{Deserialize, Serialize};
use std::fmt;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// Keys could not be made or read.
#[derive(Debug, thiserror::Error)]
#[error("the keys of the run cannot be {what}: {why}")]
pub struct KeyError {
    what: &'static str,
    why: String,
}

/// What both ends of every connection of a run have, and nobody else: an authority that has signed one certificate, which
/// both present. Made anew for each run, passed to its nodes through a pipe, never written to a file.
#[derive(Clone, Serialize, Deserialize)]
pub struct RunKeys {
    authority: String,
    certificate: String,
    key: String,
}

impl fmt::Debug for RunKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunKeys(secret)")
    }
}

impl RunKeys {
    /// New keys.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn new() -> Result<Self, KeyError> {
        let made = |e: rcgen::Error| KeyError {
            what: "made",
            why: e.to_string(),
        };
        let authority_key = KeyPair::generate().map_err(made)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "tarn run");
        let authority = params.self_signed(&authority_key).map_err(made)?.pem();
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().map_err(made)?;
        // Clocks of nodes differ: rcgen's validity, 1975 to 4096, asks for none.
        let params = CertificateParams::new([PEER.to_owned()]).map_err(made)?;
        let certificate = params.signed_by(&key, &issuer).map_err(made)?.pem();
        Ok(Self {
            authority,
            certificate,
            key: key.serialize_pem(),
        })
    }

    pub(crate) fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(Identity::from_pem(&self.certificate, &self.key))
            .client_ca_root(Certificate::from_pem(&self.authority))
    }

    pub(crate) fn client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.authority))
            .identity(Identity::from_pem(&self.certificate, &self.key))
            .domain_name(PEER)
    }
}
