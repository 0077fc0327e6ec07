//! The words of the demo language: those of `examples/models/demo/recipe/tasks.py`, from which the
//! demo model's tokenizer is made.

/// Keys of codes.
pub const KEYS: &str = "lamp river table engine garden mirror basket candle bridge anchor barrel bottle button camera carpet castle \
    chimney clock coin compass crown curtain drum fence feather flag flute fork glove hammer harp helmet jar kettle key kite ladder \
    lantern lens locker magnet map mask needle net oar paddle pearl pen piano pillow pipe plate purse quilt ring rope saddle sail \
    scarf shield spoon statue";

/// People.
pub const NAMES: &str = "alice john mary peter susan david laura james emma oliver sophia henry anna george clara frank helen ivan \
    julia kevin linda martin nina oscar paula quentin rosa simon tina victor wendy xavier yara zack bruno carla derek elena felix \
    greta hugo irene jonas karen leo mona noah olga pablo rita samuel teresa ursula vera walter adam bella cyrus diana edgar fiona \
    gavin hazel ian jade kyle lena marco nora otto pia ralph stella tom uma vince willa";

/// Cities.
pub const CITIES: &str = "london paris rome berlin madrid vienna prague lisbon dublin oslo athens cairo delhi tokyo seoul lima quito \
    boston denver miami dallas austin geneva milan turin lyon porto bergen kyoto osaka hanoi manila";

/// First and second letters of variables, which begin with a `v`.
const VARIABLES: (&str, &str) = ("bcdfgklm", "aeiouyxz");

/// Colours.
pub const COLOURS: &str = "red blue green yellow black white orange purple brown pink gray silver gold violet amber coral ivory olive \
    teal navy crimson indigo lime maroon beige bronze copper cyan khaki lilac ruby jadegreen";

/// Fruits.
pub const FRUITS: &str = "apple banana cherry grape lemon mango melon peach pear plum kiwi fig date lychee papaya guava quince apricot \
    nectarine coconut raspberry blueberry cranberry pineapple pomegranate tangerine walnut almond cashew hazelnut pecan peanut";

/// Words of sentences that say nothing.
pub const ADJECTIVES: &str = "small quiet old young happy tired brave clever gentle noisy";
/// As above.
pub const ANIMALS: &str = "dog cat horse bird fox wolf rabbit turtle sheep goat";
/// As above.
pub const VERBS: &str = "sleeps runs waits plays sings walks rests jumps hides sits";
/// As above.
pub const PLACES: &str = "tree lake hill road wall gate farm forest field barn";

/// Function words of sentences.
const FRAME: &str = "passage the code of is house in stays with let = likes question : codes ? answer . near a and today it rains slowly";

/// Digits.
pub const DIGITS: &str = "0 1 2 3 4 5 6 7 8 9";

/// The words of a list.
pub fn list(words: &'static str) -> Vec<&'static str> {
    words.split_whitespace().collect()
}

/// The variables, one word each.
pub fn variables() -> Vec<String> {
    let (first, second) = VARIABLES;
    first.chars().flat_map(|a| second.chars().map(move |b| format!("v{a}{b}"))).collect()
}

/// Every word of the language.
pub fn all() -> Vec<String> {
    let lists = [FRAME, DIGITS, KEYS, NAMES, CITIES, COLOURS, FRUITS, ADJECTIVES, ANIMALS, VERBS, PLACES];
    let words = lists.into_iter().flat_map(list).map(str::to_owned);
    words.chain(variables()).collect()
}
