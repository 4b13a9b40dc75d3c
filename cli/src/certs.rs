//! `onward certs`: a small authority of one's own, for nodes that talk over a network.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use crate::failure::Failure;
use crate::screen::Screen;

/// Writes `ca.pem`, `cert.pem` and `key.pem`. The authority's key is not kept: nothing else can ever be signed by it.
pub fn new(hosts: &[String], out: &Path, screen: &Screen) -> Result<u8> {
    let cannot = |error| Failure::new("the certificates cannot be made").why(error);
    let authority_key = KeyPair::generate().map_err(cannot)?;
    let mut authority = CertificateParams::new(Vec::new()).map_err(cannot)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    authority.distinguished_name.push(DnType::CommonName, "Onward, own authority");
    let signed_authority = authority.self_signed(&authority_key).map_err(cannot)?;

    let key = KeyPair::generate().map_err(cannot)?;
    let mut node = CertificateParams::new(hosts.to_vec())
        .map_err(|error| Failure::new(format!("{} cannot be host names", hosts.join(", "))).why(error).usage())?;
    node.distinguished_name.push(DnType::CommonName, hosts.first().map_or("onward", String::as_str));
    node.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let issuer = Issuer::new(authority, authority_key);
    let signed = node.signed_by(&key, &issuer).map_err(cannot)?;

    std::fs::create_dir_all(out).map_err(|error| Failure::new(format!("cannot make {}", out.display())).why(error))?;
    let files = [
        ("ca.pem", signed_authority.pem(), 0o644),
        ("cert.pem", signed.pem(), 0o644),
        ("key.pem", key.serialize_pem(), 0o600),
    ];
    for (name, _, _) in &files {
        let path = out.join(name);
        if path.exists() {
            return Err(Failure::new(format!("{} is there already", path.display()))
                .why("a certificate in use must not be replaced by accident")
                .remedy("choose another folder with --out, or remove it")
                .into());
        }
    }
    for (name, text, mode) in &files {
        let path = out.join(name);
        let written = std::fs::OpenOptions::new().write(true).create_new(true).mode(*mode).open(&path);
        written
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::new(format!("cannot write {}", path.display())).why(error))?;
    }
    let path = |name: &str| out.join(name).display().to_string();
    if screen.json {
        screen.json(&json!({ "ca": path("ca.pem"), "cert": path("cert.pem"), "key": path("key.pem") }))?;
        return Ok(0);
    }
    screen.line(format!("made {}, {} and {}", path("ca.pem"), path("cert.pem"), path("key.pem")))?;
    screen.line(format!("  the node:  onward up --tls-cert {} --tls-key {}", path("cert.pem"), path("key.pem")))?;
    screen.line(format!("  whoever talks to it:  --ca {}", path("ca.pem")))?;
    Ok(0)
}
