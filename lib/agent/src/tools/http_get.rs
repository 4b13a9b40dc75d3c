//! Fetches public pages.

use core::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue, LOCATION, USER_AGENT};
use schemars::JsonSchema;
use serde::Deserialize;

use super::public_address::is_public;
use crate::http::{self, Reach, Response, Trust, Url};
use crate::tool::{Tool, ToolContext, ToolError};

const MAX_REDIRECTS: usize = 5;
const DEFAULT_BYTES: usize = 256 << 10;

/// The tool `http_get`: fetches a page from a public address. No cookies, no credentials, at most five redirects.
#[derive(Clone)]
pub struct HttpGet {
    allowed: Vec<SocketAddr>,
    bytes: usize,
    trust: Trust,
}

impl fmt::Debug for HttpGet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HttpGet");
        shown.field("allowed", &self.allowed).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// An http or https URL.
    url: String,
}

impl Default for HttpGet {
    fn default() -> Self {
        Self { allowed: Vec::new(), bytes: DEFAULT_BYTES, trust: Trust::public() }
    }
}

impl HttpGet {
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows an address although it is not public, such as a server of your own.
    pub fn allow(mut self, address: SocketAddr) -> Self {
        self.allowed.push(address);
        self
    }

    /// Most bytes that are read of a page. Default 256 KiB.
    pub fn limit(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    pub fn tool(self) -> Tool {
        let (bytes, own) = (self.bytes, Arc::new(self));
        let run = move |ctx: ToolContext, arguments: Arguments| {
            let own = own.clone();
            async move { own.get(&ctx, &arguments.url).await }
        };
        let text = "Fetches a page by HTTP GET from a public address, and gives its status, type and text";
        // Room for the status and the note that it was cut.
        Tool::new("http_get", text, run).output_limit(bytes + 1_024)
    }

    async fn get(&self, ctx: &ToolContext, url: &str) -> Result<String, ToolError> {
        let mut url = Url::parse(url)?;
        for _ in 0..=MAX_REDIRECTS {
            ctx.beat();
            let mut request = Request::new(Full::new(Bytes::new()));
            request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("onward-agent"));
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
            let response = http::send(&url, request, self, &self.trust).await?;
            let location = response.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            match location.filter(|_| response.status.is_redirection()) {
                Some(location) => url = url.join(location)?,
                None => return self.read(ctx, &url, response).await,
            }
        }
        Err(ToolError::new(format!("more than {MAX_REDIRECTS} redirects")))
    }

    async fn read(&self, ctx: &ToolContext, url: &Url, mut response: Response) -> Result<String, ToolError> {
        let mut body = Vec::new();
        let mut is_cut = false;
        while let Some(bytes) = response.chunk().await? {
            ctx.beat();
            body.extend_from_slice(&bytes);
            if body.len() > self.bytes {
                body.truncate(self.bytes);
                is_cut = true;
                break;
            }
        }
        let kind = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
        let cut = if is_cut { format!("\n[cut: the first {} bytes]", self.bytes) } else { String::new() };
        Ok(format!("{url}\n{} {kind}\n\n{}{cut}", response.status.as_u16(), String::from_utf8_lossy(&body)))
    }
}

impl Reach for HttpGet {
    fn allows(&self, address: SocketAddr) -> bool {
        is_public(address.ip()) || self.allowed.contains(&address)
    }
}
