//! Words and sentences of the suite. `{p}` stands for a person, `{x}` for a thing, `{y}` for what
//! is said about it.

use crate::material::MONTHS;

/// One document refers to a thing, another one says something about it.
pub struct Refer {
    /// Sentences with person and thing.
    pub refers: [&'static str; 2],
    /// Sentences with thing and value.
    pub says: [&'static str; 2],
    /// The question about a person.
    pub question: &'static str,
    /// The values.
    pub values: &'static [&'static str],
}

/// Documents name one thing of a person each.
pub struct Apart {
    /// Sentences with person and value.
    pub says: [&'static str; 2],
    /// The question about a person.
    pub question: &'static str,
    /// The values.
    pub values: &'static [&'static str],
}

impl Refer {
    /// A sentence in which a person refers to a thing.
    pub fn refers_to(&self, sentence: &str, person: &str, thing: &str) -> String {
        sentence.replace("{p}", person).replace("{x}", thing)
    }

    /// A sentence about a thing.
    pub fn says(&self, sentence: &str, thing: &str, value: &str) -> String {
        sentence.replace("{x}", thing).replace("{y}", value)
    }
}

/// People.
pub const PEOPLE: [&str; 48] = [
    "Adele", "Bruno", "Clara", "Dmitri", "Elsa", "Farid", "Greta", "Hanno", "Irina", "Jonas", "Keiko", "Lorenz",
    "Marta", "Nils", "Olga", "Pavel", "Quirin", "Rosa", "Stefan", "Tamar", "Ulrike", "Viktor", "Wanda", "Yusuf",
    "Agnes", "Boris", "Celia", "David", "Edith", "Felix", "Gloria", "Henry", "Iris", "Jakob", "Karin", "Laura",
    "Martin", "Nadia", "Oscar", "Paula", "Ralph", "Sonja", "Thomas", "Ursula", "Victor", "Walter", "Xenia", "Yvonne",
];

/// Names of things.
pub const NAMES: [&str; 40] = [
    "Alder", "Birch", "Cedar", "Elm", "Falcon", "Garnet", "Heron", "Ivory", "Juniper", "Lantern", "Marble", "Orchid",
    "Raven", "Silver", "Thistle", "Willow", "Amber", "Beacon", "Copper", "Dolphin", "Ember", "Fern", "Granite",
    "Harbour", "Indigo", "Jasper", "Kestrel", "Laurel", "Maple", "Nettle", "Opal", "Poplar", "Quartz", "Robin",
    "Saffron", "Tulip", "Umber", "Violet", "Walnut", "Yarrow",
];

/// Kinds of things.
pub const KINDS: [&str; 6] = ["Library", "Workshop", "Theatre", "Archive", "Clinic", "Bakery"];

const CITIES: [&str; 16] = [
    "Athens", "Bergen", "Cairo", "Dublin", "Florence", "Geneva", "Havana", "Istanbul", "Kyoto", "Lisbon", "Madrid",
    "Naples", "Oslo", "Prague", "Riga", "Vienna",
];
const WARES: [&str; 16] = [
    "apples", "bread", "candles", "dates", "figs", "honey", "ink", "lemons", "nails", "olives", "paper", "rice",
    "salt", "soap", "tea", "wool",
];
const COLOURS: [&str; 12] =
    ["red", "blue", "green", "yellow", "orange", "purple", "black", "white", "brown", "grey", "pink", "silver"];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const INSTRUMENTS: [&str; 10] =
    ["violin", "piano", "flute", "trumpet", "guitar", "harp", "cello", "drums", "clarinet", "organ"];
const ANIMALS: [&str; 10] =
    ["goats", "ducks", "sheep", "horses", "rabbits", "geese", "bees", "pigeons", "donkeys", "ponies"];

/// Sentences that are needed nowhere: a subject, a verb, an end.
pub const FILLERS: [&[&str]; 3] = [&SUBJECTS, &VERBS, &ENDS];
const SUBJECTS: [&str; 12] = [
    "An old gardener",
    "The night watchman",
    "A girl in a blue coat",
    "The postman",
    "A tired traveller",
    "The baker's son",
    "A small dog",
    "The ferryman",
    "A stranger",
    "The youngest clerk",
    "A pair of tourists",
    "The neighbour",
];
const VERBS: [&str; 12] = [
    "waited",
    "stood for a while",
    "talked quietly",
    "read the newspaper",
    "looked for an umbrella",
    "drank a cup of coffee",
    "counted the steps",
    "listened to the radio",
    "watched the boats",
    "swept the floor",
    "told a long story",
    "rested",
];
const ENDS: [&str; 12] = [
    "behind the station",
    "near the fountain",
    "under the old bridge",
    "on the wooden bench",
    "beside the river",
    "in front of the church",
    "until it grew dark",
    "while the rain fell",
    "before the shops opened",
    "after a long walk",
    "in the corner of the yard",
    "at the end of the street",
];

/// Templates of references.
pub static REFERS: [Refer; 8] = [
    Refer {
        refers: ["{p} works at the {x}.", "{p} has found work at the {x}."],
        says: ["The {x} is in {y}.", "The {x} stands in the middle of {y}."],
        question: "In which city does {p} work? Answer with the name of the city.",
        values: &CITIES,
    },
    Refer {
        refers: ["{p} sent a parcel to the {x}.", "The parcel from {p} went to the {x}."],
        says: ["The {x} opens parcels on {y}.", "Parcels are opened on {y} at the {x}."],
        question: "On which day will the parcel from {p} be opened? Answer with the day.",
        values: &DAYS,
    },
    Refer {
        refers: ["{p} painted a wall of the {x}.", "A wall of the {x} was painted by {p}."],
        says: ["The walls of the {x} are {y}.", "Every wall of the {x} is {y}."],
        question: "Which colour has the wall that {p} painted? Answer with the colour.",
        values: &COLOURS,
    },
    Refer {
        refers: ["{p} signed a contract with the {x}.", "The contract of {p} is with the {x}."],
        says: ["Contracts with the {x} end in {y}.", "The {x} ends its contracts in {y}."],
        question: "In which month does the contract of {p} end? Answer with the month.",
        values: &MONTHS,
    },
    Refer {
        refers: ["{p} takes lessons at the {x}.", "{p} goes to lessons at the {x}."],
        says: ["Lessons at the {x} are about the {y}.", "The {x} gives lessons for the {y}."],
        question: "Which instrument does {p} learn? Answer with the name of the instrument.",
        values: &INSTRUMENTS,
    },
    Refer {
        refers: ["{p} buys everything at the {x}.", "{p} does all the shopping at the {x}."],
        says: ["The {x} sells nothing but {y}.", "Only {y} can be bought at the {x}."],
        question: "What does {p} buy? Answer with what is sold there.",
        values: &WARES,
    },
    Refer {
        refers: ["{p} feeds the animals of the {x}.", "The animals of the {x} are fed by {p}."],
        says: ["The {x} keeps {y} in its yard.", "The animals of the {x} are {y}."],
        question: "Which animals does {p} feed? Answer with the kind of animal.",
        values: &ANIMALS,
    },
    Refer {
        refers: ["{p} lives above the {x}.", "The flat of {p} is above the {x}."],
        says: ["The {x} moved to {y} last year.", "Since last year the {x} has been in {y}."],
        question: "In which city does {p} live? Answer with the name of the city.",
        values: &CITIES,
    },
];

/// Templates of lists.
pub static APARTS: [Apart; 6] = [
    Apart {
        says: ["{p} bought {y}.", "Then {p} bought {y}."],
        question: "Which three things did {p} buy, in their order? Answer with a list of three.",
        values: &WARES,
    },
    Apart {
        says: ["{p} travelled to {y}.", "Then {p} travelled to {y}."],
        question: "Which three cities did {p} travel to, in their order? Answer with a list of three.",
        values: &CITIES,
    },
    Apart {
        says: ["{p} painted a door in {y}.", "Then {p} painted a door in {y}."],
        question: "Which three colours did {p} use, in their order? Answer with a list of three.",
        values: &COLOURS,
    },
    Apart {
        says: ["{p} learned to play the {y}.", "Then {p} learned to play the {y}."],
        question: "Which three instruments did {p} learn, in their order? Answer with a list of three.",
        values: &INSTRUMENTS,
    },
    Apart {
        says: ["{p} fed the {y}.", "Then {p} fed the {y}."],
        question: "Which three kinds of animals did {p} feed, in their order? Answer with a list of three.",
        values: &ANIMALS,
    },
    Apart {
        says: ["{p} wrote a letter in {y}.", "Then {p} wrote a letter in {y}."],
        question: "In which three months did {p} write letters, in their order? Answer with a list of three.",
        values: &MONTHS,
    },
];
