//! Streams of a server that says too little, too much or the same again: what is news, what ends an answer, what it costs.

mod rig;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_agent::model::Finish;
use onward_agent::{Agent, Budget, BudgetPart, Delta, MemorySessions, ModelError, Stopped, Usage};
use rig::conversation::{Ran, run, run_with};
use rig::server::{ModelRequest, Piece, Reply, at_once, chunk, finish, messages, text, text_chunk, usage, usage_chunk};
use rig::{SOON, Say, ScriptedModel, TestAttempt};
use serde_json::json;
use tokio::time::Instant;

/// The pause between two chunks, where a test waits for a server that says nothing.
const NEXT: Duration = Duration::from_millis(100);

type Pieces = fn() -> Vec<Piece>;

fn reasoning(field: &str, text: &str) -> Piece {
    Piece::Chunk(chunk(json!({ field: text }), None))
}

/// The answer of a server that speaks like this, and is not waited for longer than [`NEXT`].
async fn hear(pieces: Pieces) -> Ran {
    run_with(move |_, _| Reply::Stream(pieces()), |agent| agent, |model| model.silence(SOON, NEXT)).await
}

#[tokio::test]
async fn an_early_count_of_tokens_does_not_stop_the_budget_from_ending_an_answer() {
    let endless = |_: usize, _: &ModelRequest| {
        let content = chunk(json!({ "content": "x".repeat(4_000) }), None);
        Reply::Stream(vec![text_chunk("x"), usage(10, 0), Piece::Endless(content)])
    };
    let ran = run_with(endless, |agent| agent.budget(Budget::tokens(50_000)), |model| model).await;
    let Err(Stopped::Budget { limit: BudgetPart::Tokens, spent }) = &ran.ended else { panic!("{:?}", ran.ended) };
    assert!(spent.estimated && (49_000..52_000).contains(&spent.output_tokens), "{spent:?}");
    let (_, answer) = ran.first_answer().await;
    assert_eq!(
        (answer.usage.output_tokens, answer.usage.estimated),
        (spent.output_tokens, true),
        "it is in the session"
    );
}

#[tokio::test]
async fn what_a_server_counts_is_exact_once_it_has_counted_the_whole_answer() {
    let told = |usage: Usage| (usage.output_tokens, usage.estimated);
    let cases: [(Pieces, (u64, bool)); 8] = [
        // Cut: the larger of both, and nobody knows whether it is all.
        (|| vec![text_chunk("half an ans"), usage(1_000, 1), Piece::Cut], (3, true)),
        (|| vec![text_chunk("half an ans"), usage(1_000, 7), Piece::Cut], (7, true)),
        (|| vec![usage(1_000, 0), text_chunk("half an ans"), Piece::Cut], (3, true)),
        // Whole, and counted before its end.
        (|| vec![usage(1_000, 0), text_chunk("an answer"), finish("stop"), Piece::Done], (3, true)),
        (|| vec![text_chunk("an "), usage(1_000, 1), text_chunk("answer"), finish("stop"), Piece::Done], (3, true)),
        // Whole, and counted with each chunk: the last count is that of all.
        (
            || {
                let counted = |text, output| [text_chunk(text), usage(1_000, output)];
                let all = [counted("an ", 1), counted("answer", 2)].into_iter().flatten();
                all.chain([finish("stop"), Piece::Done]).collect()
            },
            (2, false),
        ),
        (|| vec![text_chunk("an answer"), finish("stop"), usage(1_000, 2), Piece::Done], (2, false)),
        // A count of the question alone is none of the answer.
        (
            || {
                let half = json!({ "choices": [], "usage": { "prompt_tokens": 1_000 } });
                vec![text_chunk("an answer"), finish("stop"), Piece::Chunk(half), Piece::Done]
            },
            (3, true),
        ),
    ];
    for (n, (pieces, expected)) in cases.into_iter().enumerate() {
        let ran = run(move |_, _| Reply::Stream(pieces())).await;
        let (asked, answer) = ran.first_answer().await;
        assert_eq!(told(answer.usage), expected, "case {n}: {answer:?}");
        let input = if n == 7 { asked } else { 1_000 };
        assert_eq!(answer.usage.input_tokens, input, "case {n}: the larger of both");
    }
}

#[tokio::test]
async fn an_answer_that_has_said_its_end_is_whole_whatever_follows() {
    let cases: [(Pieces, bool); 8] = [
        (|| vec![Piece::Hang], false),
        (|| vec![Piece::Cut], false),
        (|| vec![Piece::Wire(b"400\r\ndata: {\"choi".to_vec()), Piece::Cut], false),
        (|| vec![Piece::Raw(b"data: {\"choices\": [}\n\n".to_vec()), Piece::Hang], false),
        (|| vec![Piece::Chunk(json!({ "error": { "message": "overloaded" } })), Piece::Hang], false),
        (|| vec![Piece::Endless(chunk(json!({}), None))], false),
        (|| vec![Piece::Hang], true),
        (|| vec![Piece::Cut], true),
    ];
    for (n, (rest, is_counted)) in cases.into_iter().enumerate() {
        let ran = run_with(
            move |_, _| {
                let content = |text: &str| chunk(json!({ "content": text }), None);
                let said = [content("all that "), content("there is"), chunk(json!({}), Some("stop"))];
                let count = is_counted.then(|| usage_chunk(10, 5));
                Reply::Stream([at_once(said.into_iter().chain(count))].into_iter().chain(rest()).collect())
            },
            |agent| agent,
            |model| model.silence(SOON, NEXT),
        )
        .await;
        assert_eq!(
            (ran.ended.as_deref().ok(), ran.asked.len()),
            (Some("all that there is"), 1),
            "case {n}: {:?}",
            ran.ended
        );
        let (_, answer) = ran.first_answer().await;
        assert_eq!((answer.usage.output_tokens, answer.usage.estimated), (5, !is_counted), "case {n}");
    }
}

#[tokio::test]
async fn the_end_of_an_answer_is_said_once_and_no_filler_behind_it_is_news() {
    let repeated = |_: usize, _: &ModelRequest| {
        let said = [chunk(json!({ "content": "x" }), None), chunk(json!({}), Some("stop"))];
        let mut pieces = vec![at_once(said)];
        for _ in 0..2_000 {
            pieces.extend([finish("stop"), Piece::Wait(Duration::from_millis(1))]);
        }
        Reply::Stream(pieces)
    };
    let ran = run_with(repeated, |agent| agent, |model| model.silence(SOON, NEXT)).await;
    assert_eq!(ran.ended.as_deref().unwrap(), "x");
    // At the turn, by the letter, by the end, and at the next turn.
    assert_eq!(ran.plain_beats(), 4, "{:?}", ran.beats);
    // What a server calls an end and is none.
    let ran = hear(|| {
        let not_yet = Piece::Chunk(chunk(json!({ "content": "half" }), Some("")));
        vec![not_yet, Piece::Cut]
    })
    .await;
    assert!(matches!(ran.model_error(), ModelError::Cut { .. }), "{:?}", ran.ended);
}

#[tokio::test(start_paused = true)]
async fn a_model_of_any_kind_ends_once_and_goes_on_under_its_budget() {
    let seconds = |deltas: Vec<Delta>| async move {
        let agent = Agent::new(ScriptedModel::of([Say::Slowly(Duration::from_secs(100), deltas)]));
        let attempt = TestAttempt::new();
        let beats = Arc::new(Mutex::new(Vec::new()));
        let (seen, began) = (beats.clone(), Instant::now());
        let _observer = attempt.heartbeat.observe(move |_| seen.lock().unwrap().push(began.elapsed().as_secs()));
        agent.run_text(&attempt, "go").await.unwrap();
        beats.lock().unwrap().clone()
    };
    let end = || Delta::Finish(Finish::Complete);
    let whole = || Delta::Whole(json!({ "role": "assistant", "content": "a" }));
    let part = |id: &str, name: &str| Delta::ToolCall {
        index: 0,
        id: Some(id.into()),
        name: Some(name.into()),
        arguments: String::new(),
    };
    let deltas = vec![Delta::Text("a".into()), end(), end(), whole(), whole(), end()];
    assert_eq!(
        seconds(deltas).await,
        [0, 100, 200, 400, 700],
        "at the turn, by each that is the first, at the next turn"
    );
    let deltas = vec![part("", ""), Delta::Text("a".into()), part("", ""), part("", "")];
    assert_eq!(seconds(deltas).await, [0, 200, 500]);

    let says = [end(), Delta::Text("x".repeat(4_000)), Delta::Text("never".into())].to_vec();
    let model = ScriptedModel::of([Say::Slowly(Duration::from_secs(1), says)]);
    let began = Instant::now();
    let stopped = Agent::new(model).budget(Budget::tokens(900)).run_text(&TestAttempt::new(), "go").await;
    assert!(matches!(&stopped, Err(Stopped::Budget { limit: BudgetPart::Tokens, .. })), "{stopped:?}");
    assert_eq!(began.elapsed(), Duration::from_secs(2), "by what came behind the end");
    // What was counted behind the end is spent: the answer may as well be kept.
    let count = Delta::Usage(Usage { input_tokens: 5_000, output_tokens: 1, estimated: false });
    let model =
        ScriptedModel::of([Say::Slowly(Duration::from_secs(1), vec![Delta::Text("kept".into()), end(), count])]);
    let finished = Agent::new(model).budget(Budget::tokens(900)).run_text(&TestAttempt::new(), "go").await;
    assert_eq!(finished.unwrap().output, "kept");
}

#[tokio::test]
async fn a_server_that_goes_on_without_saying_anything_is_silent() {
    let begun = |more: serde_json::Value| {
        let mut call = json!({ "index": 0, "id": "a", "function": { "name": "search" } });
        call["function"]["arguments"] = more;
        Piece::Chunk(chunk(json!({ "tool_calls": [call] }), None))
    };
    let fillers: [fn() -> Piece; 10] = [
        || Piece::Raw(b": ping\n\n".to_vec()),
        || Piece::Raw(b"event: ping\nid: 7\n\n".to_vec()),
        || text_chunk(""),
        || Piece::Chunk(chunk(json!({}), None)),
        || Piece::Chunk(chunk(json!({ "role": "assistant" }), None)),
        || Piece::Chunk(chunk(json!({ "role": "assistant", "content": "", "refusal": null }), Some(""))),
        || usage(1, 1),
        || reasoning("reasoning_content", ""),
        || {
            let call = json!({ "index": 0, "id": "a", "function": { "arguments": "" } });
            Piece::Chunk(chunk(json!({ "tool_calls": [call] }), None))
        },
        // Some servers say the name with every part.
        || {
            let call = json!({ "index": 0, "id": "a", "function": { "name": "search", "arguments": "" } });
            Piece::Chunk(chunk(json!({ "tool_calls": [call] }), None))
        },
    ];
    for (n, filler) in fillers.into_iter().enumerate() {
        let drip = move |_: usize, _: &ModelRequest| {
            let mut pieces = vec![begun(json!(""))];
            for _ in 0..2_000 {
                pieces.extend([filler(), Piece::Wait(Duration::from_millis(1))]);
            }
            Reply::Stream(pieces)
        };
        let ran = run_with(drip, |agent| agent, |model| model.silence(SOON, NEXT)).await;
        assert_eq!(ran.model_error(), &ModelError::Silent(NEXT), "filler {n}");
        assert_eq!(ran.plain_beats(), 2, "filler {n}: at the turn, and by the name of the call");
    }
    // Nor is one that is so quick that there is always something to read.
    let flood = || vec![text_chunk("x"), Piece::Endless(chunk(json!({}), None))];
    let ran = hear(flood).await;
    assert_eq!(ran.model_error(), &ModelError::Silent(NEXT));
}

#[tokio::test]
async fn a_name_that_is_said_with_every_part_of_a_call_is_said_once() {
    let part = |arguments: &str| {
        let call = json!({ "index": 0, "id": "a", "function": { "name": "search", "arguments": arguments } });
        Piece::Chunk(chunk(json!({ "tool_calls": [call] }), None))
    };
    let ran = run(move |n, _| match n {
        0 => Reply::Stream(vec![part("{\"q\": "), part("\"a\"}"), finish("tool_calls"), Piece::Done]),
        _ => text("done"),
    })
    .await;
    assert_eq!(ran.ended.unwrap(), "done");
    assert_eq!(messages(&ran.asked[1])[2]["content"], "nothing about a");
}

#[tokio::test]
async fn a_model_that_thinks_aloud_is_at_work_and_its_thoughts_are_no_answer() {
    for field in ["reasoning_content", "reasoning"] {
        let thinks = move |_: usize, _: &ModelRequest| {
            let mut pieces: Vec<Piece> = (0..20).map(|_| reasoning(field, "hmm, hmm ")).collect();
            pieces.extend([text_chunk("done"), finish("stop"), Piece::Done]);
            Reply::Stream(pieces)
        };
        let ran = run(thinks).await;
        assert_eq!(ran.ended.as_deref().ok(), Some("done"), "{field}: {:?}", ran.ended);
        assert_eq!(ran.plain_beats(), 1 + 20 + 2 + 1, "{field}: each thought is a beat");
        let (_, answer) = ran.first_answer().await;
        assert_eq!(answer.usage.output_tokens, (20 * 9 + 4) / 4, "{field}: thoughts are paid for");
        let thoughts = "hmm, hmm ".repeat(20);
        let message = json!({ "role": "assistant", "content": "done", field: thoughts });
        assert_eq!(answer.message, message, "{field}: the session has them");

        let endless = move |_: usize, _: &ModelRequest| {
            Reply::Stream(vec![Piece::Endless(chunk(json!({ field: "x".repeat(4_000) }), None))])
        };
        let ran = run_with(endless, |agent| agent.budget(Budget::tokens(50_000)), |model| model).await;
        assert!(
            matches!(ran.ended, Err(Stopped::Budget { limit: BudgetPart::Tokens, .. })),
            "{field}: {:?}",
            ran.ended
        );
    }
    // One that says its thoughts in both fields has had them once.
    let both = || vec![Piece::Chunk(chunk(json!({ "reasoning": "12345678", "reasoning_content": "12345678" }), None))];
    let ran =
        run(move |_, _| Reply::Stream(both().into_iter().chain([text_chunk("done"), Piece::Done]).collect())).await;
    assert_eq!(ran.first_answer().await.1.usage.output_tokens, 3);
}

#[tokio::test]
async fn a_count_of_tokens_before_the_first_delta_is_not_the_first_delta() {
    // The quiet section goes on behind it.
    let ran = hear(|| {
        let late = [chunk(json!({ "content": "late" }), None), chunk(json!({}), Some("stop"))];
        vec![usage(1_000, 0), usage(1_000, 0), Piece::Wait(3 * NEXT), at_once(late), Piece::Done]
    })
    .await;
    assert_eq!(ran.ended.as_deref().ok(), Some("late"), "{:?}", ran.ended);
    // And what is cut behind it is asked again.
    let ran = run(|n, _| match n {
        0 => Reply::Stream(vec![usage(1_000, 0), Piece::Cut]),
        _ => text("here"),
    })
    .await;
    assert_eq!((ran.ended.as_deref().ok(), ran.asked.len()), (Some("here"), 2), "{:?}", ran.ended);
}

#[tokio::test]
async fn a_try_that_was_cut_before_its_first_delta_is_charged_by_an_estimate() {
    for lost in [|| Reply::Stream(vec![Piece::Cut]), || Reply::Nothing] as [fn() -> Reply; 2] {
        let ran = run(move |n, _| if n == 0 { lost() } else { text("here") }).await;
        assert_eq!((ran.ended.as_deref().ok(), ran.asked.len()), (Some("here"), 2), "{:?}", ran.ended);
        let (asked, answer) = ran.first_answer().await;
        let expected = Usage { input_tokens: asked + 10, output_tokens: 5, estimated: true };
        assert_eq!(answer.usage, expected, "10 and 5 are what the server counts");

        // It is not asked again where the budget has no room for it.
        let ran = run_with(
            move |n, _| if n == 0 { lost() } else { text("here") },
            |agent| agent.budget(Budget::tokens(asked + asked / 2)).sessions(MemorySessions::new()),
            |model| model,
        )
        .await;
        let Err(Stopped::Budget { limit: BudgetPart::Tokens, spent }) = &ran.ended else { panic!("{:?}", ran.ended) };
        assert_eq!((ran.asked.len(), spent.input_tokens, spent.estimated), (1, asked, true), "{spent:?}");
    }
    // A last try that no server took does not make the one before it free.
    let ran = run_with(
        |n, _| if n == 0 { Reply::Nothing } else { Reply::Plain(503, "retry-after: 300\r\n".into(), String::new()) },
        |agent| agent,
        |model| model,
    )
    .await;
    assert!(matches!(ran.model_error(), ModelError::Unavailable { .. }), "{:?}", ran.ended);
    let (asked, answer) = ran.first_answer().await;
    assert_eq!(answer.usage, Usage { input_tokens: asked, output_tokens: 0, estimated: true });
}
