//! What a reader of a study's numbers should know.

use super::scaling::is_full;
use super::schema::Study;
use crate::predicted::verdict;
use crate::rows::bytes_differ;

/// What a reader of predictions for so many ranks should know, by the profile's name and ranks (0: no profile).
pub fn profile_notes(profile: &str, ranks: usize, worlds: &[usize]) -> Vec<String> {
    let list = |wanted: &dyn Fn(usize) -> bool| -> Option<String> {
        let found: Vec<String> = worlds.iter().filter(|&&world| wanted(world)).map(usize::to_string).collect();
        (!found.is_empty()).then(|| found.join(", "))
    };
    let mut notes = Vec::new();
    if ranks == 0 {
        return notes;
    }
    if let Some(larger) = list(&|world| world > ranks) {
        notes.push(format!("profile {profile} has {ranks} ranks: no times are predicted for {larger}"));
    }
    if let Some(fewer) = list(&|world| world < ranks) {
        notes.push(format!(
            "profile {profile} has the rates of {ranks} ranks that all work; predictions for {fewer} use the same rates (for one rank \
             those of a rank that works alone, where the profile has them)"
        ));
    }
    notes
}

/// What a reader of the numbers should know.
pub fn notes(study: &Study) -> Vec<String> {
    let mut notes = vec![
        "TTFT from the request's acceptance to the first token; x full: full prefill's median over this one; efficiency \
         and Karp-Flatt beside the fewest ranks of the same method; bytes: payload of tensors, all ranks together, median \
         of the runs"
            .to_owned(),
    ];
    if study.points.iter().any(|point| point.shares_cores) {
        notes.push("*: more threads than cores: functional only, such times say nothing about scaling".to_owned());
    }
    if study.points.iter().any(|point| !point.samples.is_empty() && point.samples.len() < 6) {
        notes.push(
            "below 6 samples the interval is the range, which holds the median with less than 95 % (5: 93.75 %)"
                .to_owned(),
        );
    }
    if study.points.iter().all(|point| point.accuracy.is_none()) {
        notes.push("no accuracy: full prefill is not part of the study".to_owned());
    }
    notes.extend(profile_notes(&study.provenance.profile, study.provenance.profile_ranks, &study.design.worlds));
    notes.extend(verdict(study).map(|verdict| verdict.note()));
    let differ: Vec<&str> = study.points.iter().filter(|point| bytes_differ(point)).map(|point| &*point.id).collect();
    if !differ.is_empty() {
        notes.push(format!("bytes by formula and counted differ on a rank of a run: {}", differ.join("; ")));
    }
    let fewest = study.points.iter().filter(|point| is_full(point)).map(|point| point.world).min();
    if let Some(world) = fewest.filter(|&world| world > 1) {
        notes.push(format!("full prefill ran on one of {world} ranks; the others were idle"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::kit::{measured, study};
    use super::super::schema::RankSample;
    use super::*;

    #[test]
    fn a_difference_of_one_rank_in_one_run_is_noted() {
        let mut points = vec![measured("ring", 1024, 2, None, 60.0), measured("all-gather", 1024, 2, None, 60.0)];
        let rank = |received_bytes| RankSample { received_bytes, formula_bytes: 70, ..RankSample::default() };
        for sample in points.iter_mut().flat_map(|point| &mut point.samples) {
            sample.ranks = vec![rank(70); 2];
        }
        assert!(!notes(&study(points.clone())).join("\n").contains("differ"));
        // One too many here, one too few there: the sum is right.
        points[1].samples[3].ranks = vec![rank(71), rank(69)];
        let text = notes(&study(points)).join("\n");
        assert!(text.contains("differ on a rank of a run: all-gather tokens=1024 world=2"), "{text}");
    }

    #[test]
    fn notes_say_for_how_many_ranks_a_profile_is() {
        assert_eq!(profile_notes("none", 0, &[1, 2]), Vec::<String>::new());
        assert_eq!(profile_notes("here", 2, &[2]), Vec::<String>::new());
        let notes = profile_notes("here", 2, &[1, 2, 4, 8]);
        assert!(notes.len() == 2 && notes[0].ends_with("for 4, 8") && notes[1].contains("for 1 use"), "{notes:?}");
    }
}
