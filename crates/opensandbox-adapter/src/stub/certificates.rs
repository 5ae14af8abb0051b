//! Certificates of the stub, good and bad.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

/// The certificate a stub serves with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// Signed by the authority that [`Stub::ca_bundle`](super::Stub::ca_bundle) gives.
    Good,
    /// It was good once.
    Expired,
    /// It will be good one day.
    NotYetValid,
    /// It names another host.
    OfOtherName,
    /// Another authority signed it.
    OfOtherAuthority,
}

const INVARIANT: &str = "keys and certificates of the stub are made from constants";

/// The configuration of a server with that certificate, and the authority that is to be trusted.
pub(super) fn serve_with(certificate: Certificate) -> (ServerConfig, String) {
    let (bundle, trusted) = authority("trusted");
    let (_, other) = authority("other");
    let name = match certificate {
        Certificate::OfOtherName => "somewhere.example",
        _ => "127.0.0.1",
    };
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect(INVARIANT);
    match certificate {
        Certificate::Expired => params.not_after = date_time_ymd(2001, 1, 1),
        Certificate::NotYetValid => params.not_before = date_time_ymd(4000, 1, 1),
        Certificate::Good | Certificate::OfOtherName | Certificate::OfOtherAuthority => {}
    }
    let issuer = match certificate {
        Certificate::OfOtherAuthority => other,
        _ => trusted,
    };
    let key = KeyPair::generate().expect(INVARIANT);
    let certificate = params.signed_by(&key, &issuer).expect(INVARIANT);
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = rustls::crypto::ring::default_provider();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect(INVARIANT)
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect(INVARIANT);
    (config, bundle)
}

fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().expect(INVARIANT);
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key).expect(INVARIANT).pem();
    (certificate, Issuer::new(params, key))
}
