//! A report as text for readers.

use tributary_charts::table::{Layout, cells, table};
use tributary_system::size::rounded;

use super::Report;
use super::pictures::PicturesRow;
use super::rows::{BytesRow, ChunkStoreRow};

impl Report {
    /// The report as text: answer, times, bytes, tokens, in aligned columns. Ends with a line
    /// break.
    pub fn render(&self) -> String {
        render(self)
    }
}

fn render(report: &Report) -> String {
    let mut text = format!("{}\n\n", headline(report));
    text += &phases(report);
    text.push('\n');
    if report.bytes.is_empty() {
        text += "nothing moved between ranks\n";
    } else {
        text += &bytes(report);
    }
    text.push('\n');
    text += &tokens(report);
    text += &report.pictures.as_ref().map_or_else(String::new, PicturesRow::render);
    text += &device_memory(report);
    for note in &report.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn headline(report: &Report) -> String {
    let settings = &report.settings;
    let exactness = if report.exact { "exact" } else { "approximate" };
    let mut method = vec![format!("{} ({exactness})", report.method)];
    let tells_rows = settings.options.contains_key("rows");
    method.extend((settings.budget > 0 && !tells_rows).then(|| format!("ratio {}", settings.ratio)));
    method.extend(settings.options.iter().map(|(key, value)| format!("{key}{value}")));
    method.extend(
        settings.block_rows.map(|rows| {
            format!("blocks of {} after an anchor of {}, {} passed on", rows.block, rows.anchor, rows.passed)
        }),
    );
    method.extend(settings.importance.map(|importance| format!("reordered by {importance}")));
    method.extend(
        settings.packets.as_ref().map(|rows| format!("{} + {} trained rows around every chunk", rows.head, rows.tail)),
    );
    method.extend(settings.order_for.map(|order_for| format!("that order for {order_for}")));
    if let (Some(evict), Some(keep)) = (settings.evict, settings.keep) {
        method.push(format!("{evict} keeps {keep} rows"));
    }
    method.extend(settings.exchange.map(|exchange| format!("exchange {exchange}")));
    let (ttft_ms, paper_ms) = (report.ttft_ms, report.paper_clock_ms);
    let (world, threads) = (settings.world, settings.environment.threads);
    let reasoning = report.reasoning.as_ref().map(|text| format!("reasoning:   {text}\n")).unwrap_or_default();
    format!(
        "{reasoning}\
         answer:      {}\n\
         TTFT:        {ttft_ms:.2} ms\n\
         paper clock: {paper_ms:.2} ms (without first token and the query rows' estimated share)\n\
         method:      {}; world {world}, threads a rank {threads}",
        report.answer,
        method.join(", ")
    )
}

fn phases(report: &Report) -> String {
    let mut rows = vec![cells([
        "phase",
        "critical path [ms]",
        "share [%]",
        "waited [ms]",
        "slowest rank",
        "its compute [ms]",
        "mean [ms]",
        "slowest/mean",
    ])];
    for row in &report.phases {
        let rank = row.slowest_rank.map_or_else(|| "-".into(), |rank| rank.to_string());
        rows.push(vec![
            row.phase.to_owned(),
            format!("{:.2}", row.critical_path_ms),
            format!("{:.1}", 100.0 * row.share),
            format!("{:.2}", row.waited_ms),
            rank,
            format!("{:.2}", row.slowest_ms),
            format!("{:.2}", row.mean_ms),
            format!("{:.2}", row.imbalance),
        ]);
    }
    let share = 100.0 * report.unaccounted_ms / report.ttft_ms;
    rows.push(vec!["unaccounted".into(), format!("{:.2}", report.unaccounted_ms), format!("{share:.1}")]);
    rows.push(vec!["TTFT".into(), format!("{:.2}", report.ttft_ms), "100.0".into()]);
    table(&rows, Layout::PLAIN)
}

fn bytes(report: &Report) -> String {
    let mut rows = vec![cells([
        "until the first token",
        "calls",
        "received [bytes]",
        "most on a rank [bytes]",
        "longest wait [ms]",
    ])];
    rows.extend(report.bytes.iter().map(|(name, row)| bytes_row(name, row)));
    table(&rows, Layout::PLAIN)
}

fn bytes_row(name: &str, row: &BytesRow) -> Vec<String> {
    vec![
        name.to_owned(),
        row.calls.to_string(),
        row.received_bytes.to_string(),
        row.max_rank_received_bytes.to_string(),
        format!("{:.2}", row.max_rank_waited_ms),
    ]
}

/// Memory held on the fullest device, beside its budget.
fn device_memory(report: &Report) -> String {
    let rows = report.ranks.iter().filter_map(|rank| rank.device_memory);
    let Some(fullest) = rows.max_by_key(|row| row.high_bytes) else { return String::new() };
    let budget = report.settings.environment.device_budget_bytes.unwrap_or(0);
    let messages = match fullest.message_bytes {
        0 => String::new(),
        bytes => format!(", {bytes} more for messages between ranks"),
    };
    format!(
        "device memory: {} bytes at the most, {} taken from the device{messages}; {} predicted, {budget} allowed\n",
        fullest.high_bytes, fullest.reserved_bytes, report.predicted_memory_bytes
    )
}

fn tokens(report: &Report) -> String {
    let tokens = &report.tokens;
    let lead = match tokens.lead {
        0 => String::new(),
        lead => format!(", {lead} of them after the head"),
    };
    let mut text = format!(
        "tokens: prefix {}{lead}, context {} in {} chunks, query {}, generated {}\n",
        tokens.prefix, tokens.context, report.chunks.count, tokens.query, tokens.generated
    );
    if !report.exact {
        let share = 100.0 * tokens.selected as f64 / tokens.context.max(1) as f64;
        text += &format!(
            "selected: {} of {} candidates ({share:.1} % of the context); recomputed: {} rows, the query's included\n",
            tokens.selected, tokens.candidates, tokens.recomputed
        );
    }
    let cache = &report.chunk_cache;
    if cache.hits + cache.misses + cache.stored > 0 {
        text += &format!(
            "chunk cache: {}, {} of {} chunks ({} tokens) taken from it, {} gone; {} entries added, {} dropped, {} bytes kept\n",
            cache.state,
            cache.hits,
            report.chunks.count,
            cache.hit_tokens,
            cache.misses,
            cache.stored,
            cache.evicted,
            cache.used_bytes
        );
    }
    text += &chunk_store(&cache.store);
    if report.order.iter().enumerate().any(|(place, &chunk)| place as u32 != chunk) {
        text += &format!("order of the chunks: {:?}\n", report.order);
    }
    text
}

/// Chunks from the store; empty if it had none.
fn chunk_store(store: &ChunkStoreRow) -> String {
    let ChunkStoreRow { loaded, loaded_bytes, recomputed, spoilt, .. } = *store;
    let count = loaded + recomputed + spoilt;
    if count == 0 {
        return String::new();
    }
    let mut text = format!("chunk store: {loaded} of {count} chunks loaded ({})", rounded(loaded_bytes));
    if recomputed > 0 {
        text += &format!(", {recomputed} recomputed: faster");
    }
    if spoilt > 0 {
        text += &format!(", {spoilt} of no use and recomputed");
    }
    text + "\n"
}
