//! Texts and words that are not part of the program: from a folder of data that the user names, or
//! from the user's own files. An error names missing material and the option that gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cut::sentences;
use crate::design::Asked;
use crate::error::{Error, Result};
use crate::passages::passages;

/// Places of material.
#[derive(Debug, Clone)]
pub struct Material {
    suite: String,
    data: Option<PathBuf>,
    essays: Option<PathBuf>,
    squad: Option<PathBuf>,
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
}

impl Material {
    /// Places of a suite's material.
    pub fn of(asked: &Asked) -> Self {
        let Asked { suite, data, essays, squad, .. } = asked.clone();
        Self { suite, data, essays, squad }
    }

    /// Lists of English words.
    ///
    /// # Errors
    /// Returns an error if there is no data folder, if it has no list, or if a list has no word.
    pub fn words(&self) -> Result<Words> {
        let list = |name: &str| -> Result<Vec<String>> {
            let path = self.find("words", &format!("ruler/wordlists/{name}.txt"), "")?;
            let text = read(&path)?;
            let words: Vec<String> =
                text.lines().map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect();
            match words.is_empty() {
                true => Err(Error::usage(format!("{}: it has no words", path.display()))),
                false => Ok(words),
            }
        };
        let (adjectives, nouns, verbs) = (list("adjectivelist")?, list("nounlist")?, list("verblist")?);
        let all: BTreeSet<&String> = adjectives.iter().chain(&nouns).chain(&verbs).collect();
        Ok(Words { all: all.into_iter().cloned().collect(), adjectives, nouns })
    }

    /// The text of haystacks: the user's own, or paragraphs of XQuAD.
    ///
    /// # Errors
    /// Returns an error if both are missing, or if a file cannot be read or has no sentence.
    pub fn essay(&self) -> Result<Essay> {
        let (text, label) = match &self.essays {
            Some(path) => {
                let text = read(path)?;
                let text = serde_json::from_str::<EssayFile>(&text).map_or(text, |file| file.text);
                (text, format!("{} (--essays)", path.display()))
            }
            None => {
                let path = self.find(
                    "text for haystacks",
                    "ruler/xquad.en.json",
                    "; or a text of your own with --essays FILE",
                )?;
                let paragraphs = squad(&path)?.data.into_iter().flat_map(|article| article.paragraphs);
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

    /// Questions about paragraphs: the user's own SQuAD, or XQuAD's.
    ///
    /// # Errors
    /// Returns an error if both are missing, or if a file is in another format or has no question.
    pub fn squad(&self) -> Result<Questions> {
        let (path, label) = match &self.squad {
            Some(path) => (path.clone(), format!("{} (--squad)", path.display())),
            None => {
                let path = self.find("questions", "ruler/xquad.en.json", "; or SQuAD itself with --squad FILE")?;
                (path, "XQuAD (English), which is a part of SQuAD's development set".to_owned())
            }
        };
        let mut found = Collected::default();
        for article in squad(&path)?.data {
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
        const FILES: [(&str, &str); 2] =
            [("derived_hotpotqa_10p", "HotpotQA"), ("derived_musique_cacheblend", "MuSiQue")];
        let there = FILES.into_iter().find_map(|(file, of)| Some((self.look(&format!("longbench/{file}.jsonl"))?, of)));
        let Some((path, of)) = there else {
            return Err(self.missing("questions of several hops", &format!("longbench/{}.jsonl", FILES[0].0), ""));
        };
        let mut found = Collected::default();
        for (index, line) in read(&path)?.lines().enumerate() {
            let row: QuestionRow = serde_json::from_str(line)
                .map_err(|error| Error::usage(format!("{}, line {}: {error}", path.display(), index + 1)))?;
            let own = passages(&row.context).unwrap_or_else(|| vec![row.context.as_str()]);
            let own = own.into_iter().map(|passage| passage.trim_end().to_owned()).collect();
            found.add(row.input, row.answers, own, Vec::new());
        }
        found.questions(&path, format!("rows derived from {of}"))
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
