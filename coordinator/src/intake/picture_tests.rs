//! Requests with pictures: the recorded prompts of two small models (`tests/golden`), places of
//! pictures under every way to cut, and refusals.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tributary_pictures::{Encoded, Limits, Rules};
use tributary_protocol::tile::TileOrder;

use super::*;
use crate::picture::{Detail, PictureFile, PictureMarks};
use crate::request::DocumentPart;

const MODELS: [&str; 2] = ["qwen3vl-tiny", "qwen25vl-tiny"];

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(path)
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(path)).expect(path)).expect("JSON")
}

fn png(name: &str) -> DocumentPart {
    let file = std::fs::read(golden(&format!("vlm/{name}.png"))).expect("a picture");
    let file = PictureFile::new(name, Encoded { declared: None, file }, Detail::Full).expect("a header");
    DocumentPart::Picture(Arc::new(file))
}

fn text(text: &str) -> DocumentPart {
    DocumentPart::Text(text.to_owned())
}

struct Model {
    tokenizer: Tokenizer,
    template: Template,
    rules: PictureRules,
    join: Join,
    kwargs: Map<String, Value>,
}

impl Model {
    fn open(name: &str) -> Self {
        let (config, processing) =
            (json(&format!("{name}/config.json")), json(&format!("{name}/preprocessor_config.json")));
        let number = |value: &Value| value.as_u64().expect("a number");
        let limit = |new: &str, old: &str| number(processing["size"].get(new).unwrap_or(&processing[old]));
        let rules = Rules::new(
            number(&processing["patch_size"]) as u32,
            number(&processing["merge_size"]) as u32,
            limit("shortest_edge", "min_pixels"),
            limit("longest_edge", "max_pixels"),
        );
        let id = |name: &str| number(&config[name]) as u32;
        let (row, start, end) = (id("image_token_id"), id("vision_start_token_id"), id("vision_end_token_id"));
        let template = Template::from_folder(&golden(name)).expect("files").expect("a template");
        Self {
            tokenizer: Tokenizer::from_folder(&golden(name), Some(&template)).expect("a tokenizer"),
            template,
            rules: PictureRules {
                rules: rules.expect("rules"),
                marks: PictureMarks { row, start, end },
                limits: Limits::default(),
            },
            join: Join::default(),
            kwargs: Map::new(),
        }
    }

    fn intake(&self) -> Intake<'_> {
        Intake {
            tokenizer: &self.tokenizer,
            pictures: Some(&self.rules),
            template: Some(&self.template),
            head: None,
            chunking: &Chunking::Documents,
            tiling: Tiling::default(),
            prefix: &Prefix::None,
            bos: None,
            join: &self.join,
            most_tokens: usize::MAX,
            kwargs: &self.kwargs,
        }
    }

    /// Reads documents and a question.
    fn read<'a>(
        &'a self,
        documents: Vec<Document>,
        query: &str,
        change: impl FnOnce(&mut Intake<'a>),
    ) -> Result<Prepared> {
        let mut intake = self.intake();
        change(&mut intake);
        let request = Request { documents, query: query.to_owned(), answer: None };
        prepare(&request, &intake)
    }
}

/// A part of a message as a document of its own.
fn alone(part: DocumentPart) -> Document {
    Document { goes_on: true, ..Document::of_parts(None, [part]) }
}

fn all_ids(prepared: &Prepared) -> Vec<u32> {
    let context = prepared.chunks.iter().flat_map(|chunk| &chunk.ids);
    prepared.prefix.iter().chain(context).chain(&prepared.query).copied().collect()
}

/// Ids of a recorded prompt.
fn recorded(model: &str, case: &str) -> Vec<u32> {
    let bytes = std::fs::read(golden(&format!("{model}/{case}.safetensors"))).expect("a file");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
    let ids = tensors.tensor("input_ids").expect("ids");
    let width = ids.data().len() / ids.shape().iter().product::<usize>();
    ids.data().chunks(width).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]])).collect()
}

#[test]
fn recorded_prompts_come_out_id_by_id() {
    for (model, case) in
        MODELS.into_iter().flat_map(|model| ["one", "several", "first", "pages", "tiles"].map(|case| (model, case)))
    {
        let this = Model::open(model);
        let parts = json(&format!("{model}/cases.json"))["cases"][case]["parts"].as_array().expect("parts").clone();
        let mut parts: Vec<DocumentPart> = parts
            .iter()
            .map(|part| part.as_str().map_or_else(|| png(part["image"].as_str().expect("a name")), text))
            .collect();
        let Some(DocumentPart::Text(query)) = parts.pop() else { panic!("{case} ends with a text") };
        let (head, tail) = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n");
        let system = "<|im_start|>system\nBe brief.<|im_end|>\n";
        let mut prefix = Prefix::None;
        let talks = query.ends_with(tail);
        if let Some(DocumentPart::Text(first)) = parts.first_mut().filter(|_| talks) {
            if let Some(rest) = first.strip_prefix(system) {
                (*first, prefix) = (rest.to_owned(), Prefix::Text("Be brief.".into()));
            }
            *first = first.strip_prefix(head).expect("a turn").to_owned();
        }
        let query = query.strip_suffix(tail).unwrap_or(&query).to_owned();
        let documents: Vec<Document> = parts.into_iter().filter(|part| *part != text("")).map(alone).collect();
        let count = documents.len();
        let prepared = this
            .read(documents, &query, |intake| {
                intake.prefix = if talks { &prefix } else { &Prefix::None };
                intake.template = intake.template.filter(|_| talks);
            })
            .expect(case);
        assert_eq!(prepared.chunks.len(), count, "{model}, {case}");
        assert_eq!(all_ids(&prepared), recorded(model, case), "{model}, {case}");
        let mut rows = 0;
        for (chunk, pictures) in prepared.chunks.iter().zip(prepared.tokens().pictures) {
            assert_eq!(chunk.spans.len(), chunk.ids.len());
            for picture in &pictures {
                assert!(picture.range().all(|place| chunk.ids[place] == this.rules.marks.row), "{model}, {case}");
                assert_eq!(chunk.ids[picture.range().end], this.rules.marks.end);
                rows += picture.rows();
            }
        }
        assert_eq!(rows, all_ids(&prepared).iter().filter(|&&id| id == this.rules.marks.row).count());
        assert_eq!(rows, prepared.picture_rows());
    }
}

#[test]
fn a_page_is_one_chunk_and_its_pictures_are_never_cut() {
    let this = Model::open("qwen3vl-tiny");
    let page = Document::of_parts(Some("T".into()), [text("ab cd"), png("d"), text("ef"), png("f"), png("a")]);
    let texts = |documents: Vec<Document>, chunking: &str| {
        let chunking = chunking.parse().expect("a chunking");
        let prepared = this.read(documents, "q", |intake| intake.chunking = &chunking).expect("a request");
        for chunk in &prepared.chunks {
            assert_eq!(chunk.title.as_deref(), Some("T"));
            for picture in &chunk.pictures {
                assert!(picture.range().all(|place| chunk.ids[place] == this.rules.marks.row));
                assert_eq!(&chunk.text[chunk.spans[picture.range().start].clone()], "\u{FFFC}");
            }
        }
        prepared.chunks.into_iter().map(|chunk| (chunk.text, chunk.pictures.len())).collect::<Vec<_>>()
    };
    let of = |parts: &[(&str, usize)]| parts.iter().map(|(text, n)| ((*text).to_owned(), *n)).collect::<Vec<_>>();
    let o = "\u{FFFC}";
    assert_eq!(texts(vec![page.clone()], "documents"), of(&[(&format!("T\nab cd{o}ef{o}{o}"), 3)]));
    assert_eq!(
        texts(vec![page.clone()], "separator: "),
        of(&[("T\nab\n", 0), ("cd", 0), (o, 1), ("ef", 0), (o, 1), (o, 1)])
    );
    assert_eq!(texts(vec![page.clone()], "5:1"), of(&[("T\nab ", 0), (" cd", 0), (o, 1), ("ef", 0), (o, 1), (o, 1)]));
    let ends_in_text = Document::of_parts(Some("T".into()), [png("d"), text("end")]);
    assert_eq!(texts(vec![ends_in_text.clone()], "documents"), of(&[(&format!("T\n{o}end\n"), 1)]));
    assert_eq!(texts(vec![ends_in_text], "2"), of(&[("T\n", 0), (o, 1), ("en", 0), ("d\n", 0)]));
}

/// The tiles of pieces: number, ids before the picture, rows, ids after it, positions before it.
fn tiles(pieces: &[Piece]) -> Vec<[usize; 5]> {
    let of = |piece: &Piece| {
        let [picture] = &piece.pictures[..] else { panic!("{} pictures", piece.pictures.len()) };
        let (range, tile) = (picture.range(), picture.tile.expect("a tile"));
        let after = piece.ids.len() - range.end;
        [tile.number.into(), range.start, range.len(), after, tile.before as usize]
    };
    pieces.iter().map(of).collect()
}

fn tiling(tiles: u8) -> Tiling {
    Tiling { tiles: tiles.to_string().parse().expect("a number"), order: TileOrder::Raster }
}

#[test]
fn tiles_are_chunks_and_texts_go_with_the_first_and_the_last() {
    let this = Model::open("qwen3vl-tiny");
    // d and f have 2 x 3 rows, c has 6 x 9.
    let page = Document::of_parts(Some("T".into()), [text("ab"), png("d"), text("ef"), png("c"), text("end")]);
    let read = |documents: &[Document], chunking: &str, tiles: u8| {
        let chunking = chunking.parse().expect("a chunking");
        let prepared = this.read(documents.to_vec(), "q", |intake| {
            (intake.chunking, intake.tiling) = (&chunking, tiling(tiles));
        });
        prepared.expect("a request").chunks
    };
    let [page, other] = [vec![page], vec![Document::of_parts(None, [text("a"), png("f"), png("d")])]];
    let pieces = read(&page, "documents", 2);
    // "T\nab" and the mark of the beginning; "ef" and such a mark; the mark of the end and "end\n".
    let of_d = [[0, 5, 2, 0, 5], [1, 0, 1, 0, 5], [2, 0, 2, 0, 5], [3, 0, 1, 1, 5]];
    let of_c = [[0, 3, 15, 0, 3], [1, 0, 12, 0, 3], [2, 0, 15, 0, 3], [3, 0, 12, 5, 3]];
    assert_eq!(tiles(&pieces), [of_d, of_c].concat());
    let texts: Vec<&str> = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let o = "\u{FFFC}";
    assert_eq!(texts, [&format!("T\nab{o}"), o, o, o, &format!("ef{o}"), o, o, &format!("{o}end\n")]);
    assert!(pieces.iter().all(|piece| piece.title.as_deref() == Some("T") && piece.spans.len() == piece.ids.len()));
    let PictureMarks { row, start, end } = this.rules.marks;
    for piece in &pieces {
        let (picture, ids) = (&piece.pictures[0], &piece.ids);
        let range = picture.range();
        assert!(ids[range.clone()].iter().all(|&id| id == row));
        assert_eq!(range.start.checked_sub(1).map(|place| ids[place]), picture.begins().then_some(start));
        assert_eq!(ids.get(range.end).copied(), picture.ends().then_some(end));
    }
    // The whole prompt is the same: two rows are as good as each other by their ids.
    let ids = |pieces: &[Piece]| pieces.iter().flat_map(|piece| piece.ids.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&pieces), ids(&read(&page, "documents", 1)));
    // Elsewhere texts are chunks of their own.
    let pieces = read(&page, "separator:#", 2);
    let kinds: Vec<bool> = pieces.iter().map(|piece| piece.pictures.is_empty()).collect();
    assert_eq!(kinds, [true, false, false, false, false, true, false, false, false, false, true]);
    assert_eq!(tiles(&pieces[6..10]), [[0, 1, 15, 0, 1], [1, 0, 12, 0, 1], [2, 0, 15, 0, 1], [3, 0, 12, 1, 1]]);
    // More tiles than lines: those without a row are left out.
    let pieces = read(&other, "documents", 8);
    let one_row = |number: usize, after: usize, before: usize| {
        let first = if number == 0 { before } else { 0 };
        [number, first, 1, if number == 5 { after } else { 0 }, before]
    };
    let of = |before| (0..6).map(move |number| one_row(number, 1, before));
    assert_eq!(tiles(&pieces), of(2).chain(of(1)).collect::<Vec<_>>());
}

#[test]
fn tiles_of_a_picture_are_stored_together() {
    let this = Model::open("qwen3vl-tiny");
    let documents = [alone(text("ab")), alone(png("d")), alone(png("f"))].to_vec();
    let prepared = this.read(documents, "q", |intake| intake.tiling = tiling(2)).expect("a request");
    assert_eq!(prepared.chunks.len(), 1 + 4 + 4);
    let left = |stored: [bool; 9]| {
        let mut left = prepared.clone();
        let number = |piece: &Piece| prepared.chunks.iter().position(|other| other == piece).expect("a chunk");
        left.leave_out(|piece| stored[number(piece)]);
        left.chunks.iter().map(number).collect::<Vec<_>>()
    };
    assert_eq!(left([false; 9]), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(left([true; 9]).is_empty());
    let mut stored = [true; 9];
    stored[7] = false;
    assert_eq!(left(stored), [5, 6, 7, 8], "one tile is missing");
    stored = [true; 9];
    stored[0] = false;
    assert_eq!(left(stored), [0]);
}

#[test]
fn tiles_stand_behind_a_text_that_a_template_has_trimmed() {
    let this = Model::open("qwen3vl-tiny");
    let trims = Template::new("<|im_start|>{{ messages[-1].content | trim }}<|im_end|>", "", "");
    let page = Document::of_parts(None, [text(" \n a "), png("d"), text(" b ")]);
    let prepared = this.read(vec![page], " q ", |intake| {
        (intake.template, intake.tiling) = (Some(&trims), tiling(2));
    });
    let chunks = prepared.expect("a request").chunks;
    assert_eq!(tiles(&chunks), [[0, 3, 2, 0, 3], [1, 0, 1, 0, 3], [2, 0, 2, 0, 3], [3, 0, 1, 5, 3]]);
    assert_eq!(chunks[0].text, "a \u{FFFC}");
}

#[test]
fn a_template_that_trims_leaves_pictures_in_their_places() {
    let this = Model::open("qwen3vl-tiny");
    let trims = Template::new("<|im_start|>{{ messages[-1].content | trim }}<|im_end|>", "", "");
    let page = Document::of_parts(None, [text(" \n a "), png("d"), text(" "), png("f"), text(" b ")]);
    let prepared = this.read(vec![page], " q ", |intake| intake.template = Some(&trims)).expect("a request");
    let chunk = &prepared.chunks[0];
    assert_eq!((chunk.text.as_str(), chunk.pictures.len()), ("a \u{FFFC} \u{FFFC} b \n", 2));
    assert!(chunk.pictures.iter().all(|picture| chunk.ids[picture.first as usize - 1] == this.rules.marks.start));
    assert_eq!(chunk.stray(this.rules.marks.row).next(), None);
    let alone = this.read(vec![alone(png("d"))], " q ", |intake| intake.template = Some(&trims)).expect("a request");
    assert_eq!((alone.chunks[0].ids.len(), alone.query.len()), (8, 3), "space behind a picture stays");
    let rewrites = Template::new("{{ messages[-1].content | upper }}", "", "");
    let error = this.read(vec![Document::of_parts(None, [text("a"), png("d")])], "q", |intake| {
        intake.template = Some(&rewrites);
    });
    let error = error.expect_err("rewritten").to_string();
    assert!(error.contains("the chat template rewrites the documents"), "{error}");
}

#[test]
fn texts_give_no_marks_of_pictures_and_ids_are_refused() {
    let this = Model::open("qwen3vl-tiny");
    let spelt = "<|vision_start|><|image_pad|><|vision_end|>";
    let documents = vec![Document::of_text(spelt), Document::of_parts(Some(spelt.into()), [text(spelt), png("d")])];
    let prefix = Prefix::Text(spelt.into());
    let prepared = this.read(documents, spelt, |intake| intake.prefix = &prefix).expect("letters");
    let PictureMarks { row, start, end } = this.rules.marks;
    for (mark, count) in [(row, 6), (start, 1), (end, 1)] {
        assert_eq!(all_ids(&prepared).iter().filter(|&&id| id == mark).count(), count, "mark {mark}");
    }
    assert_eq!(this.tokenizer.encode(spelt).expect("letters").ids.len(), spelt.len(), "a token a byte");
    let mut intake = Intake { template: None, ..this.intake() };
    for documents in [vec![], vec![alone(png("d"))]] {
        let error = prepare_ids(&documents, vec![5, row, 6], 2048, &intake).expect_err("a mark");
        assert!(matches!(error, Error::PictureMark { id } if id == row), "{error}");
        assert!(prepare_ids(&documents, vec![5, 6, 7], 2048, &intake).is_ok());
    }
    intake.pictures = None;
    assert!(prepare_ids(&[], vec![5, row, 6], 2048, &intake).is_ok(), "no mark of a model of texts");
    let error = prepare_ids(&[alone(png("d"))], vec![5], 2048, &intake).expect_err("a model of texts");
    assert!(matches!(error, Error::NoPictures), "{error}");
}

#[test]
fn pictures_count_for_the_longest_prompt_before_they_are_decoded() {
    let this = Model::open("qwen3vl-tiny");
    let read = |most| this.read(vec![alone(png("c"))], "q", |intake| intake.most_tokens = most);
    assert_eq!(read(56).expect("it fits").chunks[0].ids.len(), 56);
    assert!(matches!(read(55), Err(Error::MoreTokens { most: 55 })));
    // The same file with little detail, by other limits.
    let file = std::fs::read(golden("vlm/c.png")).expect("a picture");
    let low = PictureFile::new("c", Encoded { declared: None, file }, Detail::Low).expect("a header");
    let wide = PictureRules { rules: Rules::new(16, 2, 0, 1 << 24).expect("rules"), ..this.rules };
    assert_eq!(low.rows(&wide).expect("rows"), low.read(&wide).expect("a picture").tokens());
    assert!(low.rows(&wide).expect("rows") <= 256);
    assert_eq!(low.read(&this.rules).expect("other rules").tokens(), 54);
}
