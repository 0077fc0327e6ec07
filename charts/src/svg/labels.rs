//! Names beside points: without overlaps of names and marks, each near its point or with a line to
//! it.

use super::{Anchor, Drawing};

/// Pixels of a letter, and of a line, in the class `small`.
const LETTER: f64 = 6.1;
const LINE: f64 = 13.0;

/// The most letters of a name that are drawn.
const LETTERS: usize = 34;

/// Pixels that marks take around their points, and that names keep from them at least.
const MARK: f64 = 6.0;
const NEAR: f64 = 9.0;

/// Distance in pixels from which on a line leads from a name to its point.
const LED: f64 = 14.0;

/// Steps outwards, and directions of each, in which a place is looked for.
const RINGS: usize = 48;
const RING: f64 = 6.0;
const DIRECTIONS: usize = 24;

/// A rectangle: left, top, right, bottom.
type Rectangle = (f64, f64, f64, f64);

/// Place of a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Label {
    /// Number of its point.
    pub point: usize,
    /// Drawn text, which may be the beginning of the name.
    pub text: String,
    /// Its middle.
    pub middle: (f64, f64),
    /// Left, top, right and bottom.
    pub bounds: Rectangle,
    /// A line from the point to the name, where they are apart.
    pub leader: Option<[(f64, f64); 2]>,
}

/// Places for names of points within a rectangle, found one after the other, each as near to its
/// point as the others leave room. A name without room has no place.
pub fn labels(names: &[(String, (f64, f64))], within: Rectangle) -> Vec<Label> {
    let marks: Vec<(f64, f64)> = names.iter().map(|(_, at)| *at).collect();
    // Those with most neighbours first: they have the fewest places.
    let neighbours =
        |at: (f64, f64)| marks.iter().filter(|other| (other.0 - at.0).hypot(other.1 - at.1) < 60.0).count();
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|&point| std::cmp::Reverse(neighbours(names[point].1)));
    let mut found: Vec<Label> = Vec::new();
    for point in order {
        let (name, at) = &names[point];
        let text = shortened(name);
        let places = || candidates(*at, LETTER * text.chars().count() as f64);
        let is_free = |place: &Place| place.is_free(within, &marks, &found);
        // A line across another name or line is better than no name.
        let place = places().find(|place| is_free(place) && !place.crosses(&found)).or_else(|| places().find(is_free));
        if let Some(Place { bounds, leader, .. }) = place {
            let middle = (f64::midpoint(bounds.0, bounds.2), f64::midpoint(bounds.1, bounds.3));
            found.push(Label { point, text, middle, bounds, leader });
        }
    }
    found
}

/// Draws names and their lines.
pub fn draw(drawing: &mut Drawing, labels: &[Label]) {
    for [from, to] in labels.iter().filter_map(|label| label.leader) {
        drawing.line(from, to, "leader");
    }
    for label in labels {
        drawing.text((label.middle.0, label.bounds.3 - 3.0), Anchor::Middle, "small", &label.text);
    }
}

/// A place that a name might have.
struct Place {
    bounds: Rectangle,
    leader: Option<[(f64, f64); 2]>,
}

/// Places around a point, the nearest first: to the right and left before above and below.
fn candidates((x, y): (f64, f64), width: f64) -> impl Iterator<Item = Place> {
    (0..RINGS).flat_map(move |ring| {
        (0..DIRECTIONS).map(move |step| {
            // 0, 1, -1, 2, -2 .. of half a turn, from the right and from the left in turn.
            let (side, turn) = (step % 2, step / 2);
            let turn = if turn.is_multiple_of(2) { (turn / 2) as f64 } else { -((turn / 2 + 1) as f64) };
            let angle = turn * std::f64::consts::TAU / DIRECTIONS as f64 + side as f64 * std::f64::consts::PI;
            let away = NEAR + RING * ring as f64;
            let (end_x, end_y) = (x + away * angle.cos(), y + away * angle.sin());
            let left = match angle.cos() {
                0.3.. => end_x,
                ..-0.3 => end_x - width,
                _ => end_x - width / 2.0,
            };
            let bounds = (left, end_y - LINE / 2.0, left + width, end_y + LINE / 2.0);
            let edge = (end_x.clamp(bounds.0, bounds.2), end_y);
            Place { bounds, leader: (away > LED).then_some([(x, y), edge]) }
        })
    })
}

impl Place {
    fn is_free(&self, within: Rectangle, marks: &[(f64, f64)], others: &[Label]) -> bool {
        let (left, top, right, bottom) = self.bounds;
        let is_inside = left >= within.0 && top >= within.1 && right <= within.2 && bottom <= within.3;
        let is_on = |&(x, y): &(f64, f64)| {
            x > left - MARK && x < right + MARK && y > top - MARK / 2.0 && y < bottom + MARK / 2.0
        };
        is_inside && !marks.iter().any(is_on) && !others.iter().any(|other| overlap(self.bounds, other.bounds))
    }

    /// Whether its line runs through another name, another's through it, or one through the other.
    fn crosses(&self, others: &[Label]) -> bool {
        others.iter().any(|other| {
            self.leader.is_some_and(|line| passes(line, other.bounds))
                || other.leader.is_some_and(|line| passes(line, self.bounds))
                || self.leader.zip(other.leader).is_some_and(|(one, other)| meet(one, other))
        })
    }
}

fn overlap(one: Rectangle, other: Rectangle) -> bool {
    one.0 < other.2 && other.0 < one.2 && one.1 < other.3 && other.1 < one.3
}

/// Whether a line passes through a rectangle.
fn passes(line: [(f64, f64); 2], (left, top, right, bottom): Rectangle) -> bool {
    let is_in = |(x, y): (f64, f64)| x > left && x < right && y > top && y < bottom;
    let corners = [(left, top), (right, top), (right, bottom), (left, bottom)];
    line.into_iter().any(is_in) || (0..4).any(|side| meet(line, [corners[side], corners[(side + 1) % 4]]))
}

/// Whether two lines cross, their ends apart.
fn meet([a, b]: [(f64, f64); 2], [c, d]: [(f64, f64); 2]) -> bool {
    let side = |p: (f64, f64), q: (f64, f64), r: (f64, f64)| (q.0 - p.0) * (r.1 - p.1) - (q.1 - p.1) * (r.0 - p.0);
    side(a, b, c) * side(a, b, d) < 0.0 && side(c, d, a) * side(c, d, b) < 0.0
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Rectangle = (66.0, 80.0, 598.0, 500.0);

    fn check(points: &[(String, (f64, f64))]) -> Vec<Label> {
        let found = labels(points, WITHIN);
        for (index, label) in found.iter().enumerate() {
            let (left, top, right, bottom) = label.bounds;
            assert!(left >= WITHIN.0 && top >= WITHIN.1 && right <= WITHIN.2 && bottom <= WITHIN.3, "{label:?}");
            for other in &found[..index] {
                assert!(!overlap(label.bounds, other.bounds), "{label:?} {other:?}");
            }
            for (_, (x, y)) in points {
                assert!(!(left..right).contains(x) || !(top..bottom).contains(y), "a mark at {x} {y}: {label:?}");
            }
        }
        found
    }

    #[test]
    fn twenty_names_in_a_heap_do_not_overlap() {
        // As methods with scores near 1 and times near each other: all within a few pixels.
        let heap: Vec<(String, (f64, f64))> = (0..20)
            .map(|index| {
                (
                    format!("method-{index} at 0.15"),
                    (560.0 + f64::from(index % 5) * 3.0, 95.0 + f64::from(index / 5) * 4.0),
                )
            })
            .collect();
        let found = check(&heap);
        assert_eq!(found.len(), 20, "every one has a place");
        assert!(found.iter().any(|label| label.leader.is_some()), "those pushed away have a line");
        for label in &found {
            let (x, y) = heap[label.point].1;
            assert!(label.leader.is_none_or(|[from, _]| from == (x, y)), "{label:?}");
        }
    }

    #[test]
    fn a_point_alone_has_its_name_right_beside_it() {
        let found = check(&[("ring".to_owned(), (200.0, 300.0)), ("full".to_owned(), (590.0, 300.0))]);
        let of = |point: usize| found.iter().find(|label| label.point == point).unwrap();
        assert!(of(0).leader.is_none() && of(0).bounds.0 == 200.0 + NEAR, "{found:?}");
        assert!(
            of(1).leader.is_none() && (of(1).bounds.2 - (590.0 - NEAR)).abs() < 1e-6,
            "no room to the right: {found:?}"
        );
    }

    #[test]
    fn where_there_is_no_room_there_is_no_name() {
        let many: Vec<(String, (f64, f64))> =
            (0..200).map(|index| (format!("a long name {index}"), (300.0, 300.0))).collect();
        let found = check(&many);
        assert!(found.len() > 30 && found.len() < 200, "{}", found.len());
        assert_eq!(labels(&[("x".repeat(90), (100.0, 100.0))], WITHIN)[0].text.chars().count(), LETTERS + 1);
    }

    #[test]
    fn lines_meet_or_do_not() {
        assert!(meet([(0.0, 0.0), (10.0, 10.0)], [(0.0, 10.0), (10.0, 0.0)]));
        assert!(!meet([(0.0, 0.0), (4.0, 4.0)], [(0.0, 10.0), (10.0, 0.0)]));
        assert!(passes([(0.0, 5.0), (20.0, 5.0)], (5.0, 0.0, 10.0, 10.0)));
        assert!(!passes([(0.0, 15.0), (20.0, 15.0)], (5.0, 0.0, 10.0, 10.0)));
    }
}
