//! Prompts of an auxiliary model: ids of the same tokenizer, characters of another one, and
//! requests that it cannot read.

use super::*;
use crate::demo::DEMO;
use crate::template::PromptPart;
use crate::tokenize::tests::{bytes, demo};

fn reader(tokenizer: Option<Tokenizer>) -> AuxiliaryReader {
    AuxiliaryReader { name: "small".to_owned(), shape: DEMO, bos: Some(1), tokenizer }
}

fn request() -> Prepared {
    let chunk = |text: &str| demo().encode(text).expect("tokens");
    Prepared {
        prefix: vec![1, 1],
        lead: Vec::new(),
        chunks: vec![chunk("hugo stays in paris"), chunk("hugo stays in")],
        query: vec![9, 8, 7],
        query_text: Some("hugo".to_owned()),
        ..Prepared::default()
    }
}

#[test]
fn ids_of_the_same_tokenizer_are_taken_as_they_are() {
    let request = request();
    let found = reader(None).read(&request, 1).expect("an entry");
    let [prompt] = &found.prompts[..] else { panic!("the first chunk is not read: {found:?}") };
    let ids: Vec<u32> = [1].into_iter().chain(request.chunks[1].ids.clone()).chain([9, 8, 7]).collect();
    assert_eq!((&prompt.ids, prompt.query), (&ids, 3));
    let first = 2 + request.chunks[0].ids.len() as u32;
    assert_eq!(prompt.stands_for, [0..0, first..first + 1, first + 1..first + 2, first + 2..first + 3]);
    let all = reader(None).read(&request, 0).expect("an entry");
    assert_eq!((all.prompts.len(), all.prompts[0].stands_for[1].clone()), (2, 2..3));
    assert!(all.cost.memory_bytes > DEMO.weight_bytes && all.cost.layers == 5, "{:?}", all.cost);
}

#[test]
fn what_writes_behind_a_prompt_must_know_its_tokens_and_have_room() {
    let request = request();
    let rows = request.token_count() as u64;
    let draft = reader(None).writes(&request, 32).expect("an entry");
    let parameters = DEMO.layers as u64 * DEMO.layer_matrix_parameters() + (DEMO.vocab * DEMO.hidden) as u64;
    assert_eq!((draft.model.as_str(), draft.cost.matrix_bytes), ("small", 4 * parameters));
    // Twice the parameters that a row meets; only the last row meets the vocabulary's.
    assert_eq!(draft.cost.row_flops, 2 * DEMO.layers as u64 * DEMO.layer_matrix_parameters());
    assert!(draft.cost.memory_bytes >= DEMO.weight_bytes + (rows + 32) * DEMO.kv_bytes(), "{:?}", draft.cost);
    let refused = |shape: ModelShape| {
        let error = AuxiliaryReader { shape, ..reader(None) }.writes(&request, 32).expect_err("refused");
        assert_eq!(error.exit_code(), 64, "{error}");
        error.to_string()
    };
    let unknown = refused(ModelShape { vocab: 9, ..DEMO });
    assert!(unknown.starts_with("--draft-model small: token id ") && unknown.contains("vocabulary of 9"), "{unknown}");
    let max_positions = rows as usize + 31;
    assert_eq!(
        refused(ModelShape { max_positions, ..DEMO }),
        format!("--draft-model small: reads and writes {} tokens, and has {max_positions} positions", rows + 32)
    );
}

#[test]
fn tokens_of_another_tokenizer_stand_for_those_with_which_they_share_letters() {
    let request = request();
    let shape = ModelShape { vocab: 256, ..DEMO };
    let found = AuxiliaryReader { shape, ..reader(Some(bytes())) }.read(&request, 1).expect("an entry");
    let prompt = &found.prompts[0];
    assert_eq!((prompt.ids.len(), prompt.query), (1 + "hugo stays in".len() + 4, 4), "a token a letter");
    let first = 2 + request.chunks[0].ids.len() as u32;
    let mut expected = Vec::new();
    for (word, row) in ["hugo", "stays", "in"].into_iter().zip(first..) {
        expected.extend(vec![row..row + 1; word.len()]);
    }
    // Between words there are spaces, which no token of the main model has.
    let letters: Vec<_> = prompt.stands_for.iter().filter(|rows| !rows.is_empty()).cloned().collect();
    assert_eq!(letters, expected);
    assert!(prompt.stands_for[5].is_empty() && prompt.stands_for[11].is_empty(), "{:?}", prompt.stands_for);
}

#[test]
fn the_whole_prompt_is_read_with_the_main_models_ids_or_in_letters() {
    let request = request();
    let found = reader(None).read_prompt(&request, 8).expect("an entry");
    let [prompt] = &found.prompts[..] else { panic!("one prompt: {found:?}") };
    let context: Vec<u32> = request.chunks.iter().flat_map(|chunk| chunk.ids.clone()).collect();
    assert_eq!(prompt.ids, [&[1, 1], &context[..], &[9, 8, 7]].concat());
    let rows = (2..2 + context.len() as u32).map(|row| row..row + 1);
    assert_eq!(prompt.stands_for, [0..0, 0..0].into_iter().chain(rows).collect::<Vec<_>>());
    assert_eq!((prompt.query, found.written, found.most_rows()), (3, 8, prompt.ids.len() + 7));
    let bare = Prepared { prefix: Vec::new(), ..request.clone() };
    let alone = reader(None).read_prompt(&bare, 8).expect("an entry");
    assert_eq!(alone.prompts[0].ids[..2], [1, context[0]], "its first token, where nothing else begins the prompt");
    assert_eq!(alone.prompts[0].stands_for[..2], [0..0, 0..1]);

    let part = |text| OwnedPart::from(&PromptPart::User(text));
    let texts = Some([vec![part("ab")], vec![part("hu"), part("go")]]);
    let letters = |max_positions| AuxiliaryReader {
        shape: ModelShape { vocab: 256, max_positions, ..DEMO },
        ..reader(Some(bytes()))
    };
    let asked = Prepared { texts, ..request.clone() };
    let found = letters(4096).read_prompt(&asked, 4).expect("an entry");
    let count = 2 + "hugo stays in paris".len() + "hugo stays in".len() + 4;
    let prompt = &found.prompts[0];
    assert_eq!((prompt.ids.len(), prompt.query), (count, 4), "a token a letter");
    let second = 2 + request.chunks[0].ids.len() as u32;
    assert_eq!(prompt.stands_for[2], 2..3, "the first letter after the two before the documents");
    assert_eq!(prompt.stands_for[2 + "hugo stays in paris".len()], second..second + 1);

    assert!(letters(count + 4).read_prompt(&asked, 4).is_ok());
    let refused = |reader: AuxiliaryReader, request: &Prepared| {
        let error = reader.read_prompt(request, 4).expect_err("refused");
        assert_eq!(error.exit_code(), 64, "{error}");
        error.to_string()
    };
    let wanted = format!(
        "--aux-model small: it reads the whole prompt, {count} tokens, and writes 4; the model has {} positions",
        count + 3
    );
    assert_eq!(refused(letters(count + 3), &asked), wanted);
    assert!(refused(letters(4096), &request).ends_with("the request is made of token ids"));
}

#[test]
fn spans_meet_where_they_have_a_letter_in_common() {
    let words = [0..4, 5..10, 11..13];
    assert_eq!(mapped(&[0..2, 2..7, 4..5, 7..13, 13..13, 20..22], &words), [0..1, 0..2, 1..1, 1..3, 3..3, 3..3]);
    assert_eq!(mapped(&[0..1, 1..2], &[]), [0..0, 0..0]);
}

#[test]
fn a_request_that_it_cannot_read_is_refused_in_one_line() {
    let request = request();
    let refused = |reader: AuxiliaryReader, request: &Prepared| {
        let error = reader.read(request, 1).expect_err("refused");
        assert_eq!(error.exit_code(), 64, "{error}");
        error.to_string()
    };
    let no_text = "its tokenizer is not the model's, so that it needs texts, and the request is made of token ids";
    let bare = Prepared { query_text: None, ..request.clone() };
    assert_eq!(refused(reader(Some(bytes())), &bare), format!("--aux-model small: {no_text}"));
    let one_chunk = Prepared { chunks: vec![Piece { ids: vec![4], ..Piece::default() }], ..bare.clone() };
    assert_eq!(reader(Some(bytes())).read(&one_chunk, 1).expect("nothing to read").prompts, []);
    let mut of_ids = request.clone();
    of_ids.chunks[1] = Piece { ids: vec![4, 5], ..Piece::default() };
    assert_eq!(refused(reader(Some(bytes())), &of_ids), format!("--aux-model small: chunk 2: {no_text}"));
    assert!(reader(None).read(&of_ids, 1).is_ok(), "ids are enough where they are the same");
    let small =
        |vocab, max_positions| AuxiliaryReader { shape: ModelShape { vocab, max_positions, ..DEMO }, ..reader(None) };
    let found = refused(small(3, 4096), &request);
    assert!(found.ends_with("is outside its vocabulary of 3; its tokenizer does not fit it"), "{found}");
    assert_eq!(
        refused(small(378, 6), &request),
        "--aux-model small: chunk 2: with the query it is a prompt of 7 tokens, and the model has 6 positions; cut it by --chunk"
    );
    assert!(small(378, 7).read(&request, 1).is_ok());
    let mut elsewhere = request.clone();
    elsewhere.chunks[1].spans = vec![90..91; 3];
    let found =
        refused(AuxiliaryReader { shape: ModelShape { vocab: 256, ..DEMO }, ..reader(Some(bytes())) }, &elsewhere);
    assert!(found.ends_with("has a letter in common with one of the model's"), "{found}");
}

fn with_pictures(count: usize) -> Prepared {
    let picture = tributary_protocol::Picture {
        first: 1,
        lines: 1,
        columns: 2,
        hash: [7; 32],
        tile: None,
        pixels: Default::default(),
    };
    let chunk = Piece { ids: vec![3, 4, 4, 5], pictures: vec![picture; count], ..Piece::default() };
    Prepared { chunks: vec![chunk], query: vec![6], ..Prepared::default() }
}

#[test]
fn pictures_are_refused_before_another_model_reads_the_texts() {
    let with = |spec: &str| {
        let spec: tributary_methods::MethodSpec = spec.parse().expect(spec);
        RequestSettings::default().set(&spec)
    };
    for (spec, wanted) in [
        ("excerpt", "it selects whole sentences"),
        ("cacheclip", "its auxiliary model"),
        ("spec-prefill-like", "its auxiliary model"),
    ] {
        let error = Readers::default().tokens(&with_pictures(1), &with(spec)).expect_err(spec).to_string();
        assert!(error.starts_with(&format!("--method {spec}: reads no pictures: {wanted}")), "{error}");
        assert!(Readers::default().tokens(&with_pictures(0), &with(spec)).is_ok(), "{spec}: texts alone");
    }
    let tokens = Readers::default().tokens(&with_pictures(1), &with("infoflow")).expect("tokens");
    assert_eq!(tokens.pictures[0].len(), 1);
    let error = Readers::default().chunk_tokens(&with_pictures(1), &with("kv-packet")).expect_err("packets");
    assert!(error.to_string().starts_with("--method kv-packet: reads no pictures"), "{error}");
    assert!(Readers::default().chunk_tokens(&with_pictures(1), &with("cacheclip")).is_ok(), "nothing is read ahead");
}

#[test]
fn pictures_do_not_become_a_query() {
    let error = with_pictures(1).without_context().expect_err("refused");
    assert!(error.to_string().starts_with("pictures are not supported in a prompt without context"), "{error}");
    assert_eq!(with_pictures(0).without_context().expect("texts").query, [3, 4, 4, 5, 6]);
}

#[test]
fn an_excerpt_is_told_as_many_chunks_as_it_asks_for() {
    let piece = |name: &str| {
        let text = format!("{name} tower. The {name} tower is high.");
        let spans: Vec<_> = text
            .split_inclusive(' ')
            .scan(0, |end, word| {
                let from = std::mem::replace(end, *end + word.len());
                Some(from..*end)
            })
            .collect();
        Piece { ids: vec![7; spans.len()], text, spans, ..Piece::default() }
    };
    let request = Prepared {
        chunks: ["Ulm", "Bern", "Pisa"].map(piece).into(),
        query_text: Some("Is Ulm, Bern or Pisa higher?".to_owned()),
        ..Prepared::default()
    };
    for (spec, named) in [("excerpt", 2), ("excerpt:named=0", 0), ("excerpt:named=1", 1), ("excerpt:named=3", 3)] {
        let settings = RequestSettings::default().set(&spec.parse::<tributary_methods::MethodSpec>().expect(spec));
        let text = Readers::default().tokens(&request, &settings).expect(spec).text;
        assert_eq!((text.named.len(), text.shared_words.is_empty()), (named, named == 0), "{spec}");
        assert_eq!(text.sentence_ends, [1, 6, 8, 13, 15, 20], "{spec}");
    }
}
