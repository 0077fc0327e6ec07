//! The distractors of the demo language: facts said so far, while sentences are written one after
//! the other, so that later ones can refer to them. Facts are of different subjects, and a
//! definition precedes its references.

use super::words;
use crate::random::Random;

/// The most references between a variable and its colour.
const MOST_REFERENCES: usize = 3;

/// Maximum number of fruits that a person likes.
const MOST_FRUITS: usize = 4;

/// A kind of sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `code of KEY is D D D .`
    Code,
    /// `house of NAME in CITY .`
    House,
    /// `NAME stays with NAME .`, of a person whose house is known; else as `House`.
    Stay,
    /// `let VARIABLE = COLOUR .`
    Let,
    /// `let VARIABLE = VARIABLE .`; where none is known, as `Let`.
    Reference,
    /// `NAME likes FRUIT .`
    Like,
}

/// A fact that has been said, and can be taken back while it is the last one.
pub struct Fact {
    /// The sentence.
    pub text: String,
    remembered: Remembered,
}

enum Remembered {
    Nothing,
    House,
    Variable,
    /// Of the person at this place.
    Fruit(usize),
}

struct Variable {
    name: String,
    references: usize,
}

struct Person {
    name: &'static str,
    fruits: Vec<&'static str>,
}

/// Subjects that are left, and facts that can be referred to.
pub struct World {
    keys: Vec<&'static str>,
    names: Vec<&'static str>,
    variables: Vec<String>,
    houses: Vec<&'static str>,
    lets: Vec<Variable>,
    likes: Vec<Person>,
}

/// `code of KEY is D D D .`
pub fn code(key: &str, digits: &str) -> String {
    format!("code of {key} is {digits} .")
}

/// `house of NAME in CITY .`
pub fn house(name: &str, city: &str) -> String {
    format!("house of {name} in {city} .")
}

/// `NAME stays with NAME .`
pub fn stay(name: &str, host: &str) -> String {
    format!("{name} stays with {host} .")
}

/// `let VARIABLE = VALUE .`
pub fn let_be(variable: &str, value: &str) -> String {
    format!("let {variable} = {value} .")
}

/// `NAME likes FRUIT .`
pub fn like(name: &str, fruit: &str) -> String {
    format!("{name} likes {fruit} .")
}

/// Three digits.
pub fn digits(random: &mut Random) -> String {
    let all = words::list(words::DIGITS);
    [(); 3].map(|()| random.one_of(&all)).join(" ")
}

/// A sentence that says nothing.
pub fn filler(random: &mut Random) -> String {
    let mut one = |list| random.one_of(&words::list(list));
    let (adjective, animal, other) = (one(words::ADJECTIVES), one(words::ANIMALS), one(words::ANIMALS));
    let (verb, place) = (one(words::VERBS), one(words::PLACES));
    match random.below(20) {
        0..10 => format!("the {adjective} {animal} {verb} near the {place} ."),
        10..15 => format!("a {animal} {verb} ."),
        15..18 => "it rains slowly today .".to_owned(),
        _ => format!("the {animal} and the {other} {verb} ."),
    }
}

impl World {
    /// Nothing has been said yet.
    pub fn new(random: &mut Random) -> Self {
        let mut mixed = |list| {
            let mut all = words::list(list);
            random.shuffle(&mut all);
            all
        };
        let (keys, names) = (mixed(words::KEYS), mixed(words::NAMES));
        let mut variables = words::variables();
        random.shuffle(&mut variables);
        Self { keys, names, variables, houses: Vec::new(), lets: Vec::new(), likes: Vec::new() }
    }

    /// A key that nothing is said of elsewhere.
    ///
    /// # Panics
    /// After more than there are, which only a bug asks for before a distractor is said.
    pub fn take_key(&mut self) -> &'static str {
        self.keys.pop().expect("a key is left")
    }

    /// A name, as above.
    ///
    /// # Panics
    /// As above.
    pub fn take_name(&mut self) -> &'static str {
        self.names.pop().expect("a name is left")
    }

    /// A variable, as above.
    ///
    /// # Panics
    /// As above.
    pub fn take_variable(&mut self) -> String {
        self.variables.pop().expect("a variable is left")
    }

    /// Says a fact of a kind; nothing where no subject is left for it.
    pub fn say(&mut self, kind: Kind, random: &mut Random) -> Option<Fact> {
        match kind {
            Kind::Code => {
                let text = code(self.keys.pop()?, &digits(random));
                Some(Fact { text, remembered: Remembered::Nothing })
            }
            Kind::House => self.house(random),
            Kind::Stay => self.stay(random).or_else(|| self.house(random)),
            Kind::Let => self.variable(random),
            Kind::Reference => self.reference(random).or_else(|| self.variable(random)),
            Kind::Like => self.like(random),
        }
    }

    /// Takes the last sentence back.
    pub fn forget(&mut self, fact: &Fact) {
        match fact.remembered {
            Remembered::Nothing => {}
            Remembered::House => {
                self.houses.pop();
            }
            Remembered::Variable => {
                self.lets.pop();
            }
            Remembered::Fruit(place) => {
                self.likes[place].fruits.pop();
                if self.likes[place].fruits.is_empty() {
                    self.likes.remove(place);
                }
            }
        }
    }

    fn house(&mut self, random: &mut Random) -> Option<Fact> {
        let name = self.names.pop()?;
        self.houses.push(name);
        let city = random.one_of(&words::list(words::CITIES));
        Some(Fact { text: house(name, city), remembered: Remembered::House })
    }

    fn stay(&mut self, random: &mut Random) -> Option<Fact> {
        if self.houses.is_empty() {
            return None;
        }
        let name = self.names.pop()?;
        let host = random.one_of(&self.houses);
        Some(Fact { text: stay(name, host), remembered: Remembered::Nothing })
    }

    fn variable(&mut self, random: &mut Random) -> Option<Fact> {
        let name = self.variables.pop()?;
        let colour = random.one_of(&words::list(words::COLOURS));
        let text = let_be(&name, colour);
        self.lets.push(Variable { name, references: 0 });
        Some(Fact { text, remembered: Remembered::Variable })
    }

    /// A reference; half of the time to one of the third with the most references so far.
    fn reference(&mut self, random: &mut Random) -> Option<Fact> {
        let mut open: Vec<&Variable> = self.lets.iter().filter(|known| known.references < MOST_REFERENCES).collect();
        if open.is_empty() || self.variables.is_empty() {
            return None;
        }
        if random.happens(0.5) {
            open.sort_by_key(|known| std::cmp::Reverse(known.references));
            open.truncate((open.len() / 3).max(1));
        }
        let known = random.one_of(&open);
        let references = known.references + 1;
        let known = known.name.clone();
        let name = self.variables.pop()?;
        let text = let_be(&name, &known);
        self.lets.push(Variable { name, references });
        Some(Fact { text, remembered: Remembered::Variable })
    }

    /// In six of ten cases a person who likes something already, if there is one.
    fn like(&mut self, random: &mut Random) -> Option<Fact> {
        let fruits = words::list(words::FRUITS);
        let open: Vec<usize> = (0..self.likes.len()).filter(|&at| self.likes[at].fruits.len() < MOST_FRUITS).collect();
        if !open.is_empty() && random.happens(0.6) {
            let place = random.one_of(&open);
            let person = &mut self.likes[place];
            let others: Vec<&str> = fruits.into_iter().filter(|fruit| !person.fruits.contains(fruit)).collect();
            let fruit = random.one_of(&others);
            person.fruits.push(fruit);
            return Some(Fact { text: like(person.name, fruit), remembered: Remembered::Fruit(place) });
        }
        let name = self.names.pop()?;
        let fruit = random.one_of(&fruits);
        self.likes.push(Person { name, fruits: vec![fruit] });
        let place = self.likes.len() - 1;
        Some(Fact { text: like(name, fruit), remembered: Remembered::Fruit(place) })
    }
}
