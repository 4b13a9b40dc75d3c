//! What a run may spend, and what it has spent.

use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

/// Bytes of text that are taken for one token where a model does not say how many it used.
const BYTES_PER_TOKEN: u64 = 4;

/// The most that a run may spend, over all of its attempts. By default 100 turns and 1,000 tool calls.
#[derive(Clone, PartialEq, Debug)]
pub struct Budget {
    tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    turns: u32,
    tool_calls: u32,
    time: Option<Duration>,
    money: Option<f64>,
    price: Option<Price>,
}

/// What a model costs, in any currency, for a million tokens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Price {
    pub input: f64,
    pub output: f64,
}

/// Tokens of one answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The model did not say; this was guessed from the length of the text.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub estimated: bool,
}

/// What a run has spent.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spent {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub turns: u32,
    pub tool_calls: u32,
    /// Time in which an attempt was at it.
    pub time: Duration,
    /// In the currency of the [`Price`]; 0 without one.
    pub money: f64,
    /// Some of the tokens were estimated.
    pub estimated: bool,
}

/// Which part of a budget is spent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    Tokens,
    InputTokens,
    OutputTokens,
    Turns,
    ToolCalls,
    Time,
    Money,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            tokens: None,
            input_tokens: None,
            output_tokens: None,
            turns: 100,
            tool_calls: 1_000,
            time: None,
            money: None,
            price: None,
        }
    }
}

impl Budget {
    /// Tokens in all.
    pub fn tokens(tokens: u64) -> Self {
        Self { tokens: Some(tokens), ..Self::default() }
    }

    pub fn input_tokens(self, tokens: u64) -> Self {
        Self { input_tokens: Some(tokens), ..self }
    }

    pub fn output_tokens(self, tokens: u64) -> Self {
        Self { output_tokens: Some(tokens), ..self }
    }

    /// Answers of the model.
    pub fn turns(self, turns: u32) -> Self {
        Self { turns, ..self }
    }

    pub fn tool_calls(self, calls: u32) -> Self {
        Self { tool_calls: calls, ..self }
    }

    /// Time in which an attempt is at it; between attempts nothing is spent.
    pub fn time(self, time: Duration) -> Self {
        Self { time: Some(time), ..self }
    }

    /// Money, by the price of the model.
    pub fn money(self, most: f64, price: Price) -> Self {
        Self { money: Some(most), price: Some(price), ..self }
    }

    /// Which limit leaves nothing for another answer.
    pub fn exhausted(&self, spent: &Spent) -> Option<Limit> {
        let at_least = |limit: Option<u64>, spent: u64| limit.is_some_and(|limit| spent >= limit);
        let all = spent.input_tokens + spent.output_tokens;
        [
            (Limit::Turns, spent.turns >= self.turns),
            (Limit::ToolCalls, spent.tool_calls > self.tool_calls),
            (Limit::Tokens, at_least(self.tokens, all)),
            (Limit::InputTokens, at_least(self.input_tokens, spent.input_tokens)),
            (Limit::OutputTokens, at_least(self.output_tokens, spent.output_tokens)),
            (Limit::Time, self.time.is_some_and(|limit| spent.time >= limit)),
            (Limit::Money, self.money.is_some_and(|limit| spent.money >= limit)),
        ]
        .into_iter()
        .find_map(|(limit, is_spent)| is_spent.then_some(limit))
    }

    /// Which limit an answer has passed that goes on.
    pub(crate) fn passed(&self, spent: &Spent) -> Option<Limit> {
        let over = |limit: Option<u64>, spent: u64| limit.is_some_and(|limit| spent > limit);
        let all = spent.input_tokens + spent.output_tokens;
        [
            (Limit::Tokens, over(self.tokens, all)),
            (Limit::InputTokens, over(self.input_tokens, spent.input_tokens)),
            (Limit::OutputTokens, over(self.output_tokens, spent.output_tokens)),
            (Limit::Money, self.money.is_some_and(|limit| spent.money > limit)),
        ]
        .into_iter()
        .find_map(|(limit, is_passed)| is_passed.then_some(limit))
    }

    /// Whether one more tool call is allowed.
    pub(crate) fn allows_call(&self, spent: &Spent) -> bool {
        spent.tool_calls < self.tool_calls
    }

    /// The most tokens that the next answer may have, as far as tokens are limited.
    pub(crate) fn output_left(&self, spent: &Spent) -> Option<u64> {
        let all = self.tokens.map(|limit| limit.saturating_sub(spent.input_tokens + spent.output_tokens));
        let output = self.output_tokens.map(|limit| limit.saturating_sub(spent.output_tokens));
        [all, output].into_iter().flatten().min()
    }

    /// What is left of the time.
    pub(crate) fn time_left(&self, spent: &Spent) -> Option<Duration> {
        self.time.map(|limit| limit.saturating_sub(spent.time))
    }

    /// Spent, with the tokens of one more answer.
    pub(crate) fn with_usage(&self, spent: &Spent, usage: &Usage) -> Spent {
        let money = self.price.map_or(0.0, |price| {
            (usage.input_tokens as f64 * price.input + usage.output_tokens as f64 * price.output) / 1e6
        });
        Spent {
            input_tokens: spent.input_tokens + usage.input_tokens,
            output_tokens: spent.output_tokens + usage.output_tokens,
            money: spent.money + money,
            estimated: spent.estimated || usage.estimated,
            ..*spent
        }
    }
}

/// About how many tokens a text has.
pub(crate) fn estimate(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(BYTES_PER_TOKEN)
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokens => "tokens",
            Self::InputTokens => "input tokens",
            Self::OutputTokens => "output tokens",
            Self::Turns => "turns",
            Self::ToolCalls => "tool calls",
            Self::Time => "time",
            Self::Money => "money",
        })
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.estimated { "about " } else { "" };
        write!(
            f,
            "{} turns, {} tool calls, {about}{} tokens in and {} out, {:.1?}",
            self.turns, self.tool_calls, self.input_tokens, self.output_tokens, self.time
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_exhausted_at_its_number_and_not_before() {
        let price = Price { input: 1.0, output: 10.0 };
        let spent = Spent {
            input_tokens: 70,
            output_tokens: 30,
            turns: 5,
            tool_calls: 6,
            time: Duration::from_secs(7),
            money: 0.5,
            estimated: false,
        };
        for (budget, limit) in [
            (Budget::tokens(101), None),
            (Budget::tokens(100), Some(Limit::Tokens)),
            (Budget::default().input_tokens(71), None),
            (Budget::default().input_tokens(70), Some(Limit::InputTokens)),
            (Budget::default().output_tokens(31), None),
            (Budget::default().output_tokens(30), Some(Limit::OutputTokens)),
            (Budget::default().turns(6), None),
            (Budget::default().turns(5), Some(Limit::Turns)),
            // A sixth call of six is allowed; only one beyond it is too many.
            (Budget::default().tool_calls(6), None),
            (Budget::default().tool_calls(5), Some(Limit::ToolCalls)),
            (Budget::default().time(Duration::from_secs(8)), None),
            (Budget::default().time(Duration::from_secs(7)), Some(Limit::Time)),
            (Budget::default().money(0.6, price), None),
            (Budget::default().money(0.5, price), Some(Limit::Money)),
        ] {
            assert_eq!(budget.exhausted(&spent), limit, "{budget:?}");
        }
    }

    #[test]
    fn money_is_counted_by_the_price_and_estimates_stay_marked() {
        let budget = Budget::default().money(1.0, Price { input: 2.0, output: 8.0 });
        let first = Usage { input_tokens: 1_000_000, output_tokens: 250_000, estimated: true };
        let spent = budget.with_usage(&Spent::default(), &first);
        assert_eq!((spent.money, spent.estimated), (4.0, true));
        let spent = budget.with_usage(&spent, &Usage { input_tokens: 1, ..Usage::default() });
        assert!(spent.estimated);
        assert_eq!(budget.exhausted(&spent), Some(Limit::Money));
    }
}
