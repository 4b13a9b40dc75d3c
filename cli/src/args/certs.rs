//! `onward certs` as it is written.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use onward_gossip::{NodeLabel, Role};

#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Make an authority, and a certificate for a node that it signs
    #[command(after_help = "Example:\n  onward certs new --host onward.internal --host 10.0.0.5 --out tls")]
    New {
        /// A name or address that clients reach the node by; may be repeated
        #[arg(long = "host", value_name = "NAME", required = true)]
        hosts: Vec<String>,
        /// The folder to put them into
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Make an authority that is kept, to sign the certificates of a cluster's nodes
    #[command(after_help = "Example:\n  onward certs ca --out authority")]
    Ca {
        /// The folder to put `ca.pem` and `ca.key` into
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Make a certificate for one node of a cluster, with its role and its datacenter in it
    #[command(
        after_help = "Example:\n  onward certs node --ca authority --role manager --datacenter dc-a --name m1 --host 10.0.0.5 --out m1"
    )]
    Node(NodeCertArgs),
    /// Make the key that the nodes of a cluster share
    #[command(after_help = "Example:\n  onward certs key --out /etc/onward/cluster.key")]
    Key {
        /// The file to put it into; only its owner can read it
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct NodeCertArgs {
    /// The folder of the authority, as `onward certs ca` has made it
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,
    /// What the node is: gate, manager or worker
    #[arg(long)]
    pub role: Role,
    /// The datacenter that it belongs to; a gate has none
    #[arg(long, value_name = "NAME")]
    pub datacenter: Option<NodeLabel>,
    /// What the node is called
    #[arg(long, value_name = "NAME")]
    pub name: NodeLabel,
    /// A name or address that others reach the node by; may be repeated
    #[arg(long = "host", value_name = "NAME", required = true)]
    pub hosts: Vec<String>,
    /// The folder to put them into
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}
