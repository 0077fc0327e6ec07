//! Notes for a reader of a study's numbers.

use super::scaling::is_full;
use super::schema::{Sample, Study};
use crate::predicted::verdict;
use crate::rows::bytes_differ;

/// Share of all processors' time from which on the load of others is reported.
const MUCH: f64 = 0.10;

/// Notes for a reader of predictions for these numbers of ranks, by the profile's name and ranks
/// (0: no profile).
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

/// Notes for a reader of the numbers.
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
            "range: of fewer than 6 samples the least and the largest, which hold the median with less than 95 % (5: 93.75 %)"
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

/// A line for a reader where others took much of the processors: over all, or in some runs.
pub fn warning(study: &Study) -> Option<String> {
    let samples: Vec<&Sample> = study.points.iter().flat_map(|point| &point.samples).collect();
    let disturbed = samples.iter().filter(|sample| sample.others_share.is_some_and(|share| share > MUCH)).count();
    let worst = study.busy.iter().max_by(|one, other| one.taken().total_cmp(&other.taken()));
    let worst = worst.filter(|worst| worst.taken() > MUCH);
    if worst.is_none() && disturbed == 0 {
        return None;
    }
    let mut parts = Vec::new();
    if let Some(worst) = worst {
        let percent = |share: Option<f64>| 100.0 * share.unwrap_or(0.0);
        let mut part = format!("other processes took {:.0} % of its processors", percent(worst.others_share));
        if percent(worst.stolen_share) >= 0.5 {
            part += &format!(" and other virtual machines {:.0} %", percent(worst.stolen_share));
        }
        if let (Some([before, ..]), Some([after, ..])) = (worst.load_before, worst.load_after) {
            part += &format!(" (load average {before:.1} before, {after:.1} after)");
        }
        parts.push(part);
    }
    if disturbed > 0 {
        parts.push(format!("more than {:.0} % went to others in {disturbed} of {} runs", 100.0 * MUCH, samples.len()));
    }
    Some(format!("the machine was busy: {}; such times are longer than those of an idle machine", parts.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::super::kit::{measured, study};
    use super::super::schema::RankSample;
    use super::*;
    use crate::busy::Busy;

    #[test]
    fn others_are_told_where_they_took_much() {
        let mut study = study(vec![measured("ring", 512, 1, None, 9.0)]);
        assert_eq!(warning(&study), None, "nothing is known");
        let idle = Busy { others_share: Some(0.04), stolen_share: Some(0.01), ..Busy::default() };
        study.busy = vec![idle];
        study.points[0].samples[0].others_share = Some(0.09);
        assert_eq!(warning(&study), None);
        study.points[0].samples[1].others_share = Some(0.11);
        let told = warning(&study).unwrap();
        assert!(told.contains("in 1 of 5 runs") && !told.contains("other processes took"), "{told}");
        let (load_before, load_after) = (Some([15.5, 13.0, 10.0]), Some([12.0, 13.0, 10.0]));
        study.busy.push(Busy {
            others_share: Some(0.37),
            stolen_share: Some(0.02),
            load_before,
            load_after,
            ..Busy::default()
        });
        let told = warning(&study).unwrap();
        let wanted = "other processes took 37 % of its processors and other virtual machines 2 % (load average 15.5 before, 12.0 after); ";
        assert!(told.contains(wanted), "{told}");
        study.busy = vec![Busy { stolen_share: Some(0.2), ..idle }];
        assert!(warning(&study).unwrap().contains("other virtual machines 20 %"), "stolen time is not there either");
    }

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
