//! Texts and words that are not part of the program: from a folder of data that the user names, or
//! from the user's own files. An error names missing material and the option that gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cut::sentences;
use crate::design::Asked;
use crate::error::{Error, Result};
use crate::passages::passages;
use crate::split::Split;

/// Places of material.
#[derive(Debug, Clone)]
pub struct Material {
    suite: String,
    data: Option<PathBuf>,
    essays: Option<PathBuf>,
    squad: Option<PathBuf>,
    split: Split,
}

/// English words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// Adjectives.
    pub adjectives: Vec<String>,
    /// Nouns.
    pub nouns: Vec<String>,
    /// All of them, verbs too, each once, by the alphabet.
    pub all: Vec<String>,
}

/// A text for haystacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Essay {
    /// Its sentences, without space around them.
    pub sentences: Vec<String>,
    /// Description, for the reader of a report.
    pub label: String,
}

/// A question with the documents that answer it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// The question.
    pub text: String,
    /// Right answers, any of which counts.
    pub answers: Vec<String>,
    /// Numbers of the documents that belong to it.
    pub own: Vec<usize>,
    /// Numbers of others about the same matter.
    pub related: Vec<usize>,
}

/// Questions about documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Questions {
    /// The documents, each once, by the alphabet.
    pub documents: Vec<String>,
    /// The questions.
    pub questions: Vec<Question>,
    /// Description, for the reader of a report.
    pub label: String,
}

/// A file in SQuAD's format.
#[derive(Deserialize)]
struct SquadFile {
    data: Vec<SquadArticle>,
}

#[derive(Deserialize)]
struct SquadArticle {
    #[serde(default)]
    title: String,
    paragraphs: Vec<SquadParagraph>,
}

#[derive(Deserialize)]
struct SquadParagraph {
    context: String,
    qas: Vec<SquadQuestion>,
}

#[derive(Deserialize)]
struct SquadQuestion {
    question: String,
    answers: Vec<SquadAnswer>,
    #[serde(default)]
    is_impossible: bool,
}

#[derive(Deserialize)]
struct SquadAnswer {
    text: String,
}

/// A text of the user's own as JSON.
#[derive(Deserialize)]
struct EssayFile {
    text: String,
}

/// The fields that are read from a row in LongBench's format.
#[derive(Deserialize)]
struct QuestionRow {
    input: String,
    context: String,
    answers: Vec<String>,
    #[serde(default)]
    sources: Vec<String>,
    #[serde(default)]
    needed: Vec<usize>,
}

/// Kinds of sources.
const ARTICLE: &str = "article";
const WORD: &str = "word";
const ESSAY: &str = "essay";

/// Whether a question's row belongs to a part: the articles that answer it do, or its context where
/// the row does not name them.
pub fn has_row(split: &Split, sources: &[String], context: &str) -> bool {
    match sources {
        [] => split.has(ARTICLE, context),
        sources => sources.iter().all(|source| split.has(ARTICLE, source)),
    }
}

impl Material {
    /// Places of a suite's material.
    pub fn of(asked: &Asked) -> Self {
        let Asked { suite, data, essays, squad, split, .. } = asked.clone();
        Self { suite, data, essays, squad, split }
    }

    /// Lists of English words.
    ///
    /// # Errors
    /// Returns an error if there is no data folder, if it has no list, or if a list has no word.
    pub fn words(&self) -> Result<Words> {
        let list = |name: &str| -> Result<Vec<String>> {
            let path = self.find("words", &format!("ruler/wordlists/{name}.txt"), "")?;
            let text = read(&path)?;
            let words = text.lines().map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect();
            let words: Vec<String> = self.half(WORD, words, String::clone, &path)?;
            match words.is_empty() {
                true => Err(Error::usage(format!("{}: it has no words", path.display()))),
                false => Ok(words),
            }
        };
        let (adjectives, nouns, verbs) = (list("adjectivelist")?, list("nounlist")?, list("verblist")?);
        let all: BTreeSet<&String> = adjectives.iter().chain(&nouns).chain(&verbs).collect();
        Ok(Words { all: all.into_iter().cloned().collect(), adjectives, nouns })
    }

    /// The text of haystacks: the user's own, RULER's essays, or paragraphs of XQuAD.
    ///
    /// # Errors
    /// Returns an error if both are missing, or if a file cannot be read or has no sentence.
    pub fn essay(&self) -> Result<Essay> {
        let essays = self.look("ruler/essays.json").map(|path| (path, "RULER's essays".to_owned()));
        let own = self.essays.as_ref().map(|path| (path.clone(), format!("{} (--essays)", path.display())));
        let (text, label) = match own.or(essays) {
            Some((path, label)) => {
                let text = read(&path)?;
                let text = serde_json::from_str::<EssayFile>(&text).map_or(text, |file| file.text);
                (self.half(ESSAY, essays_of(&text), |essay| (*essay).to_owned(), &path)?.concat(), label)
            }
            None => {
                let path = self.find(
                    "text for haystacks",
                    "ruler/xquad.en.json",
                    "; or a text of your own with --essays FILE",
                )?;
                let paragraphs = self.articles(&path)?.into_iter().flat_map(|article| article.paragraphs);
                let text: Vec<String> = paragraphs.map(|paragraph| paragraph.context).collect();
                (text.join(" "), "paragraphs of XQuAD, not the essays of RULER's authors".to_owned())
            }
        };
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let sentences: Vec<String> = sentences(&text).iter().map(|sentence| sentence.trim().to_owned()).collect();
        match sentences.is_empty() {
            true => Err(Error::usage(format!("--essays: {label} has no sentence"))),
            false => Ok(Essay { sentences, label }),
        }
    }

    /// Questions about paragraphs: the user's own SQuAD, SQuAD's development set, or XQuAD's.
    ///
    /// # Errors
    /// Returns an error if both are missing, or if a file is in another format or has no question.
    pub fn squad(&self) -> Result<Questions> {
        let squad = self.look("ruler/squad.json").map(|path| (path, "SQuAD 2.0, development set".to_owned()));
        let own = self.squad.as_ref().map(|path| (path.clone(), format!("{} (--squad)", path.display())));
        let (path, label) = match own.or(squad) {
            Some(there) => there,
            None => {
                let path = self.find("questions", "ruler/xquad.en.json", "; or SQuAD itself with --squad FILE")?;
                (path, "XQuAD (English), which is a part of SQuAD's development set".to_owned())
            }
        };
        let mut found = Collected::default();
        for article in self.articles(&path)? {
            let texts: Vec<String> = article.paragraphs.iter().map(|paragraph| paragraph.context.clone()).collect();
            for SquadParagraph { context, qas } in article.paragraphs {
                for asked in qas.into_iter().filter(|asked| !asked.is_impossible && !asked.answers.is_empty()) {
                    let answers = asked.answers.into_iter().map(|answer| answer.text).collect();
                    let others = texts.iter().filter(|text| **text != context).cloned().collect();
                    found.add(asked.question, answers, vec![context.clone()], others);
                }
            }
        }
        found.questions(&path, label)
    }

    /// Questions that need several passages: rows derived from HotpotQA, or from MuSiQue.
    ///
    /// # Errors
    /// Returns an error if the data folder has neither, or if a row cannot be read.
    pub fn several_hops(&self) -> Result<Questions> {
        const FILES: [(&str, &str); 3] = [
            ("derived_hotpotqa_10p", "HotpotQA"),
            ("derived_hotpotqa_dev", "HotpotQA"),
            ("derived_musique_cacheblend", "MuSiQue"),
        ];
        let there = FILES.into_iter().find_map(|(file, of)| Some((self.look(&format!("longbench/{file}.jsonl"))?, of)));
        let Some((path, of)) = there else {
            return Err(self.missing("questions of several hops", &format!("longbench/{}.jsonl", FILES[0].0), ""));
        };
        let mut found = Collected::default();
        for (index, line) in read(&path)?.lines().enumerate() {
            let row: QuestionRow = serde_json::from_str(line)
                .map_err(|error| Error::usage(format!("{}, line {}: {error}", path.display(), index + 1)))?;
            if !has_row(&self.split, &row.sources, &row.context) {
                continue;
            }
            let own = passages(&row.context).unwrap_or_else(|| vec![row.context.as_str()]);
            // Where a row names the passages that answer it, the others are about the same matter.
            let is_own = |at: usize| row.needed.is_empty() || row.needed.contains(&(at + 1));
            let texts = own.into_iter().map(|passage| passage.trim_end().to_owned()).enumerate();
            let (own, related): (Vec<_>, Vec<_>) = texts.partition(|(at, _)| is_own(*at));
            let [own, related] = [own, related].map(|texts| texts.into_iter().map(|(_, text)| text).collect());
            found.add(row.input, row.answers, own, related);
        }
        found.questions(&path, format!("rows derived from {of}"))
    }

    /// The articles of a file that belong to the part.
    fn articles(&self, path: &Path) -> Result<Vec<SquadArticle>> {
        let first = |article: &SquadArticle| article.paragraphs.first().map(|first| first.context.clone());
        let name = |article: &SquadArticle| match article.title.is_empty() {
            true => first(article).unwrap_or_default(),
            false => article.title.clone(),
        };
        self.half(ARTICLE, squad(path)?.data, name, path)
    }

    /// The half of a file's sources that belongs to the part.
    fn half<T>(&self, kind: &str, sources: Vec<T>, name: impl Fn(&T) -> String, path: &Path) -> Result<Vec<T>> {
        let (all, half) = (sources.len(), self.split.half(kind, sources, name));
        match all > 0 && half.is_empty() {
            true => Err(Error::usage(format!(
                "--split {}: {} has too few sources: {all} of the kind {kind}",
                self.split.part.name(),
                path.display()
            ))),
            false => Ok(half),
        }
    }

    /// A file of the data folder, if it is there. The folder may be the one above, as it comes, or
    /// the very one.
    pub fn look(&self, name: &str) -> Option<PathBuf> {
        let data = self.data.as_ref()?;
        let inside = name.split_once('/').map_or(name, |(_, inside)| inside);
        [name, inside].map(|name| data.join(name)).into_iter().find(|path| path.exists())
    }

    fn find(&self, what: &str, name: &str, otherwise: &str) -> Result<PathBuf> {
        self.look(name).ok_or_else(|| self.missing(what, name, otherwise))
    }

    fn missing(&self, what: &str, name: &str, otherwise: &str) -> Error {
        let place = match &self.data {
            Some(data) => format!("{} has no {name}", data.display()),
            None => format!("name the folder that has {name} with --data DIR or TRIBUTARY_DATA"),
        };
        Error::usage(format!("--suite {}: {what}: {place}{otherwise}", self.suite))
    }
}

/// The months; an essay may begin with one.
pub(crate) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Pieces of a text that has no dates, at most: neighbours share no more than the essay at a cut.
const PIECES: usize = 16;

/// A text as its essays. One begins with a month and a year right after a sentence or a line; those
/// without a date go with the one before. A text without dates is cut into equal pieces.
fn essays_of(text: &str) -> Vec<&str> {
    let mut starts = vec![0];
    for (at, _) in text.match_indices(|letter: char| letter.is_ascii_uppercase()) {
        let is_behind_text = text[..at].ends_with(|letter: char| !letter.is_whitespace() || letter == '\n');
        if at > 0 && is_behind_text && begins_with_date(&text[at..]) {
            starts.push(at);
        }
    }
    if starts.len() < 2 {
        let sentences = sentences(text);
        let each = sentences.len().div_ceil(PIECES).max(1);
        let bytes = |piece: &[&str]| piece.iter().map(|sentence| sentence.len()).sum::<usize>();
        starts = sentences.chunks(each).scan(0, |at, piece| Some(std::mem::replace(at, *at + bytes(piece)))).collect();
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(&start, end)| &text[start..end]).collect()
}

/// Whether a text begins with a month and a year, and goes on without a blank.
fn begins_with_date(text: &str) -> bool {
    let Some(rest) = MONTHS.iter().find_map(|month| text.strip_prefix(month)?.strip_prefix(' ')) else { return false };
    let year = rest.bytes().take_while(u8::is_ascii_digit).count();
    year == 4 && rest[year..].starts_with(|letter: char| letter.is_uppercase() || "\n(\"',".contains(letter))
}

/// Questions as they are read.
#[derive(Default)]
struct Collected {
    asked: Vec<Read>,
}

/// A question with the texts of its documents.
struct Read {
    text: String,
    answers: Vec<String>,
    own: Vec<String>,
    related: Vec<String>,
}

impl Collected {
    fn add(&mut self, text: String, answers: Vec<String>, own: Vec<String>, related: Vec<String>) {
        self.asked.push(Read { text, answers, own, related });
    }

    /// The questions with numbers in the place of texts.
    fn questions(self, path: &Path, label: String) -> Result<Questions> {
        if self.asked.is_empty() {
            return Err(Error::usage(format!("{}: it has no question with an answer", path.display())));
        }
        let texts: BTreeSet<String> =
            self.asked.iter().flat_map(|read| read.own.iter().chain(&read.related)).cloned().collect();
        let numbers: BTreeMap<&String, usize> = texts.iter().enumerate().map(|(number, text)| (text, number)).collect();
        let of = |texts: &[String]| {
            let found: BTreeSet<usize> = texts.iter().filter_map(|text| numbers.get(text).copied()).collect();
            found.into_iter().collect()
        };
        let question = |read: &Read| Question {
            text: read.text.clone(),
            answers: read.answers.clone(),
            own: of(&read.own),
            related: of(&read.related),
        };
        let questions = self.asked.iter().map(question).collect();
        Ok(Questions { questions, documents: texts.iter().cloned().collect(), label })
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Error::usage(format!("{}: {error}", path.display())))
}

fn squad(path: &Path) -> Result<SquadFile> {
    let shown = path.display();
    serde_json::from_str(&read(path)?).map_err(|error| Error::usage(format!("{shown}: not in SQuAD's format: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let asked = Asked { suite: "ruler".to_owned(), ..Asked::default() };
        let said = Material::of(&asked).words().unwrap_err().to_string();
        assert!(said.contains("ruler/wordlists/adjectivelist.txt with --data DIR or TRIBUTARY_DATA"), "{said}");
        let folder = tempfile::tempdir().unwrap();
        let material = Material::of(&Asked { data: Some(folder.path().to_owned()), ..asked });
        let said = material.essay().unwrap_err().to_string();
        assert!(said.contains("has no ruler/xquad.en.json; or a text of your own with --essays FILE"), "{said}");
        assert!(
            material.several_hops().unwrap_err().to_string().contains("has no longbench/derived_hotpotqa_10p.jsonl")
        );
    }

    #[test]
    fn essays_begin_with_their_dates() {
        let text = "April 2012A nurse made a list in May 2001. He wrote.\nMay 2003If Lisp is so great,\nwhy? Thanks.June 2004\nAs he said in July 2005 too.";
        let wanted = [
            "April 2012A nurse made a list in May 2001. He wrote.\n",
            "May 2003If Lisp is so great,\nwhy? Thanks.",
            "June 2004\nAs he said in July 2005 too.",
        ];
        assert_eq!(essays_of(text), wanted);
        let plain: String = (0..64).map(|number| format!("Sentence {number} is here. ")).collect();
        let pieces = essays_of(&plain);
        assert_eq!((pieces.len(), pieces.concat()), (PIECES, plain.clone()));
    }

    #[test]
    fn parts_share_no_word_no_essay_and_no_article() {
        let folder = crate::kit::data();
        let text: String =
            (0..40).map(|number| format!("May {}It is essay {number}, no doubt. ", 1980 + number)).collect();
        std::fs::write(folder.path().join("ruler/essays.json"), serde_json::json!({"text": text.trim()}).to_string())
            .unwrap();
        let of = |part| {
            let split = Split { part, salt: "s".to_owned() };
            Material::of(&Asked { split, data: Some(folder.path().to_owned()), ..Asked::default() })
        };
        let parts = [of(crate::split::Part::Selection), of(crate::split::Part::Report)];
        let whole = of(crate::split::Part::All);
        let apart = |of: &dyn Fn(&Material) -> Vec<String>| {
            let [one, other] = parts.each_ref().map(of);
            assert!(!one.is_empty() && !other.is_empty());
            assert!(one.iter().all(|text| !other.contains(text)), "{one:?} {other:?}");
            (one.len() + other.len(), of(&whole).len())
        };
        let (parts, all) = apart(&|material| material.words().unwrap().nouns);
        assert_eq!(parts, all);
        assert_eq!(whole.essay().unwrap().label, "RULER's essays");
        apart(&|material| material.essay().unwrap().sentences);
        let (parts, all) = apart(&|material| material.squad().unwrap().documents);
        assert_eq!(parts, all);
        let (parts, all) = apart(&|material| {
            material.several_hops().unwrap().questions.into_iter().map(|question| question.text).collect()
        });
        assert_eq!(parts, all, "each row is in one part");
    }

    #[test]
    fn passages_that_answer_nothing_are_related() {
        let folder = tempfile::tempdir().unwrap();
        let context: String = (1..=4).map(|at| format!("Passage {at}:\nText {at}\n\n")).collect();
        let row = serde_json::json!({"input": "Q?", "context": context, "answers": ["a"], "needed": [2, 4]});
        std::fs::write(folder.path().join("derived_hotpotqa_dev.jsonl"), format!("{row}\n")).unwrap();
        let material = Material::of(&Asked { data: Some(folder.path().to_owned()), ..Asked::default() });
        let found = material.several_hops().unwrap();
        assert_eq!(found.documents, ["Text 1", "Text 2", "Text 3", "Text 4"]);
        assert_eq!((&found.questions[0].own[..], &found.questions[0].related[..]), (&[1, 3][..], &[0, 2][..]));
    }

    #[test]
    fn a_part_without_a_source_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"data": [{"title": "One", "paragraphs": [{"context": "A.", "qas": []}]}]}"#;
        std::fs::write(folder.path().join("xquad.en.json"), text).unwrap();
        let split = Split { part: crate::split::Part::Report, salt: "s".to_owned() };
        let material = Material::of(&Asked { split, data: Some(folder.path().to_owned()), ..Asked::default() });
        let said = material.squad().unwrap_err().to_string();
        assert!(said.ends_with("xquad.en.json has too few sources: 1 of the kind article"), "{said}");
    }

    #[test]
    fn files_of_the_users_own_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (essays, squad) = (folder.path().join("essays.txt"), folder.path().join("squad.json"));
        std::fs::write(&essays, "{\"text\": \"One two.\\n Three?  Four\"}").unwrap();
        let question = |id: u8, impossible: bool| {
            format!(
                "{{\"question\": \"q{id}\", \"answers\": [{{\"text\": \"a{id}\"}}], \"is_impossible\": {impossible}}}"
            )
        };
        let paragraph = |text: &str, of: String| format!("{{\"context\": \"{text}\", \"qas\": [{of}]}}");
        let paragraphs = [
            paragraph("B.", question(1, false)),
            paragraph("A.", question(2, true)),
            paragraph("C.", question(3, false)),
        ];
        std::fs::write(&squad, format!("{{\"data\": [{{\"paragraphs\": [{}]}}]}}", paragraphs.join(","))).unwrap();
        let asked = Asked { essays: Some(essays), squad: Some(squad), ..Asked::default() };
        let material = Material::of(&asked);
        assert_eq!(material.essay().unwrap().sentences, ["One two.", "Three?", "Four"]);
        let found = material.squad().unwrap();
        assert_eq!(found.documents, ["A.", "B.", "C."]);
        let first =
            Question { text: "q1".to_owned(), answers: vec!["a1".to_owned()], own: vec![1], related: vec![0, 2] };
        assert_eq!((found.questions.len(), &found.questions[0]), (2, &first));
    }
}
