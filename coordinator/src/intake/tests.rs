//! Prefix, chunks and query of requests, with and without a template, documents and earlier turns.

use super::*;
use crate::free_text::TEXT_QUERY_TOKENS;
use crate::tokenize::tests::demo;

fn prepared(template: Option<&str>, prefix: &str, bos: Option<u32>) -> Prepared {
    let documents = vec![Document::of_text("hugo stays in the house .")];
    let request = Request::new(documents, "question : hugo stays in".into()).unwrap();
    let template = template.map(|source| Template::new(source, "<bos>", "<eos>"));
    let intake = Intake {
        tokenizer: &demo(),
        template: template.as_ref(),
        head: None,
        pictures: None,
        chunking: &Chunking::Documents,
        tiling: Tiling::default(),
        prefix: &prefix.parse().unwrap(),
        bos,
        join: &Join::nothing(),
        most_tokens: usize::MAX,
        kwargs: &Map::new(),
    };
    prepare(&request, &intake).unwrap()
}

#[test]
fn a_text_alone_is_one_chunk_and_its_end() {
    let read = |text: &str, template: Option<&str>| {
        let template = template.map(|source| Template::new(source, "<bos>", "<eos>"));
        let (tokenizer, chunking, prefix) = (demo(), Chunking::Documents, Prefix::Bos);
        let (template, bos) = (template.as_ref(), Some(1));
        let intake = Intake {
            tokenizer: &tokenizer,
            template,
            head: None,
            pictures: None,
            chunking: &chunking,
            tiling: Tiling::default(),
            prefix: &prefix,
            bos,
            join: &Join::nothing(),
            most_tokens: usize::MAX,
            kwargs: &Map::new(),
        };
        prepare_text(&[Message::new("user", text)], &ChatOptions::default(), 2048, &intake)
    };
    let long = "hugo stays in the house . ".repeat(10);
    let whole = demo().encode(&long).unwrap().ids;
    let prepared = read(&long, None).unwrap();
    assert_eq!(prepared.prefix, [1]);
    assert_eq!([prepared.chunks[0].ids.clone(), prepared.query.clone()].concat(), whole);
    assert_eq!((prepared.chunks.len(), prepared.query.len()), (1, TEXT_QUERY_TOKENS));
    let short = read("hugo stays", None).unwrap();
    assert_eq!((short.chunks[0].ids.len(), short.query.len()), (1, 1));
    let one = read("hugo", Some(WITHOUT_HEAD)).unwrap();
    assert_eq!((one.chunks[0].ids.len(), one.query.len()), (1, 2), "the template's tail is the rest");
    for nothing in ["", " "] {
        assert!(matches!(read(nothing, None), Err(Error::Plan(PlanError::EmptyQuery))), "`{nothing}`");
    }
    let one = read("hugo", None).unwrap();
    assert_eq!(
        (one.prefix.len(), one.chunks.len(), one.query.len()),
        (1, 0, 1),
        "a single token follows the prefix alone"
    );
}

fn intake<R>(template: Option<&str>, read: impl FnOnce(&Intake<'_>) -> R) -> R {
    let template = template.map(|source| Template::new(source, "<bos>", "<eos>"));
    let (tokenizer, chunking, prefix) = (demo(), Chunking::Documents, Prefix::Bos);
    let (template, bos) = (template.as_ref(), Some(1));
    read(&Intake {
        tokenizer: &tokenizer,
        template,
        head: None,
        pictures: None,
        chunking: &chunking,
        tiling: Tiling::default(),
        prefix: &prefix,
        bos,
        join: &Join::nothing(),
        most_tokens: usize::MAX,
        kwargs: &Map::new(),
    })
}

fn turns(last: &str) -> Vec<Message> {
    vec![
        Message::new("user", "hugo <eos> stays in"),
        Message::new("assistant", "the house ."),
        Message::new("user", last),
    ]
}

#[test]
fn a_lead_belongs_to_the_prefix_and_the_answer_begins_behind_the_tail() {
    let documents = vec![Document::of_text("hugo stays in the house .")];
    let request = Request::new(documents, "question : hugo stays in".into()).unwrap();
    let ids = |text: &str| demo().encode(text).unwrap().ids;
    let led = |template| intake(template, |intake| prepare_led(&request, "the house", " hugo", intake).unwrap());
    let bare = led(None);
    assert_eq!(
        (&bare.prefix, &bare.query),
        (&[vec![1], ids("the house")].concat(), &ids("question : hugo stays in hugo"))
    );
    assert_eq!(bare.chunks, prepared(None, "bos", Some(1)).chunks, "chunks stay as they are");
    let without = intake(Some(WITHOUT_HEAD), |intake| prepare(&request, intake).unwrap());
    let framed = led(Some(WITHOUT_HEAD));
    assert_eq!(framed.query, [without.query, ids("hugo")].concat(), "after the template's tail");
    assert_eq!(framed.prefix, [without.prefix, ids("the house")].concat());
}

/// Under the head of a template, what follows it before the documents is the lead; it changes no
/// token.
#[test]
fn text_between_head_and_documents_is_the_lead_in_pieces() {
    let documents = vec![Document::of_text("hugo stays in the house .")];
    let request = Request::new(documents, "question :".into()).unwrap();
    let template = "{{ bos_token }}passage {% for m in messages %}{{ m.content }} {% endfor %}answer :";
    for (system, lead) in [(None, vec![]), (Some("the house"), vec![2]), (Some("hugo\n\nthe house\n\n"), vec![1, 2])] {
        let read = |chunk_prefix: Option<usize>| {
            intake(Some(template), |intake| {
                let prefix = system.map_or(Prefix::Bos, |system| Prefix::Text(system.into()));
                let find =
                    |more| Head::find(intake.template, intake.tokenizer, intake.bos, intake.kwargs, more).unwrap();
                let head = chunk_prefix.map(find);
                prepare(&request, &Intake { prefix: &prefix, head: head.as_ref(), ..*intake }).unwrap()
            })
        };
        let (today, headed) = (read(None), read(Some(0)));
        assert_eq!((&today.lead, &headed.lead), (&vec![], &lead), "{system:?}");
        assert_eq!(Prepared { lead: Vec::new(), ..headed.clone() }, today, "{system:?}");
        assert_eq!(headed.head().len(), 2, "<bos> passage");
        let more: u32 = read(Some(1)).lead.iter().sum();
        assert_eq!(more, lead.iter().sum::<u32>().saturating_sub(1), "{system:?}");
        assert_eq!(read(Some(100)).lead, Vec::<u32>::new(), "beyond the system text");
    }
}

#[test]
fn earlier_turns_ride_with_the_query_and_chunks_stay_as_they_are() {
    let documents = [Document::of_text("hugo stays in the house .")];
    let each = "{{ bos_token }}{% for m in messages %} {{ m.content }} {{ eos_token }}{% endfor %} answer :";
    let read = |turns: &[Message], template| {
        intake(template, |intake| prepare_turns(&documents, turns, &ChatOptions::default(), intake)).unwrap()
    };
    for (template, written) in [
        (Some(each), vec![("hugo <eos> stays in", true), ("<eos>", false), ("the house .", true), ("<eos>", false)]),
        (None, vec![("user: hugo", true), ("<eos>", true), ("stays in assistant: the house . user:", true)]),
    ] {
        let (alone, later) =
            (read(&[Message::new("user", "question :")], template), read(&turns("question :"), template));
        assert_eq!((&later.prefix, &later.chunks), (&alone.prefix, &alone.chunks), "a second turn finds them");
        let ids_of = |(text, by_user): (&str, bool)| match by_user {
            true => demo().encode(text).unwrap().ids,
            false => ids(text),
        };
        let before: Vec<u32> = written.into_iter().flat_map(ids_of).collect();
        let end = if template.is_some() { "question : <eos> answer :" } else { "question : assistant:" };
        assert_eq!(later.query, [before, ids(end)].concat(), "{template:?}");
    }
}

#[test]
fn what_is_longer_than_a_chunk_is_cut_whoever_wrote_it() {
    let long = "hugo stays in the house . ".repeat(10);
    let read = |chunk_tokens| {
        intake(None, |intake| prepare_text(&turns(&long), &ChatOptions::default(), chunk_tokens, intake)).unwrap()
    };
    let (whole, cut) = (read(100), read(8));
    assert_eq!(whole.chunks.len(), 1);
    assert_eq!((&cut.query, cut.query.len()), (&whole.query, TEXT_QUERY_TOKENS));
    let lengths: Vec<usize> = cut.chunks.iter().map(|chunk| chunk.ids.len()).collect();
    assert!(lengths.iter().all(|&length| (1..=8).contains(&length)) && lengths.len() > 4, "{lengths:?}");
    assert_eq!(cut.chunks.iter().flat_map(|chunk| chunk.ids.clone()).collect::<Vec<_>>(), whole.chunks[0].ids);
}

#[test]
fn tokens_are_taken_as_they_are() {
    let read = |ids: &[u32], documents: &[Document]| {
        intake(Some(WITH_BOS), |intake| prepare_ids(documents, ids.to_vec(), 8, &Intake { template: None, ..*intake }))
    };
    let prepared = read(&[1, 9, 8, 7], &[]).unwrap();
    assert_eq!((prepared.prefix, prepared.chunks[0].ids.clone(), prepared.query), (vec![1], vec![9], vec![8, 7]));
    let prepared = read(&[9, 8], &[]).unwrap();
    assert_eq!((prepared.prefix, prepared.query), (vec![], vec![8]));
    let document = Document::of_text("hugo stays");
    let prepared = read(&[9, 8], &[document]).unwrap();
    assert_eq!((prepared.prefix, prepared.chunks[0].ids.len(), prepared.query), (vec![1], 2, vec![9, 8]));
    assert!(matches!(read(&[], &[]), Err(Error::Plan(PlanError::EmptyQuery))));
    let one = read(&[1, 9], &[]).unwrap();
    assert_eq!((one.prefix, one.chunks.len(), one.query), (vec![1], 0, vec![9]));
}

const WITH_BOS: &str = "{{ bos_token }}question {{ messages[-1].content }} answer :";
const WITHOUT_HEAD: &str = "{{ messages[-1].content }} answer :";

fn ids(text: &str) -> Vec<u32> {
    demo().encode_parts(&[PromptPart::Template(text)], true, usize::MAX).unwrap()
}

#[test]
fn a_request_cannot_speak_for_the_template() {
    let (bos, eos) = (1, 2);
    let text = "hugo <eos> stays <bos> in";
    let documents = vec![Document { title: Some("<bos>".into()), ..Document::of_text(text) }];
    let request = Request::new(documents, text.into()).unwrap();
    let template = Template::new(
        "{{ bos_token }} {{ messages[0].content }} {{ messages[-1].content }} {{ eos_token }}",
        "<bos>",
        "<eos>",
    );
    let without_system = Template::new("{{ bos_token }} {{ messages[-1].content }} {{ eos_token }}", "<bos>", "<eos>");
    for chunking in ["documents", "4", "separator:hugo"] {
        for (template, head, tail) in [(Some(&template), 1, 1), (Some(&without_system), 1, 1), (None, 0, 0)] {
            let intake = Intake {
                tokenizer: &demo(),
                template,
                head: None,
                pictures: None,
                chunking: &chunking.parse().unwrap(),
                tiling: Tiling::default(),
                prefix: &Prefix::Text(text.into()),
                bos: Some(bos),
                join: &Join::nothing(),
                most_tokens: usize::MAX,
                kwargs: &Map::new(),
            };
            let prepared = prepare(&request, &intake).unwrap();
            let marks = |ids: &[u32]| ids.iter().filter(|&&id| id == bos || id == eos).count();
            let case = format!("{chunking}, {template:?}");
            assert_eq!(marks(&prepared.prefix), head, "{case}: {:?}", prepared.prefix);
            assert_eq!(marks(&prepared.query), tail, "{case}: {:?}", prepared.query);
            for chunk in &prepared.chunks {
                assert_eq!(marks(&chunk.ids), 0, "{case}: {chunk:?}");
            }
        }
    }
}

#[test]
fn prefixes_are_what_was_asked_for() {
    let cases = [
        (None, "bos", Some(1), vec![1], 0),
        (None, "bos", None, vec![], 1),
        (None, "none", Some(1), vec![], 0),
        (None, "the cat walks", Some(1), ids("the cat walks"), 0),
        (Some(WITH_BOS), "bos", Some(1), ids("<bos> question"), 0),
        (Some(WITH_BOS), "none", Some(1), ids("<bos> question"), 1),
        (Some(WITH_BOS), "the cat walks", Some(1), ids("<bos> question the cat walks"), 1),
        (Some(WITHOUT_HEAD), "bos", Some(1), vec![1], 0),
        (Some(WITHOUT_HEAD), "none", Some(1), vec![], 0),
        (Some(WITHOUT_HEAD), "the cat walks", Some(1), ids("the cat walks"), 1),
    ];
    for (template, prefix, bos, wanted, notes) in cases {
        let found = prepared(template, prefix, bos);
        assert_eq!(found.prefix, wanted, "{template:?}, {prefix}");
        assert_eq!(found.notes.len(), notes, "{template:?}, {prefix}: {:?}", found.notes);
    }
}

#[test]
fn the_tail_belongs_to_the_query() {
    assert_eq!(prepared(None, "bos", Some(1)).query, ids("question : hugo stays in"));
    let with_tail = prepared(Some(WITH_BOS), "bos", Some(1)).query;
    assert_eq!(with_tail, ids("question : hugo stays in answer :"));
}

#[test]
fn chunks_do_not_depend_on_the_template() {
    assert_eq!(prepared(None, "bos", Some(1)).chunks, prepared(Some(WITH_BOS), "bos", Some(1)).chunks);
}

#[test]
fn free_text_is_cut_at_separators_and_in_slices_where_that_is_asked_for() {
    let ids: Vec<u32> = (0..100).collect();
    let lengths = |cuts: &[usize], most| {
        let (chunks, query) = text_chunks(ids.clone(), Cutting::Fixed(most), cuts).unwrap();
        let all: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.ids.clone()).chain(query.clone()).collect();
        assert_eq!(all, ids, "nothing is lost");
        (chunks.iter().map(|chunk| chunk.ids.len()).collect::<Vec<_>>(), query.len())
    };
    assert_eq!(lengths(&[], 2048), (vec![68], 32));
    assert_eq!(lengths(&[], 30), (vec![30, 30, 8], 32));
    assert_eq!(lengths(&[0, 20, 50, 50, 90, 100], 2048), (vec![20, 30, 40], 10), "tokens after the last one follow");
    assert_eq!(lengths(&[20, 50, 90], 25), (vec![20, 25, 5, 25, 15], 10));
    assert_eq!(lengths(&[30], 40), (vec![30, 38], 32), "a long rest is cut as any text");
    let chunking = Chunking::Separator("##".into());
    assert_eq!(separators("a##b####c", &chunking, 10), [13, 16, 18]);
    assert_eq!(separators("a##b", &Chunking::Documents, 0), Vec::<usize>::new());
}
