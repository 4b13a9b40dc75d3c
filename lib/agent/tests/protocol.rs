//! Chat completions against a real server that breaks in every way.

mod rig;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onward_agent::session::SessionEvent;
use onward_agent::{Agent, Budget, BudgetPart, ChatCompletions, ModelError, Stopped};
use onward_lease::heartbeat::Beat;
use rig::conversation::{run, run_with};
use rig::server::{ModelRequest, Piece, Reply, Server, calls, chunk, messages, text, text_chunk, usage};
use rig::{SOON, TestAttempt};
use serde_json::{Value, json};
use tokio::time::timeout;

#[tokio::test]
async fn a_conversation_with_a_tool() {
    let ran = run(|n, _| if n == 0 { calls(&[("search", r#"{"q": "ä"}"#)]) } else { text("It is not there.") }).await;
    assert_eq!(ran.ended.as_deref().unwrap(), "It is not there.");
    let first = &ran.asked[0];
    assert!(first.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", first.head);
    assert!(first.head.to_lowercase().contains("authorization: bearer sk-secret"), "{}", first.head);
    assert_eq!((&first.body["model"], &first.body["stream"]), (&json!("m"), &json!(true)));
    assert_eq!(first.body["tools"][0]["function"]["parameters"]["required"], json!(["q"]));
    let second = messages(&ran.asked[1]);
    assert_eq!(second[0], json!({ "role": "user", "content": "hello" }));
    let function = json!({ "name": "search", "arguments": r#"{"q": "ä"}"# });
    assert_eq!(second[1]["tool_calls"][0], json!({ "id": "call_0", "type": "function", "function": function }));
    assert_eq!(second[2], json!({ "role": "tool", "tool_call_id": "call_0", "content": "nothing about ä" }));
    let entries = ran.entries().await;
    let names: Vec<String> =
        entries.iter().map(|one| serde_json::to_value(one).unwrap()["entry"].to_string()).collect();
    let turn = ["\"asked\"", "\"answered\"", "\"tool_begun\"", "\"tool_ended\"", "\"asked\"", "\"answered\""];
    assert_eq!(names, turn);
    assert_eq!(ran.attempt.watermark(), 1);
}

#[tokio::test]
async fn a_connection_that_is_cut_before_the_first_delta_is_tried_again() {
    let ran = run(|n, _| match n {
        0 => Reply::Stream(vec![Piece::Cut]),
        1 => Reply::Plain(503, String::new(), "busy".into()),
        _ => text("here"),
    });
    let ran = ran.await;
    assert_eq!((ran.ended.unwrap().as_str(), ran.asked.len()), ("here", 3));
}

#[tokio::test]
async fn a_connection_that_is_cut_after_the_first_delta_is_not() {
    for pieces in [
        || vec![text_chunk("half an ans"), Piece::Cut],
        // The framing promises more than comes: half a chunk.
        || vec![text_chunk("half an ans"), Piece::Wire(b"400\r\ndata: {\"choi".to_vec()), Piece::Cut],
        // The stream ends as it should, and the answer does not.
        || vec![text_chunk("half an ans"), Piece::Raw(b"data: {\"choi".to_vec())],
        || vec![text_chunk("half an ans"), Piece::Chunk(json!({ "error": { "message": "overloaded" } }))],
    ] {
        let ran = run(move |_, _| Reply::Stream(pieces())).await;
        assert!(matches!(ran.model_error(), ModelError::Cut { .. }), "{:?}", ran.ended);
        assert_eq!(ran.asked.len(), 1, "it is not repeated by itself");
        let entries = ran.entries().await;
        let SessionEvent::Answered(answer) = &entries[1].event else { panic!("{entries:?}") };
        assert!(answer.cut.is_some() && answer.usage.estimated && answer.usage.output_tokens == 3, "{answer:?}");
    }
}

#[tokio::test]
async fn an_answer_in_the_middle_of_which_bytes_are_torn_is_whole() {
    let ran = run(|_, _| {
        let event = format!("data: {}\n\n", chunk(json!({ "content": "äöü" }), None)).into_bytes();
        let mut pieces: Vec<Piece> = event.iter().map(|&byte| Piece::Raw(vec![byte])).collect();
        pieces.extend([Piece::Chunk(chunk(json!({}), Some("stop"))), Piece::Done]);
        Reply::Stream(pieces)
    })
    .await;
    assert_eq!(ran.ended.unwrap(), "äöü");
}

#[tokio::test]
async fn retry_after_is_a_quiet_section() {
    let (quiet, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let server = Server::start(|n, _| match n {
        0 => Reply::Plain(429, "retry-after: 1\r\n".into(), "slow down".into()),
        _ => text("now"),
    })
    .await;
    let attempt = TestAttempt::new();
    let seen = quiet.clone();
    let _observer = attempt.heartbeat.observe(move |beat| {
        if let Beat::Quiet { max } = beat {
            seen.lock().unwrap().push(max);
        }
    });
    let agent = Agent::new(ChatCompletions::at(&server.url, "m").unwrap());
    assert_eq!(agent.run_text(&attempt, "hello").await.unwrap().output, "now");
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert!(quiet.lock().unwrap().contains(&Duration::from_secs(1)), "{quiet:?}");
    assert!(attempt.heartbeat.quiet_left().is_none(), "it is over");
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_left_to_the_job() {
    let ran = run(|_, _| Reply::Plain(429, "retry-after: 300\r\n".into(), "come back".into())).await;
    let after = Some(Duration::from_secs(300));
    assert!(matches!(ran.model_error(), ModelError::Unavailable { retry_after, .. } if *retry_after == after));
    let failure = onward_lease::Failure::from(ran.ended.unwrap_err());
    assert_eq!(failure.kind(), onward_lease::FailureKind::Retry { after });
    // Nor is one waited for that ends behind the deadline.
    let script = |_: usize, _: &ModelRequest| Reply::Plain(429, "retry-after: 30\r\n".into(), String::new());
    let ran = run_with(script, |agent| agent.deadline(Duration::from_secs(20)), |model| model).await;
    assert!(matches!(ran.model_error(), ModelError::Unavailable { .. }), "{:?}", ran.ended);
    assert_eq!(ran.asked.len(), 1);
    // An instant counts from the server's own clock.
    let instants = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:59:37 GMT\r\n";
    let ran = run(move |_, _| Reply::Plain(503, instants.into(), String::new())).await;
    let after = Some(Duration::from_secs(600));
    assert!(matches!(ran.model_error(), ModelError::Unavailable { retry_after, .. } if *retry_after == after));
}

#[tokio::test]
async fn a_refused_request_is_not_repeated_and_the_key_is_not_told() {
    let ran = run(|_, _| Reply::Plain(401, String::new(), "wrong key: sk-secret".into())).await;
    let error = ran.model_error();
    assert!(matches!(error, ModelError::Refused { status: 401, .. }), "{error:?}");
    assert!(error.to_string().contains("wrong key: [key]") && !format!("{error:?}").contains("secret"), "{error}");
    assert_eq!(ran.asked.len(), 1);
    assert!(!onward_lease::Failure::from(ran.ended.unwrap_err()).is_retryable());
}

#[tokio::test]
async fn no_part_of_a_key_is_left_where_the_words_of_a_server_are_cut() {
    // 1,024 bytes are shown. The key stands at each place around that; also behind others, which make the text shorter.
    for before in [1_015, 1_020, 1_023, 1_024] {
        for others in [0, 5] {
            let body = format!("{}{}sk-secret", "sk-secret".repeat(others), "x".repeat(before - 9 * others));
            let ran = run(move |_, _| Reply::Plain(400, String::new(), format!("{body}{}", "y".repeat(99)))).await;
            let shown = ran.model_error().to_string();
            assert!(!shown.contains("sk-") && !shown.contains("xs"), "{before} {others}: {shown}");
        }
    }
}

#[tokio::test]
async fn a_server_that_quotes_the_key_in_mid_answer_does_not_make_it_known() {
    for data in [r#"{"error": {"message": "wrong key: sk-secret"}}"#, r#"{"broken": "sk-secret"#] {
        let event = format!("data: {data}\n\n").into_bytes();
        let ran = run(move |_, _| Reply::Stream(vec![text_chunk("x"), Piece::Raw(event.clone())])).await;
        let error = ran.model_error();
        assert!(error.to_string().contains("[key]") && !format!("{error:?}").contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_slow_stream_is_fine_and_a_silent_one_is_not() {
    let slow = |_: usize, _: &ModelRequest| {
        let mut pieces = Vec::new();
        for _ in 0..10 {
            pieces.extend([Piece::Wait(Duration::from_millis(20)), text_chunk("x")]);
        }
        pieces.extend([Piece::Chunk(chunk(json!({}), Some("stop"))), Piece::Done]);
        Reply::Stream(pieces)
    };
    assert_eq!(run(slow).await.ended.unwrap(), "xxxxxxxxxx");
    let (first, next) = (Duration::from_secs(60), Duration::from_millis(50));
    let silent = |_: usize, _: &ModelRequest| Reply::Stream(vec![text_chunk("x"), Piece::Hang]);
    let ran = run_with(silent, |agent| agent, |model| model.silence(first, next)).await;
    assert_eq!(ran.model_error(), &ModelError::Silent(next));
    // Comments come from a timer, and are no sign of work.
    let dead = |_: usize, _: &ModelRequest| Reply::Stream(vec![Piece::Raw(b": ping\n\n".to_vec()), Piece::Hang]);
    let ran = run_with(dead, |agent| agent, |model| model.silence(next, first)).await;
    assert_eq!(ran.model_error(), &ModelError::Silent(next));
}

#[tokio::test]
async fn calls_without_a_number_are_told_apart() {
    let part = |call: Value| Piece::Chunk(chunk(json!({ "tool_calls": [call] }), None));
    type Pieces = fn(&dyn Fn(Value) -> Piece) -> Vec<Piece>;
    let cases: [Pieces; 3] = [
        // Whole calls, each in a chunk of its own, without a number.
        |part| {
            let call = |id: &str, q: &str| json!({ "id": id, "function": { "name": "search", "arguments": format!("{{\"q\": \"{q}\"}}") } });
            vec![part(call("x", "a")), part(call("y", "b"))]
        },
        // In parts: what has no id belongs to the last one.
        |part| {
            vec![
                part(json!({ "id": "x", "function": { "name": "search", "arguments": "{\"q\":" } })),
                part(json!({ "function": { "arguments": " \"a\"}" } })),
                part(json!({ "id": "y", "function": { "name": "search", "arguments": "{\"q\":" } })),
                part(json!({ "id": "y", "function": { "arguments": " \"b\"}" } })),
            ]
        },
        // Without ids, too.
        |part| {
            let call =
                |q: &str| json!({ "function": { "name": "search", "arguments": format!("{{\"q\": \"{q}\"}}") } });
            vec![part(call("a")), part(call("b"))]
        },
    ];
    for (n, pieces) in cases.into_iter().enumerate() {
        let ran = run(move |before, _| {
            if before > 0 {
                return text("done");
            }
            let mut pieces = pieces(&part);
            pieces.extend([Piece::Chunk(chunk(json!({}), Some("tool_calls"))), Piece::Done]);
            Reply::Stream(pieces)
        })
        .await;
        assert_eq!(ran.ended.unwrap(), "done", "case {n}");
        let told: Vec<&Value> = messages(&ran.asked[1])[2..].iter().map(|one| &one["content"]).collect();
        assert_eq!(told, ["nothing about a", "nothing about b"], "case {n}");
    }
}

#[tokio::test]
async fn what_is_not_the_protocol_is_said_so() {
    for pieces in [
        || vec![Piece::Raw(b"data: {\"choices\": [}\n\n".to_vec())],
        || vec![Piece::Raw([b"data: ".as_slice(), &[b'x'; 2 << 20]].concat())],
        || vec![Piece::Raw(b"data: \xff\xfe\n\n".to_vec())],
    ] {
        let ran = run(move |_, _| Reply::Stream(pieces())).await;
        assert!(matches!(ran.model_error(), ModelError::Malformed { .. }), "{:?}", ran.ended);
    }
    // A server that does not stream is paid once.
    for (kind, whole) in [("application/json", r#"{"choices": []}"#), ("text/html; charset=utf-8", "<p>Hello.")] {
        let header = format!("content-type: {kind}\r\n");
        let ran = run(move |_, _| Reply::Plain(200, header.clone(), whole.into())).await;
        let said = format!("in one piece ({kind})");
        assert!(matches!(ran.model_error(), ModelError::Malformed { why } if why.contains(&said)), "{:?}", ran.ended);
        assert_eq!(ran.asked.len(), 1);
    }
}

#[tokio::test]
async fn wrong_calls_are_told_to_the_model() {
    let ran = run(|n, _| match n {
        0 => calls(&[("search", r#"{"q": "#), ("fly", "{}"), ("search", r#"{"x": 1}"#)]),
        _ => text("sorry"),
    })
    .await;
    assert_eq!(ran.ended.unwrap(), "sorry");
    let told: Vec<&str> = messages(&ran.asked[1])[2..].iter().map(|one| one["content"].as_str().unwrap()).collect();
    assert!(told[0].contains("the arguments are not JSON"), "{told:?}");
    assert!(told[1].contains("there is no tool `fly`; there are: search"), "{told:?}");
    assert!(told[2].contains("`arguments.q` is missing"), "{told:?}");
}

#[tokio::test]
async fn a_refusal_ends_the_run() {
    let refusal = || {
        vec![
            Piece::Chunk(chunk(json!({ "refusal": "I will " }), None)),
            Piece::Chunk(chunk(json!({ "refusal": "not." }), None)),
        ]
    };
    let filtered = || vec![text_chunk("well"), Piece::Chunk(chunk(json!({}), Some("content_filter")))];
    type Pieces = fn() -> Vec<Piece>;
    let cases: [(Pieces, &str); 2] = [(refusal, "I will not."), (filtered, "a filter held the answer back")];
    for (pieces, said) in cases {
        let ran = run(move |_, _| {
            let mut pieces = pieces();
            pieces.extend([Piece::Chunk(chunk(json!({}), None)), usage(1, 1), Piece::Done]);
            Reply::Stream(pieces)
        })
        .await;
        assert!(matches!(&ran.ended, Err(Stopped::Refused(text)) if text == said), "{:?}", ran.ended);
        assert!(!ran.ended.unwrap_err().is_retryable());
    }
}

#[tokio::test]
async fn an_endless_stream_ends_with_the_budget_the_length_or_the_deadline() {
    let endless = |_: usize, _: &ModelRequest| {
        Reply::Stream(vec![Piece::Endless(chunk(json!({ "content": "x".repeat(4_000) }), None))])
    };
    let ran = run_with(endless, |agent| agent.budget(Budget::tokens(50_000)), |model| model).await;
    let Err(Stopped::Budget { limit: BudgetPart::Tokens, spent }) = &ran.ended else { panic!("{:?}", ran.ended) };
    assert!(spent.estimated && (50_000..52_000).contains(&spent.output_tokens), "{spent:?}");
    // It is in the session, so that the next attempt stops before it asks.
    let agent = Agent::new(ChatCompletions::at("http://127.0.0.1:1/v1", "m").unwrap());
    let agent = agent.budget(Budget::tokens(50_000)).sessions(ran.sessions);
    let again = agent.run_text(&TestAttempt::with_fence(2), "hello").await;
    assert!(matches!(again, Err(Stopped::Budget { limit: BudgetPart::Tokens, .. })), "{again:?}");

    let ran = run(endless).await;
    assert!(matches!(ran.model_error(), ModelError::Endless { .. }), "{:?}", ran.ended);

    let drip = |_: usize, _: &ModelRequest| {
        let mut pieces = Vec::new();
        for _ in 0..10_000 {
            pieces.extend([text_chunk("x"), Piece::Wait(Duration::from_millis(10))]);
        }
        Reply::Stream(pieces)
    };
    // One that drips for more than a minute and a half, and one that says nothing and would be waited for for two.
    let hangs = |_: usize, _: &ModelRequest| Reply::Stream(vec![Piece::Hang]);
    let deadline = Duration::from_millis(300);
    for script in [drip as fn(usize, &ModelRequest) -> Reply, hangs] {
        let began = Instant::now();
        let ran = run_with(script, |agent| agent.deadline(deadline), |model| model).await;
        assert!(matches!(ran.ended, Err(Stopped::Deadline)), "{:?}", ran.ended);
        let took = began.elapsed();
        assert!(took >= deadline && took < Duration::from_secs(60), "{took:?}");
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Verdict {
    ok: bool,
}

#[tokio::test]
async fn a_request_says_how_long_and_in_what_form_the_answer_may_be() {
    let plain = run(|_, _| text("hello")).await;
    let body = &plain.asked[0].body;
    assert_eq!(body["stream_options"], json!({ "include_usage": true }));
    for absent in ["response_format", "max_completion_tokens", "max_tokens", "temperature"] {
        assert!(body.get(absent).is_none(), "{absent}: {body}");
    }
    // A bound that some model cannot answer with at all is not told.
    for (most, told) in [(4_096, json!(4_096)), (4_097, Value::Null)] {
        let script = |_: usize, _: &ModelRequest| text("hello");
        let limited = |agent: Agent| agent.budget(Budget::default().output_tokens(most));
        let ran = run_with(script, limited, |model| model).await;
        let body = &ran.asked[0].body;
        assert_eq!((&body["max_completion_tokens"], &body["max_tokens"]), (&told, &Value::Null));
        let older = |model: ChatCompletions| model.with_max_tokens_field().field("temperature", 0.5);
        let ran = run_with(script, limited, older).await;
        let body = &ran.asked[0].body;
        assert_eq!((&body["max_completion_tokens"], &body["max_tokens"]), (&Value::Null, &told));
        assert_eq!(body["temperature"], 0.5);
    }
    let server = Server::start(|_, _| text(r#"{"ok": true}"#)).await;
    let agent = Agent::new(ChatCompletions::at(&server.url, "m").unwrap());
    assert!(agent.run::<Verdict>(&TestAttempt::new(), "judge").await.unwrap().output.ok);
    let format = &server.asked()[0].body["response_format"];
    assert_eq!((&format["type"], &format["json_schema"]["name"]), (&json!("json_schema"), &json!("output")));
    assert_eq!(format["json_schema"]["schema"]["required"], json!(["ok"]), "{format}");
}

#[tokio::test]
async fn a_cancel_ends_a_stream_and_its_connection() {
    let server = Server::start(|_, _| Reply::Stream(vec![text_chunk("x"), Piece::Hang])).await;
    let attempt = TestAttempt::new();
    let (beats, mut beaten) = tokio::sync::mpsc::unbounded_channel();
    let _observer = attempt.heartbeat.observe(move |beat| {
        let _ = beats.send(beat);
    });
    let agent = Agent::new(ChatCompletions::at(&server.url, "m").unwrap());
    let running = tokio::spawn({
        let attempt = attempt.clone();
        async move { agent.run_text(&attempt, "hello").await }
    });
    // At the turn, the quiet section before the first delta and its end, and the delta.
    for _ in 0..4 {
        beaten.recv().await.unwrap();
    }
    attempt.heartbeat.cancel(onward_agent::CancelWhy::Asked);
    assert!(matches!(running.await.unwrap(), Err(Stopped::Cancelled)));
    timeout(SOON, server.idle()).await.expect("no connection is left");
}

#[tokio::test]
async fn usage_is_taken_from_the_server_or_else_estimated() {
    let unmetered =
        || Reply::Stream(vec![text_chunk("hello"), Piece::Chunk(chunk(json!({}), Some("stop"))), Piece::Done]);
    let metered: fn() -> Reply = || text("hello");
    for (reply, expected) in [(metered, (10, 5, false)), (unmetered, (0, 2, true))] {
        let ran = run(move |_, _| reply()).await;
        assert_eq!(ran.ended.as_deref().unwrap(), "hello");
        let entries = ran.entries().await;
        let (SessionEvent::Asked { input_tokens, .. }, SessionEvent::Answered(answer)) =
            (&entries[0].event, &entries[1].event)
        else {
            panic!("{entries:?}")
        };
        let usage = (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.estimated);
        let (input, output, estimated) = expected;
        // The question and the tool, at four bytes for a token.
        assert!((30..100).contains(input_tokens), "{input_tokens}");
        assert_eq!(usage, (if estimated { *input_tokens } else { input }, output, estimated));
    }
}

#[test]
fn a_key_is_not_printed() {
    let model = ChatCompletions::at("http://127.0.0.1:1/v1", "m").unwrap().key("sk-secret");
    assert!(!format!("{model:?} {model:#?} {:?}", Agent::new(model.clone())).contains("secret"));
    for url in ["http://user:secret@127.0.0.1:1/v1", "user:secret@127.0.0.1", "http//a:secret@b/v1"] {
        let error = ChatCompletions::at(url, "m").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        assert_eq!(format!("{error:?}"), error.to_string(), "as `main` shows it");
    }
}

#[tokio::test]
async fn what_a_provider_says_beyond_the_protocol_is_kept_and_given_back() {
    let first = json!({ "index": 0, "id": "a", "type": "function", "signature": "one ",
                        "function": { "name": "search", "arguments": "{\"q\"", "strict": true },
                        "extra_content": { "google": { "thought_signature": "abc" } } });
    let second = json!({ "index": 0, "signature": "two", "function": { "arguments": ": \"x\"}" },
                         "extra_content": { "google": { "thought_signature": "abc", "more": [1] } } });
    let ran = run(move |n, _| match n {
        0 => Reply::Stream(vec![
            Piece::Chunk(chunk(
                json!({ "role": "assistant", "content": null, "audio": null, "vendor": { "a": 1 } }),
                None,
            )),
            Piece::Chunk(chunk(
                json!({ "reasoning_content": "hm", "reasoning": "hm", "tool_calls": [first.clone()] }),
                None,
            )),
            Piece::Chunk(chunk(json!({ "tool_calls": [second.clone()], "vendor": { "b": 2 } }), None)),
            Piece::Chunk(chunk(json!({ "extra_content": "last" }), Some("tool_calls"))),
            usage(10, 5),
            Piece::Done,
        ]),
        _ => text("done"),
    })
    .await;
    assert_eq!(ran.ended.as_ref().unwrap(), "done");
    let function = json!({ "name": "search", "arguments": "{\"q\": \"x\"}", "strict": true });
    let call = json!({ "id": "a", "type": "function", "function": function, "signature": "one two",
                       "extra_content": { "google": { "thought_signature": "abc", "more": [1] } } });
    let message = json!({ "role": "assistant", "content": null, "tool_calls": [call], "vendor": { "a": 1, "b": 2 },
                          "extra_content": "last" });
    let with = |name: &str, mut message: Value| {
        message[name] = json!("hm");
        message
    };
    let message = with("reasoning_content", message);
    assert_eq!(messages(&ran.asked[1])[1], message, "it is given back");
    assert_eq!(ran.first_answer().await.1.message, with("reasoning", message), "and in the session");
    assert!(!ran.first_answer().await.1.usage.estimated, "it is no part of what is counted");
}

#[tokio::test]
async fn thoughts_go_back_signed_or_with_the_calls_that_they_led_to() {
    let thinks = |answer: Value, reason: &str| {
        let signed = json!({ "type": "reasoning.text", "index": 0, "text": "hm", "signature": "abc" });
        let delta = json!({ "reasoning_content": "hm", "reasoning": "hm", "reasoning_details": [signed] });
        let all = [chunk(delta, None), chunk(answer, Some(reason))].map(Piece::Chunk);
        Reply::Stream(all.into_iter().chain([usage(10, 5), Piece::Done]).collect())
    };
    let search = json!({ "index": 0, "id": "a", "function": { "name": "search", "arguments": "{\"q\": \"x\"}" } });
    let script = move |n: usize, _: &ModelRequest| match n {
        0 => thinks(json!({ "tool_calls": [search] }), "tool_calls"),
        1 => thinks(json!({ "content": "half of" }), "length"),
        _ => text("done"),
    };
    for (forgets, with_calls, without) in
        [(false, vec!["reasoning_content", "reasoning_details"], vec!["reasoning_details"]), (true, vec![], vec![])]
    {
        let change = |model: ChatCompletions| if forgets { model.without_thoughts() } else { model };
        let ran = run_with(script.clone(), |agent| agent, change).await;
        assert_eq!(ran.ended.as_deref().unwrap(), "done");
        let last = messages(ran.asked.last().unwrap());
        let thoughts = |message: &Value| -> Vec<String> {
            let names = message.as_object().unwrap().keys();
            names.filter(|name| name.starts_with("reasoning")).cloned().collect()
        };
        assert_eq!((thoughts(&last[1]), thoughts(&last[3])), (owned(&with_calls), owned(&without)));
        let all = ["reasoning", "reasoning_content", "reasoning_details"];
        assert_eq!(thoughts(&ran.first_answer().await.1.message), owned(&all), "the session has all");
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn an_error_that_a_server_reports_before_its_answer_is_told_and_repeated_only_if_that_may_help() {
    let refused: [(fn() -> Value, u16); 4] = [
        (|| json!({ "message": "no such field", "type": "invalid_request_error", "code": null }), 400),
        (|| json!({ "message": "too long", "code": "context_length_exceeded" }), 400),
        (|| json!({ "message": "too long", "type": "exceed_context_size_error", "code": 413 }), 413),
        (|| json!({ "message": "sk-secret is no key", "code": 401 }), 401),
    ];
    for (error, status) in refused {
        let ran = run(move |_, _| Reply::Stream(vec![Piece::Chunk(json!({ "error": error() })), Piece::Done])).await;
        let ModelError::Refused { status: seen, why } = ran.model_error() else { panic!("{:?}", ran.ended) };
        assert_eq!((*seen, ran.asked.len()), (status, 1), "{why}");
        let words = error()["message"].as_str().unwrap().replace("sk-secret", "[key]");
        assert!(why.contains(&words) && !why.contains("sk-secret"), "{why}");
        assert_eq!(ran.first_answer().await.1.usage, Default::default(), "it costs nothing");
    }
    let busy: [fn() -> Value; 3] = [
        || json!({ "message": "busy for sk-secret", "type": "server_error" }),
        || json!({ "message": "busy", "type": "invalid_request_error", "code": 429 }),
        || json!("busy"),
    ];
    for (n, error) in busy.into_iter().enumerate() {
        let tries = if n == 0 { 4 } else { 1 };
        let ran = run(move |n, _| match n < tries {
            true => Reply::Stream(vec![Piece::Chunk(json!({ "error": error() })), Piece::Done]),
            false => text("here"),
        })
        .await;
        if n > 0 {
            assert_eq!((ran.ended.as_deref().ok(), ran.asked.len()), (Some("here"), 2), "{:?}", ran.ended);
            continue;
        }
        let ModelError::Cut { why } = ran.model_error() else { panic!("{:?}", ran.ended) };
        assert!(why.contains("busy for [key]") && ran.asked.len() == 4, "{why}");
    }
}
