//! The cluster's certificates and keys, new for every cluster.

use super::node;
use anyhow::{Context, Result};
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A certificate: the file's name, who it is for, in which group, and under which addresses it serves.
struct Identity {
    file: &'static str,
    common_name: &'static str,
    group: Option<&'static str>,
    addresses: &'static [&'static str],
}

const IDENTITIES: [Identity; 8] = [
    Identity {
        file: "etcd",
        common_name: "etcd",
        group: None,
        addresses: &["127.0.0.1", "localhost"],
    },
    Identity {
        file: "apiserver",
        common_name: "kube-apiserver",
        group: None,
        addresses: &[
            "127.0.0.1",
            "localhost",
            node::ADDRESS,
            "10.96.0.1",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ],
    },
    // What the API server shows to etcd and to the kubelet.
    Identity {
        file: "apiserver-client",
        common_name: "kube-apiserver",
        group: Some("system:masters"),
        addresses: &[],
    },
    Identity {
        file: "admin",
        common_name: "admin",
        group: Some("system:masters"),
        addresses: &[],
    },
    Identity {
        file: "controller-manager",
        common_name: "system:kube-controller-manager",
        group: None,
        addresses: &[],
    },
    Identity {
        file: "scheduler",
        common_name: "system:kube-scheduler",
        group: None,
        addresses: &[],
    },
    Identity {
        file: "proxy",
        common_name: "system:kube-proxy",
        group: None,
        addresses: &[],
    },
    Identity {
        file: "kubelet",
        common_name: "system:node:node1",
        group: Some("system:nodes"),
        addresses: &[node::NAME, node::ADDRESS, "127.0.0.1"],
    },
];

/// The OpenSandbox server, which has an authority of its own: an adapter has to be told whom to trust.
const OPENSANDBOX: Identity = Identity {
    file: "opensandbox",
    common_name: "opensandbox-server",
    group: None,
    addresses: &["127.0.0.1", "localhost", node::ADDRESS],
};

/// Writes `ca.crt`, a `.crt` and `.key` per identity, and the service account keys into `folder`.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let (authority, issuer) = authority("ayatori-local-cluster")?;
    save(folder, "ca.crt", &authority)?;
    for identity in &IDENTITIES {
        issue(folder, identity, &issuer)?;
    }
    let (authority, issuer) = self::authority("ayatori-local-opensandbox")?;
    save(folder, "opensandbox-ca.crt", &authority)?;
    issue(folder, &OPENSANDBOX, &issuer)?;
    let accounts = KeyPair::generate()?;
    save(folder, "service-accounts.key", &accounts.serialize_pem())?;
    save(folder, "service-accounts.pub", &accounts.public_key_pem())
}

fn issue(folder: &Path, identity: &Identity, issuer: &Issuer<'static, KeyPair>) -> Result<()> {
    let key = KeyPair::generate()?;
    let certificate = params(identity)?.signed_by(&key, issuer)?;
    save(folder, &format!("{}.crt", identity.file), &certificate.pem())?;
    save(folder, &format!("{}.key", identity.file), &key.serialize_pem())
}

/// An authority's certificate and its power to sign. Its key is kept nowhere.
fn authority(common_name: &str) -> Result<(String, Issuer<'static, KeyPair>)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    valid_for_a_year(&mut params)?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?.pem();
    Ok((certificate, Issuer::new(params, key)))
}

fn params(identity: &Identity) -> Result<CertificateParams> {
    let addresses: Vec<String> = identity
        .addresses
        .iter()
        .map(|address| (*address).to_owned())
        .collect();
    let mut params = CertificateParams::new(addresses)?;
    valid_for_a_year(&mut params)?;
    params
        .distinguished_name
        .push(DnType::CommonName, identity.common_name);
    if let Some(group) = identity.group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !identity.addresses.is_empty() {
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn valid_for_a_year(params: &mut CertificateParams) -> Result<()> {
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let date = |day: jiff::civil::Date| -> Result<_> {
        Ok(rcgen::date_time_ymd(
            day.year().into(),
            u8::try_from(day.month())?,
            u8::try_from(day.day())?,
        ))
    };
    params.not_before = date(today.saturating_sub(1.day()))?;
    params.not_after = date(today.saturating_add(1.year()))?;
    Ok(())
}

fn save(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    private_file(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file that only its owner can read.
pub(crate) fn private_file(path: &Path, text: &str) -> std::io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_identity_gets_a_certificate_and_a_key_nobody_else_can_read() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for identity in IDENTITIES.iter().chain([&OPENSANDBOX]) {
            assert!(folder.path().join(format!("{}.crt", identity.file)).is_file());
            let key = folder.path().join(format!("{}.key", identity.file));
            assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
