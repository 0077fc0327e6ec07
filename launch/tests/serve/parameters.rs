//! Parameters of an answer: its end, its sampling, log-probabilities of its tokens, and its
//! explanation.

use serde_json::{Value, json};

use crate::kit::http;
use crate::kit::server::{Server, body, streamed};

fn with(name: &str, max_tokens: usize, more: Value) -> Value {
    let mut request = body(name, max_tokens);
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request
}

fn content(completion: &Value) -> &str {
    completion["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("a text: {completion}"))
}

#[test]
fn an_answer_ends_at_a_stop_text_and_the_request_is_let_go_of() {
    let server = Server::start(&["--world-size", "2"]);
    let whole = server.answer(&body("hop2-0", 8));
    let words: Vec<&str> = whole.split(' ').collect();
    let across = format!("{} {}", words[1], &words[2][..1]);
    for (stop, expected) in [
        (json!(words[2]), whole[..whole.find(words[2]).expect("it is there")].to_owned()),
        (json!(["nothing of it", across]), whole[..whole.find(&across).expect("it is there")].to_owned()),
        (json!(&whole[..2]), String::new()),
    ] {
        // Without its stop text this would take long.
        let request = with("hop2-0", 3000, json!({"stop": stop, "stream_options": null}));
        let completion = server.chat(&request).json();
        assert_eq!((content(&completion), &completion["choices"][0]["finish_reason"]), (&*expected, &json!("stop")));
        let tokens = completion["usage"]["completion_tokens"].as_u64().expect("a number");
        assert!((1..=5).contains(&tokens), "tokens up to the stop text: {tokens}");
        let (text, events) = streamed(server.stream(&request));
        assert_eq!(text, expected, "{stop}");
        assert_eq!(events[events.len() - 1]["choices"][0]["finish_reason"], "stop");
        assert!(events[events.len() - 1]["metrics"]["ttft_ms"].is_number());
        server.becomes("tributary_requests_running", 0.0);
    }
    let never = with("hop2-0", 8, json!({"stop": ["zzz", "is lyonx"]}));
    assert_eq!(server.answer(&never), whole);
    assert_eq!(streamed(server.stream(&never)).0, whole, "what was held back comes at the end");
    assert_eq!(server.metric("tributary_requests_total{method=\"infoflow\",outcome=\"cancelled\"}"), 0.0);
    server.ends_well();
}

#[test]
fn log_probabilities_come_with_each_token_plain_and_streamed() {
    let server = Server::start(&["--world-size", "2"]);
    let expected = server.answer(&body("vt3-1", 6));
    let request = with("vt3-1", 6, json!({"logprobs": true, "top_logprobs": 3}));
    let completion = server.chat(&request).json();
    assert_eq!(content(&completion), expected);
    let tokens = completion["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(tokens.len(), 6);
    let texts: String = tokens.iter().map(|token| token["token"].as_str().expect("a text")).collect();
    assert_eq!(texts, expected, "the tokens' texts are the answer's");
    for token in &tokens {
        let (logprob, top) =
            (token["logprob"].as_f64().expect("a number"), token["top_logprobs"].as_array().expect("top"));
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&token["token"], &token["logprob"]),
            "greedy takes the best"
        );
        let of = |token: &Value| token["logprob"].as_f64().expect("a number");
        assert!(
            top.len() == 3 && logprob <= 0.0 && of(&top[0]) >= of(&top[1]) && of(&top[1]) >= of(&top[2]),
            "{token}"
        );
        assert!(top.iter().map(|token| of(token).exp()).sum::<f64>() <= 1.0 + 1e-6, "{token}");
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).expect("bytes");
        assert_eq!(bytes, token["token"].as_str().expect("a text").as_bytes());
    }
    let (text, events) = streamed(server.stream(&request));
    assert_eq!(text, expected);
    let parts: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert!(parts == tokens, "streamed as they are in one piece");
    // Tokens of a stop text are not reported.
    let stop = tokens[2]["token"].as_str().expect("a text").trim();
    let stopped = server.chat(&with("vt3-1", 6, json!({"logprobs": true, "stop": stop}))).json();
    let told = stopped["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert!(told.len() <= 3 && told.iter().all(|token| token["top_logprobs"] == json!([])), "{told:?}");
    assert!(server.chat(&body("vt3-1", 2)).json()["choices"][0]["logprobs"].is_null(), "only who asks is told");
    server.ends_well();
}

#[test]
fn draws_are_from_the_likeliest_where_that_is_asked_for() {
    let server = Server::start(&[]);
    let greedy = server.answer(&body("hop2-1", 12));
    let hot = |more: Value| {
        let mut request = with("hop2-1", 12, json!({"temperature": 2, "seed": 5}));
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        server.answer(&request)
    };
    assert_eq!(hot(json!({"top_k": 1})), greedy);
    let all = hot(json!({}));
    assert_ne!(all, greedy, "the seed draws something else");
    for off in [json!(0), json!(-1), json!(false), json!(null), json!(100_000)] {
        assert_eq!(hot(json!({"top_k": off})), all, "{off}");
    }
    server.ends_well();
}

#[test]
fn an_answer_is_explained_where_that_is_asked_for() {
    let server = Server::start(&["--world-size", "2"]);
    let mut titled = body("hop2-0", 2);
    let first = titled["documents"][0].as_str().expect("a text").to_owned();
    titled["documents"][0] = json!({"title": "A title", "text": first});
    for (method, reorder, scores) in
        [("infoflow", false, true), ("relay", true, true), ("epic", false, false), ("full", false, false)]
    {
        let mut request = titled.clone();
        request["tributary"] = json!({"method": method, "explain": true});
        if reorder {
            request["tributary"]["reorder"] = true.into();
        }
        let completion = server.chat(&request).json();
        let explained = &completion["tributary"];
        let chunks = explained["context"].as_array().expect("chunks");
        let documents = titled["documents"].as_array().expect("documents");
        assert_eq!(chunks.len(), documents.len(), "{method}");
        let (mut selected, mut scored, mut all) = (0, 0, 0);
        for (index, (chunk, document)) in chunks.iter().zip(documents).enumerate() {
            assert_eq!(chunk["chunk"], index);
            let title = document.get("title").and_then(Value::as_str);
            assert_eq!(chunk["title"].as_str(), title);
            let tokens = chunk["tokens"].as_array().expect("tokens");
            let text: String = tokens.iter().map(|token| token["text"].as_str().expect("a text")).collect();
            let own = document.get("text").unwrap_or(document).as_str().expect("a text");
            assert_eq!(text, title.map_or(format!("{own}\n"), |title| format!("{title}\n{own}\n")), "{method}");
            selected += tokens.iter().filter(|token| token["selected"] == true).count();
            scored += tokens.iter().filter(|token| token["score"].is_number()).count();
            all += tokens.len();
        }
        assert_eq!(completion["metrics"]["selected_tokens"], selected, "{method}");
        assert_eq!(selected > 0, method != "full", "{method}");
        assert_eq!(scored > 0, scores, "{method}: {scored} of {all}");
        let mut order: Vec<usize> = serde_json::from_value(explained["order"].clone()).expect("numbers");
        assert_eq!(order.is_sorted(), !reorder, "{method}: {order:?}");
        order.sort_unstable();
        assert_eq!(order, (0..chunks.len()).collect::<Vec<_>>());
        let spans = explained["timeline"].as_array().expect("spans");
        for rank in [0, 1] {
            assert!(spans.iter().any(|span| span["rank"] == rank), "{method}: {spans:?}");
        }
        assert!(spans.iter().all(|span| span["ms"].as_f64() >= span["waited_ms"].as_f64()), "{spans:?}");
        let events = streamed(server.stream(&request)).1;
        let told: Vec<&Value> = events.iter().filter(|event| event.get("tributary").is_some()).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0]["choices"][0]["finish_reason"].is_string());
        assert!(told[0]["tributary"]["context"] == explained["context"], "{method}: streamed as in one piece");
    }
    assert!(server.chat(&titled).json().get("tributary").is_none(), "only who asks is told");
    server.ends_well();
}

#[test]
fn selected_tokens_have_the_best_scores() {
    let server = Server::start(&[]);
    let request = with("hop2-0", 1, json!({"tributary": {"explain": true, "method": "infoflow"}}));
    let completion = server.chat(&request).json();
    let tokens = completion["tributary"]["context"].as_array().expect("chunks").iter().flat_map(|chunk| {
        // The first chunk is exact already, and may not be selected.
        chunk["tokens"].as_array().expect("tokens").iter().filter(|_| chunk["chunk"] != 0)
    });
    let (chosen, others): (Vec<&Value>, Vec<&Value>) = tokens.partition(|token| token["selected"] == true);
    let score = |token: &&Value| token["score"].as_f64().expect("a score");
    let (least, most) =
        (chosen.iter().map(score).fold(f64::MAX, f64::min), others.iter().map(score).fold(f64::MIN, f64::max));
    assert!(least >= most, "the worst that was chosen has {least}, the best of the others {most}");
    server.ends_well();
}

#[test]
fn earlier_turns_ride_with_the_question_and_documents_stay_warm() {
    let server = Server::start(&["--world-size", "2"]);
    let first = server.chat(&body("hop2-0", 2)).json();
    let mut second = body("hop2-0", 2);
    let question = second["messages"][0].clone();
    let answer = json!({"role": "assistant", "content": content(&first), "refusal": null});
    second["messages"] = json!([question, answer, question]);
    let turned = server.chat(&second).json();
    assert_eq!(turned["metrics"]["cache"], "warm", "{turned}");
    let prompt = |completion: &Value| completion["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert!(prompt(&turned) > prompt(&first) + 10, "the earlier turns count");
    assert_eq!(streamed(server.stream(&second)).0, content(&turned));
    second["messages"][2]["role"] = "robot".into();
    assert_eq!(server.chat(&second).status, 400);
    server.ends_well();
}

#[test]
fn a_long_text_without_documents_is_cut_into_chunks() {
    let text = body("hop2-0", 1)["documents"].as_array().expect("documents").clone();
    let long: Vec<&str> = text.iter().map(|document| document.as_str().expect("a text")).collect();
    let request = json!({
        "messages": [{"role": "user", "content": format!("{} question : hugo stays in", long.join(" "))}],
        "max_tokens": 3,
        "tributary": {"explain": true},
    });
    let chunks = |server: &Server| {
        let completion = server.chat(&request).json();
        completion["tributary"]["context"].as_array().expect("chunks").len()
    };
    let (whole, cut) = (Server::start(&[]), Server::start(&["--chunk-tokens", "64"]));
    assert_eq!(chunks(&whole), 1);
    assert!(chunks(&cut) > 5);
    let full = json!({"messages": request["messages"], "max_tokens": 3, "tributary": {"method": "full"}});
    assert_eq!(cut.answer(&full), whole.answer(&request), "one chunk is exact");
    whole.ends_well();
    cut.ends_well();
}

#[test]
fn texts_are_continued_without_a_template() {
    let server = Server::start(&["--world-size", "2"]);
    let documents = body("hop2-0", 1)["documents"].clone();
    let ask = |more: Value| {
        let mut request = json!({"prompt": "question : hugo stays in", "documents": documents, "max_tokens": 8});
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        request
    };
    let post = |request: &Value| http::post(&server.address, "/v1/completions", request);
    // The demo has no template: a chat's answer is the same, but for the space after the prompt.
    let expected = format!(" {}", server.answer(&body("hop2-0", 8)));
    let response = post(&ask(json!({"logprobs": 2})));
    assert_eq!(response.status, 200, "{}", response.body);
    let completion = response.json();
    let choice = &completion["choices"][0];
    assert_eq!((&completion["object"], &choice["text"]), (&json!("text_completion"), &json!(expected)));
    assert_eq!((&choice["finish_reason"], &completion["usage"]["completion_tokens"]), (&json!("length"), &json!(8)));
    let logprobs = &choice["logprobs"];
    let texts: Vec<String> = serde_json::from_value(logprobs["tokens"].clone()).expect("texts");
    assert_eq!(texts.concat(), expected);
    assert_eq!(logprobs["text_offset"][1], texts[0].chars().count());
    assert!(logprobs["top_logprobs"][3].as_object().is_some_and(|top| top.len() == 2), "{logprobs}");
    assert!(logprobs["token_logprobs"][0].as_f64() <= Some(0.0));

    let mut request = ask(json!({"stream_options": {"include_usage": true}}));
    request["stream"] = true.into();
    let stream = http::send(&server.address, "POST /v1/completions", Some(&request.to_string())).expect("it answers");
    let mut events = stream.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, expected);
    assert!(events.iter().all(|event| event["object"] == "text_completion"));
    assert_eq!(events[events.len() - 1]["usage"]["completion_tokens"], 8);

    let stopped = post(&ask(json!({"stop": "is"}))).json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    // Ids: as many as words, with no text before them.
    let ids = json!({"prompt": [[1, 20, 21, 22, 23]], "max_tokens": 2, "tributary": {"method": "full"}});
    let response = post(&ids);
    assert_eq!((response.status, &response.json()["usage"]["prompt_tokens"]), (200, &json!(5)), "{}", response.body);
    for (name, value) in [("prompt", json!([5, 100_000])), ("suffix", json!("x")), ("best_of", json!(2))] {
        let response = post(&ask(json!({ name: value })));
        assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!(name)), "{}", response.body);
    }
    server.ends_well();
}

#[test]
fn chunks_ahead_of_use_are_warm_for_chats_with_the_same_system_text() {
    let server = Server::start(&["--world-size", "2"]);
    let plain = server.answer(&body("hop2-1", 4));
    let request = body("hop2-0", 4);
    let post = |body: &Value| http::post(&server.address, "/v1/chunks", body);
    let system = "passage it rains slowly today .";
    let response = post(&json!({"documents": request["documents"], "system": system, "model": "demo"}));
    assert_eq!(response.status, 200, "{}", response.body);
    let kept = response.json();
    let rows = kept["chunks"].as_array().expect("chunks");
    assert_eq!(
        (&kept["object"], rows.len()),
        (&json!("chunks"), request["documents"].as_array().expect("a list").len())
    );
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["index"], index);
        assert!(row["tokens"].as_u64() > Some(10) && row["rank"].as_u64() < Some(2), "{row}");
    }
    assert!([0, 1].iter().all(|rank| rows.iter().any(|row| row["rank"] == *rank)), "both ranks have some: {rows:?}");
    assert_eq!((&kept["metrics"]["cache"], &kept["usage"]["completion_tokens"]), (&json!("cold"), &json!(0)));
    assert_eq!(post(&json!({"documents": request["documents"], "system": system})).json()["metrics"]["cache"], "warm");

    let mut chat = request.clone();
    assert_eq!(server.chat(&chat).json()["metrics"]["cache"], "cold", "after another prefix they are others");
    chat["messages"] = json!([{"role": "system", "content": system}, request["messages"][0]]);
    let warm = server.chat(&chat).json();
    assert_eq!(warm["metrics"]["cache"], "warm");
    let alone = Server::start(&["--world-size", "2"]);
    assert_eq!(content(&warm), alone.answer(&chat), "the same as cold");
    alone.ends_well();
    for (name, value) in [("documents", json!([])), ("documents", json!([" "])), ("query", json!("q"))] {
        let mut body = json!({"documents": ["a"]});
        body[name] = value;
        assert_eq!(post(&body).status, 400, "{body}");
    }
    assert_eq!(server.answer(&body("hop2-1", 4)), plain);
    assert_eq!((server.metric("tributary_requests_running"), server.metric("tributary_requests_waiting")), (0.0, 0.0));
    server.ends_well();
}

#[test]
fn a_request_may_say_what_decoding_keeps() {
    let server = Server::start(&["--world-size", "2", "--evict", "snapkv", "--keep", "4000"]);
    let asked = |choices: Value| server.chat(&with("hop2-0", 4, json!({"tributary": choices}))).json();
    let own = asked(json!({}));
    assert!(own["metrics"].get("evicted").is_none(), "what is kept at most is more than there is: {own}");
    let kept = asked(json!({"evict": "tova", "keep": 40}));
    let evicted = &kept["metrics"]["evicted"];
    assert_eq!((&evicted["method"], evicted["kept_rows"].as_f64()), (&json!("tova"), Some(40.0)), "{kept}");
    assert!(evicted["freed_bytes"].as_u64() > Some(0) && evicted["evict_ms"].as_f64() > Some(0.0), "{kept}");
    let share = asked(json!({"keep": "25%"}));
    let evicted = &share["metrics"]["evicted"];
    assert_eq!(evicted["method"], "snapkv", "the server's own way: {share}");
    let rows = (evicted["rows"].as_f64(), evicted["kept_rows"].as_f64());
    assert_eq!(rows.0.map(|rows| (rows / 4.0).floor()), rows.1, "{share}");
    assert!(asked(json!({"evict": "none"}))["metrics"].get("evicted").is_none());
    for (choices, name) in [
        (json!({"keep": 4000}), "keep 4000"),
        (json!({"keep": 0}), "keep 0"),
        (json!({"keep": "much"}), "no percentage"),
        (json!({"evict": "snapkw"}), "snapkw"),
        (json!({"evict": "none", "keep": 4}), "goes with a way to evict"),
        (json!({"evict": "lookahead", "keep": 4}), "needs --adapter DIR"),
    ] {
        let refused = server.chat(&with("hop2-0", 4, json!({"tributary": choices})));
        let error = refused.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert_eq!(refused.status, 400, "{error}");
        assert!(error.contains(name) && !error.contains('\n'), "{error}");
    }
    assert_eq!(server.metric("tributary_eviction_duration_seconds_count{eviction=\"tova\"}"), 1.0);
    assert!(server.metric("tributary_eviction_kv_bytes_total{eviction=\"snapkv\",fate=\"freed\"}") > 0.0);
    server.ends_well();
}
