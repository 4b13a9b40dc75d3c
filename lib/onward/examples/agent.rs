//! An agent with two tools that survives `kill -9`. With a node (`onward up --slots 0`) and a model's server:
//!
//! ```sh
//! OPENAI_API_KEY=… OPENAI_MODEL=… cargo run --example agent --features agent
//! onward submit --kind ticket --payload '{"text": "Order 7 came broken."}' --wait
//! ```
//!
//! Kill it while it works, and start it again: it goes on from its last entry.

use onward::agent::{Agent, Budget, ChatCompletions, Effect, Folder, Tool, ToolContext, ToolError};
use onward::{Context, Worker};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Ticket {
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Search {
    /// Words to look for.
    words: String,
}

#[derive(Deserialize, JsonSchema)]
struct Refund {
    order: u64,
    cents: u32,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Resolution {
    refunded: bool,
    /// What the customer is told.
    answer: String,
}

async fn search(_: ToolContext, search: Search) -> Result<Vec<String>, ToolError> {
    let tickets = ["Order 3 came broken: refunded 500 cents.", "Order 4 came late: apologized."];
    let is_hit = |ticket: &&str| search.words.split(' ').any(|word| ticket.contains(word));
    Ok(tickets.into_iter().filter(is_hit).map(String::from).collect())
}

async fn refund(ctx: ToolContext, refund: Refund) -> Result<String, ToolError> {
    let cents = pay(ctx.call_key(), &refund).await?;
    // Without the key: each call has another one, and a result that is always new hides that nothing is.
    Ok(format!("refunded {cents} cents for order {}", refund.order))
}

/// Stands for a payment service, which knows by the key that it has seen this call before.
async fn pay(_key: &str, refund: &Refund) -> Result<u32, ToolError> {
    Ok(refund.cents)
}

pub fn agent(model: ChatCompletions, sessions: Folder) -> Agent {
    Agent::new(model)
        .instructions("Resolve the ticket. Refund at most once.")
        .tool(Tool::new("search", "Searches past tickets", search))
        .tool(Tool::new("refund", "Refunds an order", refund).effect(Effect::Once))
        .budget(Budget::tokens(200_000).turns(40))
        .sessions(sessions)
}

pub fn with_handler(worker: Worker, agent: Agent) -> Worker {
    worker.handle("ticket", move |ctx: Context, ticket: Ticket| {
        let agent = agent.clone();
        async move { Ok(agent.run::<Resolution>(&ctx, ticket.text).await?.output) }
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let agent = agent(ChatCompletions::from_env()?, Folder::at("sessions")?);
    with_handler(Worker::connect("http://127.0.0.1:7400").await?, agent).run().await?;
    Ok(())
}
