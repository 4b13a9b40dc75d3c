//! The results of a job: of every workflow, JSON or not, and also those that one answer has no room for.

use std::collections::BTreeMap;

use onward::JobInfo;
use onward_api::raw::Raw;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::client::NodeClient;
use crate::failure::CommandFailure;

/// Results in an answer about a job with several workflows, each as it was written.
#[derive(Debug, Default)]
pub struct Results {
    /// Results by workflow. A result that is not JSON is `{"base64": "…"}`.
    pub here: BTreeMap<String, Box<RawValue>>,
    /// The workflows whose results the answer leaves out.
    pub left_out: Vec<String>,
}

/// Whether results are given by the names of workflows.
pub fn are_named(job: &JobInfo) -> bool {
    job.workflows.len() > 1
}

/// A result that is not JSON, as JSON.
pub fn as_base64(encoded: &RawValue) -> Box<RawValue> {
    to_raw_value(&json!({ "base64": encoded })).expect("a text can be written as JSON")
}

impl Results {
    /// `job` is as it came, and not as it is printed: names are sent back to the node.
    pub fn of(job: &JobInfo) -> Result<Self, serde_json::Error> {
        let left_out: Vec<String> =
            job.left_out.iter().filter(|left| left.field == "result").map(|left| left.workflow.clone()).collect();
        let mut here = by_name(job.result.as_ref())?;
        here.extend(by_name(job.result_base64.as_ref())?.into_iter().map(|(name, text)| (name, as_base64(&text))));
        here.retain(|name, _| !left_out.contains(name));
        Ok(Self { here, left_out })
    }

    /// Asks for those that were left out, one workflow at a time.
    pub fn complete(
        mut self,
        id: &str,
        client: &NodeClient,
    ) -> Result<BTreeMap<String, Box<RawValue>>, CommandFailure> {
        for name in self.left_out {
            let result = fetched(&name, id, client)
                .map_err(|failure| failure.and_why(&format!("so the result of workflow `{name}` is not known")))?;
            self.here.insert(name, result);
        }
        Ok(self.here)
    }
}

fn fetched(name: &str, id: &str, client: &NodeClient) -> Result<Box<RawValue>, CommandFailure> {
    let job = client.run(client.node().job_with_content(id, name))?;
    let mut results = Results::of(&job).map_err(unreadable)?;
    results
        .here
        .remove(name)
        .ok_or_else(|| CommandFailure::new(format!("the node does not give the result of workflow `{name}`")))
}

pub fn unreadable(error: serde_json::Error) -> CommandFailure {
    CommandFailure::new("the results in the node's answer cannot be read").why(error)
}

fn by_name(results: Option<&Raw>) -> Result<BTreeMap<String, Box<RawValue>>, serde_json::Error> {
    results.map_or(Ok(BTreeMap::new()), |results| serde_json::from_str(results.get()))
}
