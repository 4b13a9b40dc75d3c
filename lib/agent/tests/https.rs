//! A model's server by HTTPS, with certificates of an authority of one's own.

mod rig;

use std::sync::Arc;

use onward_agent::{Agent, ChatCompletions, ModelError, Stopped};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rig::TestAttempt;
use rig::server::{Server, text};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A server with a certificate for this name.
    async fn server(&self, name: &str) -> Server {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key_der = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![certificate.der().clone()], key_der.into()).unwrap();
        Server::start_with(Some(TlsAcceptor::from(Arc::new(config))), |_, _| text("here")).await
    }
}

#[tokio::test]
async fn a_server_is_asked_only_if_its_certificate_is_of_a_trusted_authority_and_for_its_name() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let (named, misnamed) = (authority.server("127.0.0.1").await, authority.server("elsewhere.example").await);
    let ask = async |server: &Server, trusted: Option<&str>| {
        let model = ChatCompletions::at(&server.url, "m").unwrap().key("sk-secret");
        let model = match trusted {
            Some(pem) => model.trusting(pem.as_bytes()).unwrap(),
            None => model,
        };
        Agent::new(model).run_text(&TestAttempt::new(), "hello").await
    };
    assert_eq!(ask(&named, Some(&authority.pem)).await.unwrap().output, "here");
    assert!(named.asked()[0].head.to_lowercase().contains("authorization: bearer sk-secret"));
    let both = format!("{}{}", other.pem, authority.pem);
    assert_eq!(ask(&named, Some(&both)).await.unwrap().output, "here");

    let (wrong, public, name) =
        tokio::join!(ask(&named, Some(&other.pem)), ask(&named, None), ask(&misnamed, Some(&authority.pem)));
    for (ended, said) in [(wrong, "UnknownIssuer"), (public, "UnknownIssuer"), (name, "not valid for name")] {
        let Err(Stopped::Model(ModelError::Unavailable { why, .. })) = &ended else { panic!("{ended:?}") };
        assert!(why.contains(said), "{why}");
    }
    assert_eq!((named.asked().len(), misnamed.asked().len()), (2, 0), "nothing was said to them");
}

#[test]
fn what_is_no_certificate_is_not_trusted() {
    for (pem, said) in [
        ("", "there is none in it"),
        ("hello", "there is none in it"),
        ("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n", "cannot be used"),
    ] {
        let model = ChatCompletions::at("https://127.0.0.1:1/v1", "m").unwrap();
        let error = model.trusting(pem.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}
