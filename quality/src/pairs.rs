//! The suite `pairs`: short English documents. In one task one document refers to another; in the
//! other none does, and their order carries the answer. It measures how sharply a model reads a
//! reference between documents, for [`crate::calibrate`]. Any model that reads English can answer
//! its questions.

use crate::design::{Asked, chosen};
use crate::error::Result;
use crate::random::Random;
use crate::score::Metric;
use crate::suite::{Cell, Measure, Sample, Scoring, Suite};

/// A document names a place, another one says where that is.
const REFER: &str = "refer";
/// Documents each name one thing, and are asked for in their order.
const APART: &str = "apart";

/// Documents of a request.
const DOCUMENTS: usize = 6;
/// Other sentences of a document.
const OTHERS: usize = 5;
/// Things that are asked for in their order.
const THINGS: usize = 3;
/// Tokens of the answer, at most.
const ANSWER_TOKENS: usize = 24;

const PEOPLE: [&str; 24] = [
    "Adele", "Bruno", "Clara", "Dmitri", "Elsa", "Farid", "Greta", "Hanno", "Irina", "Jonas", "Keiko", "Lorenz",
    "Marta", "Nils", "Olga", "Pavel", "Quirin", "Rosa", "Stefan", "Tamar", "Ulrike", "Viktor", "Wanda", "Yusuf",
];
const NAMES: [&str; 16] = [
    "Alder", "Birch", "Cedar", "Elm", "Falcon", "Garnet", "Heron", "Ivory", "Juniper", "Lantern", "Marble", "Orchid",
    "Raven", "Silver", "Thistle", "Willow",
];
const PLACES: [&str; 6] = ["Library", "Workshop", "Theatre", "Archive", "Clinic", "Bakery"];
const CITIES: [&str; 16] = [
    "Athens", "Bergen", "Cairo", "Dublin", "Florence", "Geneva", "Havana", "Istanbul", "Kyoto", "Lisbon", "Madrid",
    "Naples", "Oslo", "Prague", "Riga", "Vienna",
];
const WARES: [&str; 16] = [
    "apples", "bread", "candles", "dates", "figs", "honey", "ink", "lemons", "nails", "olives", "paper", "rice",
    "salt", "soap", "tea", "wool",
];
const FILLER: [&str; 12] = [
    "The morning was cold and the streets were still empty.",
    "Nobody had expected the winter to last so long.",
    "A small boat drifted slowly along the river.",
    "The clock above the door had stopped years ago.",
    "Later in the day the rain became lighter.",
    "Two dogs slept in the shade of the old wall.",
    "The road climbs gently before it turns north.",
    "Most of the windows were open that evening.",
    "A child counted the steps aloud.",
    "The wind carried the smell of the sea.",
    "On the table lay a letter without a stamp.",
    "The lamps were lit one after the other.",
];

/// The tasks that were asked for, from a seed.
struct Pairs {
    tasks: Vec<String>,
    seed: u64,
}

/// The suite as it was asked for.
///
/// # Errors
/// Returns an error if the task is unknown.
pub fn open(asked: &Asked) -> Result<Box<dyn Suite>> {
    Ok(Box::new(Pairs { tasks: chosen("pairs", &asked.tasks, &[REFER, APART])?, seed: asked.seed }))
}

/// Draws for a request, each thing once.
struct Draw {
    random: Random,
    people: Vec<&'static str>,
    places: Vec<String>,
    cities: Vec<&'static str>,
    wares: Vec<&'static str>,
}

impl Draw {
    fn new(mut random: Random) -> Self {
        let places = random.some_of(&NAMES, NAMES.len());
        let places = places.into_iter().map(|name| format!("{name} {}", random.one_of(&PLACES))).collect();
        Self {
            people: random.some_of(&PEOPLE, PEOPLE.len()),
            places,
            cities: random.some_of(&CITIES, CITIES.len()),
            wares: random.some_of(&WARES, WARES.len()),
            random,
        }
    }

    fn person(&mut self) -> &'static str {
        self.people.pop().expect("a request has fewer people")
    }

    fn place(&mut self) -> String {
        self.places.pop().expect("a request has fewer places")
    }

    fn city(&mut self) -> &'static str {
        self.cities.pop().expect("a request has fewer cities")
    }

    fn ware(&mut self) -> &'static str {
        self.wares.pop().expect("a request has fewer wares")
    }

    /// Sentences that are needed nowhere: filler, and now and then a fact of its kind about another
    /// person or thing.
    fn other(&mut self) -> String {
        match self.random.below(8) {
            0 if self.people.len() > 4 => {
                let (person, ware) = (self.person(), self.random.one_of(&WARES));
                format!("{person} sold {ware} at the fair.")
            }
            1 if self.cities.len() > 4 && self.places.len() > 4 => {
                let (place, city) = (self.place(), self.city());
                format!("The {place} is in {city}.")
            }
            _ => self.random.one_of(&FILLER).to_owned(),
        }
    }

    /// A document with the facts that it has to have, somewhere among others.
    fn document(&mut self, facts: &[String]) -> String {
        let mut sentences: Vec<String> = (0..OTHERS).map(|_| self.other()).collect();
        for fact in facts {
            let at = self.random.below(sentences.len() + 1);
            sentences.insert(at, fact.clone());
        }
        sentences.join(" ")
    }
}

/// The documents of a request, in their order; its question; the names in a right answer.
fn made(task: &str, seed: u64, number: usize) -> (Vec<String>, String, Vec<String>) {
    let mut draw = Draw::new(Random::of(&format!("pairs {seed} {task} {number}")));
    let person = draw.person();
    let (facts, question, references) = if task == REFER {
        let (place, city) = (draw.place(), draw.city());
        let mut facts = vec![format!("The {place} is in {city}."), format!("{person} works at the {place}.")];
        draw.random.shuffle(&mut facts); // which of them comes first
        (facts, format!("Question: In which city does {person} work?\nAnswer:"), vec![city.to_owned()])
    } else {
        let wares: Vec<&str> = (0..THINGS).map(|_| draw.ware()).collect();
        let facts = wares.iter().map(|ware| format!("{person} bought {ware}.")).collect();
        let question = format!("Question: What did {person} buy first, second and third?\nAnswer:");
        (facts, question, wares.into_iter().map(str::to_owned).collect())
    };
    let mut places = draw.random.some_of(&(0..DOCUMENTS).collect::<Vec<_>>(), facts.len());
    places.sort_unstable();
    let of = |place: usize| -> Vec<String> {
        places.iter().zip(&facts).filter(|(own, _)| **own == place).map(|(_, fact)| fact.clone()).collect()
    };
    let documents = (0..DOCUMENTS).map(|place| draw.document(&of(place))).collect();
    (documents, question, references)
}

impl Suite for Pairs {
    fn made_of(&self) -> Vec<String> {
        vec![format!("sentences of Tributary's own; {DOCUMENTS} documents a request")]
    }

    fn cells(&self) -> Vec<Cell> {
        self.tasks.iter().map(|task| Cell::of(task)).collect()
    }

    fn refers(&self, task: &str) -> Option<bool> {
        Some(task == REFER)
    }

    fn sample(&self, cell: &Cell, number: usize, _measure: &Measure<'_>) -> Result<Sample> {
        let (documents, query, references) = made(&cell.task, self.seed, number);
        Ok(Sample {
            lead: String::new(),
            chunks: documents,
            query,
            begun: String::new(),
            uses_template: true,
            scoring: Scoring { first_line: true, ..Scoring::new(Metric::MatchAll, references) },
            answer_tokens: ANSWER_TOKENS,
            id: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one document with a fact about a person or thing.
    fn only<'a>(documents: &'a [String], word: &str) -> (usize, &'a str) {
        let found: Vec<usize> = (0..documents.len()).filter(|&at| documents[at].contains(word)).collect();
        assert_eq!(found.len(), 1, "`{word}` in {documents:?}");
        (found[0], &documents[found[0]])
    }

    fn after<'a>(text: &'a str, words: &str) -> &'a str {
        let from = text.find(words).expect("the words are there") + words.len();
        text[from..].split('.').next().expect("a sentence ends")
    }

    #[test]
    fn an_answer_follows_from_two_documents_in_either_order() {
        let mut orders = [0, 0];
        for number in 0..100 {
            let (documents, question, references) = made(REFER, 3, number);
            assert_eq!(documents.len(), DOCUMENTS);
            let person = question.split_whitespace().nth(5).expect("a name");
            let (refers, text) = only(&documents, &format!("{person} works at the "));
            let place = after(text, &format!("{person} works at the "));
            let (is_defined, text) = only(&documents, &format!("The {place} is in "));
            assert_eq!([after(text, &format!("The {place} is in "))], references[..], "{documents:?}");
            assert_ne!(refers, is_defined);
            orders[usize::from(refers < is_defined)] += 1;
        }
        assert!(orders.iter().all(|&count| count > 30), "{orders:?}");
    }

    #[test]
    fn a_list_stands_in_documents_apart_in_its_order() {
        for number in 0..100 {
            let (documents, question, references) = made(APART, 3, number);
            let person = question.split_whitespace().nth(3).expect("a name");
            let bought = format!("{person} bought ");
            let said: Vec<&str> =
                documents.iter().filter(|text| text.contains(&bought)).map(|text| after(text, &bought)).collect();
            assert_eq!(said, references, "{documents:?}");
        }
    }

    #[test]
    fn requests_follow_from_their_number() {
        assert_eq!(made(REFER, 1, 5), made(REFER, 1, 5));
        assert_ne!(made(REFER, 1, 5), made(REFER, 2, 5));
        assert_ne!(made(APART, 1, 5), made(APART, 1, 6));
    }
}
