//! The files in `deploy/`, against the schemas of those who will read them: Kubernetes, compose, Prometheus.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::clients::{python, run_quietly};

const COMPOSE: &str = "import sys, compose_spec; compose_spec.PyCompose.from_yaml(open(sys.argv[1]).read())";

pub fn check(root: &Path) -> Result<()> {
    let (python, deploy) = (python(root)?, root.join("deploy"));
    let kubernetes = python.with_file_name("kubernetes-validate");
    for file in ["kubernetes.yaml", "kubernetes-cluster.yaml"] {
        run_quietly(Command::new(&kubernetes).args(["--strict", "--quiet"]).arg(deploy.join(file)))?;
    }
    run_quietly(Command::new(python).args(["-c", COMPOSE]).arg(deploy.join("compose.yaml")))?;
    let scrape = deploy.join("prometheus.yml");
    run_quietly(Command::new("promtool").args(["check", "config", "--syntax-only"]).arg(scrape))?;
    println!("onward: manifests: what Kubernetes, compose and Prometheus read is valid");
    Ok(())
}
