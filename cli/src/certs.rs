//! `onward certs`: a small authority of one's own, for nodes that talk over a network, and the key that they share.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use onward_gossip::{ClusterKey, NodeLabel, Role};
use onward_node::peer::PeerIdentity;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;

use crate::args::NodeCertArgs;
use crate::failure::CommandFailure;
use crate::screen::Screen;

const AUTHORITY_CERT: &str = "ca.pem";
const AUTHORITY_KEY: &str = "ca.key";
const CERT: &str = "cert.pem";
const KEY: &str = "key.pem";
const PUBLIC: u32 = 0o644;
const SECRET: u32 = 0o600;

/// Writes `ca.pem`, `cert.pem` and `key.pem`. The authority's key is not kept: nothing else can ever be signed by it.
pub fn new(hosts: &[String], out: &Path, screen: &Screen) -> Result<u8> {
    let key = KeyPair::generate().map_err(cannot)?;
    let (authority, issuer) = authority(KeyPair::generate().map_err(cannot)?)?;
    let name = hosts.first().map_or("onward", String::as_str);
    let signed = certificate(hosts, name, &[ExtendedKeyUsagePurpose::ServerAuth])?;
    let signed = signed.signed_by(&key, &issuer).map_err(cannot)?;
    let files =
        [(AUTHORITY_CERT, authority.pem(), PUBLIC), (CERT, signed.pem(), PUBLIC), (KEY, key.serialize_pem(), SECRET)];
    write_all(out, &files)?;
    let path = |name: &str| out.join(name).display().to_string();
    if screen.json {
        screen.json(&json!({ "ca": path(AUTHORITY_CERT), "cert": path(CERT), "key": path(KEY) }))?;
        return Ok(0);
    }
    screen.line(format!("made {}, {} and {}", path(AUTHORITY_CERT), path(CERT), path(KEY)))?;
    screen.line(format!("  the node:  onward up --tls-cert {} --tls-key {}", path(CERT), path(KEY)))?;
    screen.line(format!("  whoever talks to it:  --ca {}", path(AUTHORITY_CERT)))?;
    Ok(0)
}

/// Writes `ca.pem` and `ca.key`: an authority that is kept, to sign the certificates of a cluster's nodes.
pub fn ca(out: &Path, screen: &Screen) -> Result<u8> {
    let key = KeyPair::generate().map_err(cannot)?;
    let secret = key.serialize_pem();
    let (authority, _) = authority(key)?;
    write_all(out, &[(AUTHORITY_CERT, authority.pem(), PUBLIC), (AUTHORITY_KEY, secret, SECRET)])?;
    let path = |name: &str| out.join(name).display().to_string();
    if screen.json {
        screen.json(&json!({ "ca": path(AUTHORITY_CERT), "key": path(AUTHORITY_KEY) }))?;
        return Ok(0);
    }
    screen.line(format!("made {} and {}", path(AUTHORITY_CERT), path(AUTHORITY_KEY)))?;
    screen.line(format!("  every node gets {} as tls.ca", path(AUTHORITY_CERT)))?;
    screen.line(format!("  keep {} off the nodes: who has it can be any of them", path(AUTHORITY_KEY)))?;
    screen.line(format!(
        "  next:  onward certs node --ca {} --role manager --datacenter dc-a --name m1 --host HOST --out m1",
        out.display()
    ))?;
    Ok(0)
}

/// Writes `ca.pem`, `cert.pem` and `key.pem` for one node, signed by an authority that was kept.
pub fn node(args: &NodeCertArgs, screen: &Screen) -> Result<u8> {
    let identity = identity(args)?;
    let authority_file = |name: &str| {
        let path = args.ca.join(name);
        std::fs::read_to_string(&path).map_err(|error| {
            CommandFailure::new(format!("cannot read {}", path.display()))
                .why(error)
                .remedy("`onward certs ca --out DIR` makes an authority; name its folder with --ca")
        })
    };
    let authority_cert = authority_file(AUTHORITY_CERT)?;
    let authority_key = KeyPair::from_pem(&authority_file(AUTHORITY_KEY)?).map_err(cannot)?;
    let (_, issuer) = authority(authority_key)?;
    let key = KeyPair::generate().map_err(cannot)?;
    // Nodes dial each other: each is a server and a client.
    let usages = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let mut params = certificate(&args.hosts, args.name.as_str(), &usages)?;
    params.subject_alt_names.push(SanType::URI(identity.to_string().try_into().map_err(cannot)?));
    let signed = params.signed_by(&key, &issuer).map_err(cannot)?;
    let files =
        [(AUTHORITY_CERT, authority_cert, PUBLIC), (CERT, signed.pem(), PUBLIC), (KEY, key.serialize_pem(), SECRET)];
    write_all(&args.out, &files)?;
    let path = |name: &str| args.out.join(name).display().to_string();
    if screen.json {
        let identity = identity.to_string();
        screen
            .json(&json!({ "ca": path(AUTHORITY_CERT), "cert": path(CERT), "key": path(KEY), "identity": identity }))?;
        return Ok(0);
    }
    screen.line(format!("made {}, {} and {} for {identity}", path(AUTHORITY_CERT), path(CERT), path(KEY)))?;
    screen.line(format!(
        "  in its settings:  [tls] cert = \"{}\", key = \"{}\", ca = \"{}\"",
        path(CERT),
        path(KEY),
        path(AUTHORITY_CERT)
    ))?;
    Ok(0)
}

/// Writes a new key of a cluster, for its owner only.
pub fn key(out: &Path, screen: &Screen) -> Result<u8> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| CommandFailure::new("the system gives no randomness").why(error))?;
    write_new(out, &format!("{}\n", ClusterKey::new(bytes).to_line()), SECRET)?;
    let path = out.display().to_string();
    if screen.json {
        screen.json(&json!({ "key_file": path }))?;
        return Ok(0);
    }
    screen.line(format!("made {path}"))?;
    screen.line("  every node of the cluster gets the same file, and cluster.key_file names it")?;
    screen
        .line("  to change it:  add the new key as a second line everywhere, then put it first, then drop the old")?;
    Ok(0)
}

fn identity(args: &NodeCertArgs) -> Result<PeerIdentity, CommandFailure> {
    let name: NodeLabel = args.name.clone();
    match (args.role, args.datacenter.clone()) {
        (Role::Gate, None) => Ok(PeerIdentity::gate(name)),
        (Role::Manager, Some(datacenter)) => Ok(PeerIdentity::manager(datacenter, name)),
        (Role::Worker, Some(datacenter)) => Ok(PeerIdentity::worker(datacenter, name)),
        (Role::Gate, Some(_)) => {
            Err(CommandFailure::new("a gate has no datacenter").remedy("leave --datacenter out").usage())
        }
        (role, None) => {
            let remedy = "name it with --datacenter; a certificate is good for that one alone";
            Err(CommandFailure::new(format!("a {role} belongs to a datacenter")).remedy(remedy).usage())
        }
    }
}

fn cannot(error: impl std::fmt::Display) -> CommandFailure {
    CommandFailure::new("the certificates cannot be made").why(error)
}

/// The authority is the same whenever it is made from the same key: nothing of it but the key has to be read back.
fn authority(key: KeyPair) -> Result<(Certificate, Issuer<'static, KeyPair>), CommandFailure> {
    let mut params = CertificateParams::new(Vec::new()).map_err(cannot)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, "Onward, own authority");
    let certificate = params.self_signed(&key).map_err(cannot)?;
    Ok((certificate, Issuer::new(params, key)))
}

fn certificate(
    hosts: &[String],
    name: &str,
    usages: &[ExtendedKeyUsagePurpose],
) -> Result<CertificateParams, CommandFailure> {
    let mut params = CertificateParams::new(hosts.to_vec()).map_err(|error| {
        CommandFailure::new(format!("{} cannot be host names", hosts.join(", "))).why(error).usage()
    })?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = usages.to_vec();
    Ok(params)
}

/// All of them, or none if one is there already.
fn write_all(out: &Path, files: &[(&str, String, u32)]) -> Result<(), CommandFailure> {
    std::fs::create_dir_all(out)
        .map_err(|error| CommandFailure::new(format!("cannot make {}", out.display())).why(error))?;
    let paths: Vec<PathBuf> = files.iter().map(|(name, _, _)| out.join(name)).collect();
    if let Some(path) = paths.iter().find(|path| path.exists()) {
        return Err(there_already(path));
    }
    for (path, (_, text, mode)) in paths.iter().zip(files) {
        write_new(path, text, *mode)?;
    }
    Ok(())
}

fn there_already(path: &Path) -> CommandFailure {
    CommandFailure::new(format!("{} is there already", path.display()))
        .why("what is in use must not be replaced by accident")
        .remedy("choose another place with --out, or remove it")
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), CommandFailure> {
    let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    match opened.and_then(|mut file| file.write_all(text.as_bytes())) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(there_already(path)),
        written => written.map_err(|error| CommandFailure::new(format!("cannot write {}", path.display())).why(error)),
    }
}
