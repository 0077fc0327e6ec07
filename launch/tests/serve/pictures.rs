//! Pictures over HTTP: an answer is the command's own, the second time from cached chunks, and what
//! is no picture or cannot be read is refused with what is wrong.

use serde_json::{Value, json};

use crate::kit::server::{Server, body, picture_url as url};
use crate::kit::{json as report, root};

const QUESTION: &str = "which is red?";

fn file(name: &str) -> String {
    root().join("tests/golden/vlm").join(name).display().to_string()
}

fn serving() -> (Server, String) {
    serving_with(&[])
}

fn serving_with(options: &[&str]) -> (Server, String) {
    let model = root().join("tests/golden/qwen3vl-tiny").display().to_string();
    let usual = ["--model", &model, "--served-model-name", "demo", "--world-size", "2"];
    let server = Server::start(&[&usual[..], options].concat());
    (server, model)
}

/// A chat about these documents, with a question or the parts of one.
fn about(documents: &Value, question: Value, method: &str) -> Value {
    let mut chat = body("hop2-0", 4);
    chat["documents"] = documents.clone();
    chat["messages"] = json!([{"role": "user", "content": question}]);
    chat["tributary"] = json!({"method": method});
    chat
}

#[test]
fn pictures_are_answered_as_the_command_answers_and_are_warm_the_second_time() {
    let (server, model) = serving();
    let documents = json!([{"image": url("a.png")}, "page 2", {"title": "a page", "image": url("c.png")}]);
    for method in ["ring", "infoflow"] {
        let chat = about(&documents, json!(QUESTION), method);
        let replies = [(); 2].map(|()| server.chat(&chat));
        let replies = replies.map(|reply| {
            assert_eq!(reply.status, 200, "{method}: {}", reply.json());
            reply.json()
        });
        assert_eq!(replies[0]["choices"], replies[1]["choices"], "{method}");
        // 24 rows and 54.
        let details = &replies[0]["usage"]["prompt_tokens_details"];
        assert_eq!(details["image_tokens"], 78, "{method}: {details}");
        if method == "infoflow" {
            assert_eq!(replies[1]["metrics"]["cache"], "warm", "{}", replies[1]["metrics"]);
        }
    }
    let plain = json!([{"image": url("a.png")}, {"image": url("b.png")}]);
    let told = server.chat(&about(&plain, json!(QUESTION), "infoflow")).json();
    let [a, b] = ["a.png", "b.png"].map(file);
    let request = ["prefill", "--json", "--model", &model, "--world-size", "2", "--documents", &a, &b];
    let asked = ["--query", QUESTION, "--method", "infoflow", "--max-tokens", "4"];
    let own = report(&[&request[..], &asked].concat());
    assert_eq!(told["choices"][0]["message"]["content"], own["answer"], "{told}");
    // In the message itself: pictures before the question become documents.
    let parts = json!([
        {"type": "image_url", "image_url": {"url": url("a.png")}},
        {"type": "image_url", "image_url": {"url": url("b.png")}},
        {"type": "text", "text": QUESTION},
    ]);
    let reply = server.chat(&about(&json!([]), parts, "infoflow"));
    assert_eq!(reply.status, 200, "{}", reply.json());
    assert_eq!(reply.json()["usage"]["prompt_tokens_details"]["image_tokens"], 24 + 16);
    server.ends_well();
}

#[test]
fn pictures_in_tiles_are_answered_as_whole_ones_where_all_is_computed_anew() {
    let (server, model) = serving_with(&["--image-tiles", "3"]);
    let documents = json!([{"title": "a page", "content": [
        {"type": "text", "text": "look: "},
        {"type": "image_url", "image_url": {"url": url("a.png")}},
        {"type": "text", "text": " and "},
        {"type": "image_url", "image_url": {"url": url("c.png")}},
        {"type": "text", "text": " so."},
    ]}, "page 2"]);
    let reply = |method: &str| {
        let mut chat = about(&documents, json!(QUESTION), method);
        chat["tributary"]["explain"] = json!(true);
        let reply = server.chat(&chat);
        assert_eq!(reply.status, 200, "{method}: {}", reply.json());
        reply.json()
    };
    let (whole, tiles) = (reply("ring"), reply("infoflow:ratio=1"));
    assert_eq!(whole["choices"][0]["message"]["content"], tiles["choices"][0]["message"]["content"]);
    assert_eq!(tiles["usage"]["prompt_tokens_details"]["image_tokens"], 78);
    // 4 x 6 rows in 2 x 3 tiles, 6 x 9 in 3 x 3, and a text.
    let context = tiles["tributary"]["context"].as_array().expect("chunks").len();
    assert_eq!(context, 6 + 9 + 1, "{tiles}");
    assert_eq!(tiles["metrics"]["pictures"]["count"], 2, "{}", tiles["metrics"]);
    let explained = tiles["tributary"]["context"].as_array().expect("chunks").iter();
    let pictures: Vec<&Value> =
        explained.flat_map(|chunk| chunk["pictures"].as_array().into_iter().flatten()).collect();
    let last = json!({"top": 4, "left": 6, "of_lines": 6, "of_columns": 9});
    assert!(pictures.iter().any(|picture| picture["tile"] == last), "{pictures:?}");
    let numbers: std::collections::BTreeSet<u64> =
        pictures.iter().filter_map(|picture| picture["picture"].as_u64()).collect();
    assert_eq!((pictures.len(), numbers.len()), (6 + 9, 2), "a tile is one of its picture");
    let warm = reply("infoflow:ratio=1");
    assert_eq!(warm["choices"], tiles["choices"]);
    assert_eq!(warm["metrics"]["cache"], "warm", "{}", warm["metrics"]);
    server.ends_well();
    // The command, with whole pictures and in tiles.
    let [a, c] = ["a.png", "c.png"].map(file);
    let answer = |options: &[&str]| {
        let request = ["prefill", "--json", "--model", &model, "--documents", &a, &c, "--query", QUESTION];
        report(&[&request[..], &["--max-tokens", "4"], options].concat())
    };
    let full = answer(&["--method", "full"]);
    let tiles = answer(&["--method", "infoflow:ratio=1", "--world-size", "3", "--image-tiles", "2"]);
    assert_eq!((&tiles["answer"], &tiles["exact"]), (&full["answer"], &json!(true)));
    assert_eq!(tiles["order"], json!([0, 1, 2, 3, 4, 5, 6, 7]));
    let settings = |report: &Value| ["image_tiles", "tile_order"].map(|name| report["settings"][name].clone());
    assert_eq!(settings(&tiles), [json!(2), json!("raster")]);
    assert_eq!(settings(&full), [Value::Null, Value::Null]);
    let other = answer(&["--method", "infoflow:ratio=1", "--image-tiles", "2", "--tile-order", "tile"]);
    assert_eq!((&other["exact"], settings(&other)), (&json!(false), [json!(2), json!("tile")]));
}

#[test]
fn what_cannot_be_read_as_a_picture_is_refused() {
    let (server, _) = serving();
    let refused = |server: &Server, document: Value, wanted: &str| {
        let reply = server.chat(&about(&json!([document]), json!(QUESTION), "infoflow"));
        assert_eq!(reply.status, 400, "{wanted}");
        let told = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(told.contains(wanted), "{told}");
    };
    refused(&server, json!({"image": "https://example.com/a.png"}), "pictures are not fetched");
    refused(&server, json!({"image": "data:image/png;base64,AAAA"}), "picture");
    refused(&server, json!({"image": "data:image/png;base64,A A="}), "base64");
    refused(&server, json!({"image": url("a.png").replace("image/png", "image/webp")}), "image/webp");
    for method in ["prefix-cache", "star", "excerpt"] {
        let reply = server.chat(&about(&json!([{"image": url("a.png")}, "text"]), json!(QUESTION), method));
        assert_eq!(reply.status, 400, "{method}: {}", reply.json());
        let told = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(told.contains("picture"), "{method}: {told}");
    }
    server.ends_well();
    let text_alone = Server::start(&[]);
    refused(&text_alone, json!({"image": url("a.png")}), "reads no pictures");
    text_alone.ends_well();
}

/// What the answer, the metrics and the command's report tell of pictures.
#[test]
fn pictures_are_counted_and_their_times_are_told() {
    let (server, model) = serving();
    // One of them twice.
    let documents = json!([{"image": url("a.png")}, {"image": url("c.png")}, {"image": url("a.png")}]);
    let mut chat = about(&documents, json!(QUESTION), "infoflow");
    chat["tributary"]["explain"] = true.into();
    let [cold, warm] = [(); 2].map(|()| server.chat(&chat).json());
    for (reply, cached) in [(&cold, 0), (&warm, 2)] {
        let told = &reply["metrics"]["pictures"];
        let counts = ["count", "different", "cached", "tokens"].map(|name| told[name].as_u64());
        assert_eq!(counts, [Some(3), Some(2), Some(cached), Some(24 + 54 + 24)], "{told}");
        let pixels = (24 + 54) * 32 * 32 * 3;
        assert_eq!(told["pixel_bytes"], pixels, "{told}");
        assert!(told["decode_ms"].as_f64() > Some(0.0) && told["tower_ms"].as_f64() > Some(0.0), "{told}");
        assert!(reply["metrics"]["phases_ms"]["vision"].as_f64() > Some(0.0), "{}", reply["metrics"]);
        let context = reply["tributary"]["context"].as_array().expect("chunks");
        let pictures = context.iter().map(|chunk| (&chunk["pictures"][0], &chunk["tokens"]));
        for (number, ((picture, tokens), (lines, columns))) in pictures.zip([(4, 6), (6, 9), (4, 6)]).enumerate() {
            let wanted = json!({"picture": number, "first": 1, "lines": lines, "columns": columns});
            assert_eq!(picture, &wanted);
            assert_eq!(tokens.as_array().map(Vec::len), Some(lines * columns + 2), "marks around it");
        }
    }
    let total = |name: &str| server.metric(&format!("tributary_{name}"));
    assert_eq!((total("pictures_total"), total("picture_tokens_total")), (6.0, 204.0));
    let features =
        ["computed", "cached"].map(|source| total(&format!("picture_features_total{{source=\"{source}\"}}")));
    assert_eq!(features, [2.0, 2.0]);
    assert!(total("picture_decode_seconds_total") > 0.0);
    let towers = [0, 1].map(|rank| total(&format!("picture_tower_seconds_total{{rank=\"{rank}\"}}")));
    assert!(towers.iter().all(|&seconds| seconds > 0.0), "{towers:?}");
    server.ends_well();
    let (_, request) = crate::kit::vision();
    let asked = ["prefill", "--model", &model, "--request", &request, "--method", "infoflow"];
    let shown = crate::kit::tributary(&[&asked[..], &["--show-selected"]].concat());
    let shown = String::from_utf8(shown.stdout).expect("text");
    let places: Vec<usize> = (1..=4).map(|number| chosen(&shown, number)).collect();
    assert!(places.iter().sum::<usize>() > 0, "{shown}");
    assert!(shown.contains("pictures: 4 (4 different, 0 cached), "), "{shown}");
    let told = report(&[&asked[..], &["--json"]].concat());
    assert_eq!((&told["pictures"]["count"], &told["pictures"]["cached"]), (&json!(4), &json!(0)), "{told}");
}

/// The places of a picture that are shown as chosen.
fn chosen(shown: &str, number: usize) -> usize {
    let begin = format!("[picture {number}: ");
    let (_, rest) = shown.split_once(&begin).unwrap_or_else(|| panic!("no {begin} in {shown}"));
    let (places, rest) = rest.split_once(" of ").expect("both numbers");
    assert!(rest.split_once(']').is_some_and(|(all, _)| all.ends_with(" places")), "{shown}");
    places.parse().expect("a number")
}

/// A stream's next token comes while the towers of another request run.
#[test]
fn streams_go_on_beside_towers() {
    let model = root().join("tests/golden/qwen3vl-tiny").display().to_string();
    let options = ["--model", &model, "--served-model-name", "demo", "--world-size", "2", "--max-gap", "0"];
    let server = Server::start(&options);
    let mut talk = body("hop2-0", 1000);
    (talk["ignore_eos"], talk["documents"]) = (true.into(), json!(["a text"]));
    let mut stream = server.stream(&talk);
    stream.event().expect("its first token");
    let documents: Vec<Value> = ["a.png", "b.png", "c.png", "f.png"].map(|name| json!({"image": url(name)})).into();
    let mut chat = about(&json!(documents), json!(QUESTION), "infoflow");
    chat["tributary"]["explain"] = true.into();
    let reply = server.chat(&chat).json();
    let spans = reply["tributary"]["timeline"].as_array().unwrap_or_else(|| panic!("{reply}"));
    let starts = |phase: &str| {
        let of = spans.iter().filter(|span| span["rank"] == 0 && span["phase"] == phase);
        of.map(|span| span["start_ms"].as_f64().expect("a time")).collect::<Vec<_>>()
    };
    let (vision, prefill) = (starts("vision"), starts("chunk_prefill"));
    let within = starts("interleaved_decode").into_iter().filter(|start| *start > vision[0] && *start < prefill[0]);
    assert!(within.count() > 0, "no step of decoding between {vision:?} and {prefill:?}: {spans:?}");
    drop(stream);
    server.becomes("tributary_requests_running", 0.0);
    server.ends_well();
}
