//! From the report of an answered request to metrics.

use tributary_engine::Answered;
use tributary_protocol::Phase;

use super::labels::{FATES, FEATURE_SOURCES, SOURCES, claim};
use super::predictions::Predictions;
use super::sheet::Sheet;
use super::table as of;

/// Records a report, and the prediction of its plan.
pub fn report(sheet: &Sheet, answered: &Answered, predictions: Option<&Predictions>) {
    let report = &answered.report;
    let labels = [report.method, report.chunk_cache.state];
    let seconds = |ms: f64| ms / 1000.0;
    sheet.observe(&of::TIME_TO_FIRST_TOKEN, &labels, seconds(report.ttft_ms));
    sheet.observe(&of::REQUEST_QUEUE_TIME, &[], answered.answer.queued.as_secs_f64());
    sheet.observe(&of::REQUEST_DURATION, &[], seconds(report.total_ms));
    for phase in &report.phases {
        sheet.observe(&of::PHASE_DURATION, &[phase.phase], seconds(phase.critical_path_ms));
        if let Some(rank) = phase.slowest_rank
            && phase.mean_ms > 0.0
        {
            sheet.observe(&of::PHASE_IMBALANCE, &[phase.phase], phase.imbalance);
            sheet.count(&of::RANK_SLOWEST, &[&rank.to_string(), phase.phase], 1);
        }
    }
    for rank in &report.ranks {
        let number = rank.rank.to_string();
        for span in &rank.spans {
            sheet.add_seconds(&of::RANK_PHASE_SECONDS, &[&number, span.phase], seconds(span.ms));
        }
    }
    tokens(sheet, answered);
    pictures(sheet, answered);
    if let Some(evicted) = &report.evicted {
        sheet.observe(&of::EVICTION_DURATION, &[evicted.method], seconds(evicted.ms));
        let bytes = [evicted.bytes_kept, evicted.bytes_before - evicted.bytes_kept];
        for (fate, bytes) in FATES.iter().zip(bytes) {
            sheet.count(&of::EVICTION_KV_BYTES, &[evicted.method, fate], bytes);
        }
    }
    let Some(predictions) = predictions else { return };
    if let Some(seconds) = predictions.of(answered) {
        sheet.observe(&of::PREDICTED_TIME_TO_FIRST_TOKEN, &labels, seconds);
    }
    // Against an assumed profile, a pace has no meaning.
    let paces = if predictions.has_profile() { predictions.paces() } else { Vec::new() };
    for (kind, pace) in paces {
        sheet.set(&of::LEARNED_PACE, &[claim(kind.is_exact), kind.phase.name()], pace.multiple);
    }
}

fn pictures(sheet: &Sheet, answered: &Answered) {
    let report = &answered.report;
    let Some(pictures) = &report.pictures else { return };
    sheet.count(&of::PICTURES, &[], pictures.count as u64);
    sheet.count(&of::PICTURE_TOKENS, &[], pictures.tokens as u64);
    let sources = [pictures.different - pictures.cached, pictures.cached];
    for (source, count) in FEATURE_SOURCES.iter().zip(sources) {
        sheet.count(&of::PICTURE_FEATURES, &[source], count as u64);
    }
    sheet.add_seconds(&of::PICTURE_DECODE_SECONDS, &[], pictures.decode_ms / 1000.0);
    for rank in &report.ranks {
        let spans = rank.spans.iter().filter(|span| span.phase == Phase::Vision.name());
        let seconds = spans.map(|span| span.ms - span.waited_ms).sum::<f64>() / 1000.0;
        sheet.add_seconds(&of::PICTURE_TOWER_SECONDS, &[&rank.rank.to_string()], seconds);
    }
}

fn tokens(sheet: &Sheet, answered: &Answered) {
    let (report, tokens) = (&answered.report, &answered.report.tokens);
    let computed: usize = report.ranks.iter().map(|rank| rank.prefilled_rows).sum();
    let reused = report.conversation.map_or(0, |conversation| conversation.reused_tokens);
    let rows = [computed, report.chunk_cache.hit_tokens, tokens.recomputed, reused];
    for (source, rows) in SOURCES.iter().zip(rows) {
        sheet.count(&of::PROMPT_TOKENS, &[source], rows as u64);
    }
    sheet.count(&of::GENERATED_TOKENS, &[], tokens.generated as u64);
    sheet.count(&of::SELECTED_TOKENS, &[], tokens.selected as u64);
    sheet.count(&of::SELECTION_CANDIDATE_TOKENS, &[], tokens.candidates as u64);
    let selects = !answered.planned.plan.method.prefill.is_whole() && report.conversation.is_none();
    if selects && tokens.context > 0 {
        sheet.observe(&of::RECOMPUTE_RATIO, &[], tokens.selected as f64 / tokens.context as f64);
    }
}
