//! The budget of a run, and its spending.

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
    prices: Prices,
    /// The price of the model that is asked.
    price: Option<Price>,
}

/// The price of a model, in any currency, for a million tokens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Price {
    pub input: f64,
    pub output: f64,
}

/// A table of prices by the name of the model, or one price for all: `[("small", cheap), ("large", dear)].into()`. A model
/// that is not in the table is charged at the dearest prices in it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Prices(Vec<(String, Price)>);

impl From<Price> for Prices {
    fn from(price: Price) -> Self {
        Self(vec![(String::new(), price)])
    }
}

impl<Name: Into<String>, const N: usize> From<[(Name, Price); N]> for Prices {
    fn from(table: [(Name, Price); N]) -> Self {
        Self(table.into_iter().map(|(name, price)| (name.into(), price)).collect())
    }
}

impl Prices {
    fn of(&self, model: &str) -> Option<Price> {
        let dearest = |one: Price, other: Price| Price {
            input: one.input.max(other.input),
            output: one.output.max(other.output),
        };
        let named = self.0.iter().find(|(name, _)| name == model).map(|(_, price)| *price);
        named.or_else(|| self.0.iter().map(|(_, price)| *price).reduce(dearest))
    }
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

/// The spending of a run so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spent {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub turns: u32,
    pub tool_calls: u32,
    /// Time in which an attempt was at it.
    pub time: Duration,
    /// Money, in the currency of the [`Price`]; 0 without one.
    pub money: f64,
    /// Some of the tokens were estimated.
    pub estimated: bool,
}

impl Spent {
    /// Input and output together.
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// The part of a budget that is spent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BudgetPart {
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
            prices: Prices::default(),
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

    /// Money, by the price of the model or a table of prices.
    pub fn money(self, most: f64, prices: impl Into<Prices>) -> Self {
        Self { money: Some(most), prices: prices.into(), ..self }
    }

    /// The budget of a run that asks this model.
    pub(crate) fn for_model(&self, name: &str) -> Self {
        Self { price: self.prices.of(name), ..self.clone() }
    }

    /// The limit that leaves nothing for another answer.
    pub fn exhausted(&self, spent: &Spent) -> Option<BudgetPart> {
        let at_least = |limit: Option<u64>, spent: u64| limit.is_some_and(|limit| spent >= limit);
        let all = spent.tokens();
        [
            (BudgetPart::Turns, spent.turns >= self.turns),
            (BudgetPart::ToolCalls, spent.tool_calls > self.tool_calls),
            (BudgetPart::Tokens, at_least(self.tokens, all)),
            (BudgetPart::InputTokens, at_least(self.input_tokens, spent.input_tokens)),
            (BudgetPart::OutputTokens, at_least(self.output_tokens, spent.output_tokens)),
            (BudgetPart::Time, self.time.is_some_and(|limit| spent.time >= limit)),
            (BudgetPart::Money, self.money.is_some_and(|limit| spent.money >= limit)),
        ]
        .into_iter()
        .find_map(|(limit, is_spent)| is_spent.then_some(limit))
    }

    /// The limit that an answer has passed while it goes on.
    pub(crate) fn passed(&self, spent: &Spent) -> Option<BudgetPart> {
        let over = |limit: Option<u64>, spent: u64| limit.is_some_and(|limit| spent > limit);
        let all = spent.tokens();
        [
            (BudgetPart::Tokens, over(self.tokens, all)),
            (BudgetPart::InputTokens, over(self.input_tokens, spent.input_tokens)),
            (BudgetPart::OutputTokens, over(self.output_tokens, spent.output_tokens)),
            (BudgetPart::Money, self.money.is_some_and(|limit| spent.money > limit)),
        ]
        .into_iter()
        .find_map(|(limit, is_passed)| is_passed.then_some(limit))
    }

    /// The limit that is too low for a question with so much input and an answer of at least one token.
    pub(crate) fn too_low_for(&self, spent: &Spent, input_tokens: u64) -> Option<BudgetPart> {
        let usage = Usage { input_tokens, output_tokens: 1, estimated: true };
        self.exhausted(spent).or_else(|| self.passed(&self.with_usage(spent, &usage)))
    }

    /// Whether one more tool call is allowed.
    pub(crate) fn allows_call(&self, spent: &Spent) -> bool {
        spent.tool_calls < self.tool_calls
    }

    /// The most tokens that the answer to a question with so much input may have, as far as tokens or money are limited.
    pub(crate) fn output_left(&self, spent: &Spent, input_tokens: u64) -> Option<u64> {
        let spent = self.with_usage(spent, &Usage { input_tokens, output_tokens: 0, estimated: true });
        let output = self.output_tokens.map(|limit| limit.saturating_sub(spent.output_tokens));
        let affordable = self.money.zip(self.price).filter(|(_, price)| price.output > 0.0);
        // A number that is too large, or below zero, is the nearest that there is.
        let affordable = affordable.map(|(most, price)| ((most - spent.money) / price.output * 1e6) as u64);
        [self.tokens_left(&spent), output, affordable].into_iter().flatten().min()
    }

    /// The tokens left, if they are limited in all.
    pub fn tokens_left(&self, spent: &Spent) -> Option<u64> {
        self.tokens.map(|limit| limit.saturating_sub(spent.tokens()))
    }

    /// The tool calls left.
    pub fn tool_calls_left(&self, spent: &Spent) -> u32 {
        self.tool_calls.saturating_sub(spent.tool_calls)
    }

    /// The time left, if it is limited.
    pub fn time_left(&self, spent: &Spent) -> Option<Duration> {
        self.time.map(|limit| limit.saturating_sub(spent.time))
    }

    /// Spent, with the tokens of one more answer.
    pub(crate) fn with_usage(&self, spent: &Spent, usage: &Usage) -> Spent {
        let money = self.price.map_or(0.0, |price| {
            (usage.input_tokens as f64 * price.input + usage.output_tokens as f64 * price.output) / 1e6
        });
        Spent {
            input_tokens: spent.input_tokens.saturating_add(usage.input_tokens),
            output_tokens: spent.output_tokens.saturating_add(usage.output_tokens),
            money: spent.money + money,
            estimated: spent.estimated || usage.estimated,
            ..*spent
        }
    }
}

/// About how many tokens a text has.
pub(crate) fn estimate_tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(BYTES_PER_TOKEN)
}

impl fmt::Display for BudgetPart {
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
            (Budget::tokens(100), Some(BudgetPart::Tokens)),
            (Budget::default().input_tokens(71), None),
            (Budget::default().input_tokens(70), Some(BudgetPart::InputTokens)),
            (Budget::default().output_tokens(31), None),
            (Budget::default().output_tokens(30), Some(BudgetPart::OutputTokens)),
            (Budget::default().turns(6), None),
            (Budget::default().turns(5), Some(BudgetPart::Turns)),
            // A sixth call of six is allowed; only one beyond it is too many.
            (Budget::default().tool_calls(6), None),
            (Budget::default().tool_calls(5), Some(BudgetPart::ToolCalls)),
            (Budget::default().time(Duration::from_secs(8)), None),
            (Budget::default().time(Duration::from_secs(7)), Some(BudgetPart::Time)),
            (Budget::default().money(0.6, price), None),
            (Budget::default().money(0.5, price), Some(BudgetPart::Money)),
        ] {
            assert_eq!(budget.exhausted(&spent), limit, "{budget:?}");
        }
    }

    #[test]
    fn money_is_counted_by_the_price_and_estimates_stay_marked() {
        let budget = Budget::default().money(1.0, Price { input: 2.0, output: 8.0 }).for_model("any");
        let first = Usage { input_tokens: 1_000_000, output_tokens: 250_000, estimated: true };
        let spent = budget.with_usage(&Spent::default(), &first);
        assert_eq!((spent.money, spent.estimated), (4.0, true));
        let spent = budget.with_usage(&spent, &Usage { input_tokens: 1, ..Usage::default() });
        assert!(spent.estimated);
        assert_eq!(budget.exhausted(&spent), Some(BudgetPart::Money));
    }

    #[test]
    fn a_table_has_the_price_of_each_model_and_others_are_charged_at_the_dearest() {
        let (small, large) = (Price { input: 1.0, output: 5.0 }, Price { input: 2.0, output: 4.0 });
        let budget = Budget::default().money(1.0, [("small", small), ("large", large)]);
        let million = Usage { input_tokens: 1_000_000, output_tokens: 1_000_000, estimated: false };
        for (model, money) in [("small", 6.0), ("large", 6.0), ("unheard of", 7.0)] {
            let spent = budget.for_model(model).with_usage(&Spent::default(), &million);
            assert_eq!(spent.money, money, "{model}");
        }
    }

    #[test]
    fn a_question_must_fit_into_what_is_left_with_room_for_an_answer() {
        let price = Price { input: 10.0, output: 20.0 };
        let spent = Spent { input_tokens: 60, output_tokens: 20, money: 0.5, ..Spent::default() };
        for (budget, input, limit, left) in [
            (Budget::tokens(100), 19, None, Some(1)),
            (Budget::tokens(100), 20, Some(BudgetPart::Tokens), Some(0)),
            (Budget::default().input_tokens(100), 40, None, None),
            (Budget::default().input_tokens(100), 41, Some(BudgetPart::InputTokens), None),
            (Budget::default().output_tokens(21), 1_000_000, None, Some(1)),
            (Budget::default().output_tokens(20), 1, Some(BudgetPart::OutputTokens), Some(0)),
            (Budget::default().money(1.0, price), 25_000, None, Some(12_500)),
            (Budget::default().money(1.0, price), 50_000, Some(BudgetPart::Money), Some(0)),
            (Budget::default().turns(0), 1, Some(BudgetPart::Turns), None),
            (Budget::default(), u64::MAX, None, None),
        ] {
            let budget = budget.for_model("any");
            let answer = (budget.too_low_for(&spent, input), budget.output_left(&spent, input));
            assert_eq!(answer, (limit, left), "{budget:?}");
        }
    }

    #[test]
    fn tokens_beyond_all_measure_do_not_overflow() {
        let budget = Budget::tokens(100);
        let most = Usage { input_tokens: u64::MAX, output_tokens: u64::MAX, estimated: false };
        let spent = budget.with_usage(&budget.with_usage(&Spent::default(), &most), &most);
        assert_eq!((spent.tokens(), budget.exhausted(&spent)), (u64::MAX, Some(BudgetPart::Tokens)));
        assert_eq!((budget.passed(&spent), budget.output_left(&spent, u64::MAX)), (Some(BudgetPart::Tokens), Some(0)));
    }
}
