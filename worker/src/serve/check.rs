//! Checks of a plan before a rank begins with it.

mod pictures;

use tributary_methods::KEEP_PER_CHUNK;
use tributary_model::Config;
use tributary_protocol::{Around, Auxiliary, AuxiliaryPrompt, Chunk, Continues, LookAhead, Plan, Source};

use crate::error::{Error, Result};
use crate::models::Models;
use crate::strategy;

/// Checks a plan against this model and world. The coordinator has checked it too; a wrong plan
/// must not hang the group.
pub(super) fn check(plan: &Plan, models: &Models<'_>, world: usize) -> Result<()> {
    let bad = |what: String| Err(Error::Plan(what));
    let config = models.main.config();
    if let Some(chunk) = plan.chunks.iter().find(|chunk| chunk.rank >= world) {
        return bad(format!("a chunk is given to rank {} of {world}", chunk.rank));
    }
    if plan.owner >= world {
        return bad(format!("its owner is rank {} of {world}", plan.owner));
    }
    let lacks_context = plan.chunks.is_empty() && !plan.method.prefill.is_whole();
    if plan.query.is_empty() || lacks_context || plan.chunks.iter().any(|chunk| chunk.ids.is_empty()) {
        return bad("query, context and every chunk need at least one token".to_owned());
    }
    let lead: u64 = plan.lead.iter().map(|&tokens| u64::from(tokens)).sum();
    if lead > plan.prefix.len() as u64 || plan.lead.contains(&0) {
        return bad(format!("a lead of {lead} tokens in pieces {:?}, in a prefix of {}", plan.lead, plan.prefix.len()));
    }
    check_prefix(plan)?;
    check_kept(plan)?;
    if plan.max_tokens == 0 {
        return bad("at least one token must be generated".to_owned());
    }
    // Ids are checked here, and not only where they are embedded, so that the rank that reports to
    // the coordinator knows the cause.
    if let Some(id) = plan.all_ids().into_iter().find(|&id| id as usize >= config.vocab) {
        return bad(format!("token id {id} is outside the vocabulary of {}", config.vocab));
    }
    let lacking = |around: &Around| !models.adapters.has(around.adapter, (around.head + around.tail) as usize);
    if let Some(Around { adapter, head, tail }) = plan.chunks.iter().filter_map(|chunk| chunk.around).find(lacking) {
        return bad(format!("a chunk wants {} rows of adapter {adapter}, which is not here or has fewer", head + tail));
    }
    if let Some(LookAhead { adapter, rows }) = plan.look_ahead {
        if plan.method.parallel().is_some() {
            return bad(format!("a look-ahead does not see the rows that method {} sees", plan.method.name()));
        }
        if rows == 0 || !models.adapters.has(adapter, rows as usize) {
            return bad(format!("a look-ahead wants {rows} rows of adapter {adapter}, which is not here or has fewer"));
        }
        config.check_length(plan.total_rows() + rows as usize, 0)?;
    }
    plan.chunks.iter().try_for_each(|chunk| check_compression(plan, chunk))?;
    pictures::check(plan, config)?;
    let kept: usize = plan.kept_at_most(world).into_iter().sum();
    if plan.parts().is_some() && plan.budget != kept {
        return bad(format!("a budget of {} rows, and {kept} are kept of its documents", plan.budget));
    }
    check_readers(plan)?;
    plan.auxiliary.iter().try_for_each(|auxiliary| check_auxiliary(plan, auxiliary, models))?;
    check_draft_model(plan, models)?;
    config.check_length(plan.total_rows(), plan.max_tokens)?;
    strategy::check(&plan.method, config)
}

/// Checks that a plan reuses rows, and orders chunks, as its method does.
fn check_prefix(plan: &Plan) -> Result<()> {
    let bad = |what: String| Err(Error::Plan(what));
    let mut order = plan.order.clone();
    order.sort_unstable();
    if !order.is_empty() && (!plan.method.orders_chunks() || order != plan.request_order()) {
        return bad(format!("chunks in the order {:?} by method {}", plan.order, plan.method.name()));
    }
    let scored = plan.returns.prompt_logprobs.map_or(1, |_| plan.query_tokens());
    let is_bare = plan.chunks.iter().all(|chunk| chunk.around.is_none() && chunk.compress.is_none());
    let may_reuse = plan.method.reuses_prefix() && is_bare && plan.reused_rows + scored <= plan.total_rows();
    if plan.reused_rows > 0 && !may_reuse {
        let (rows, name) = (plan.reused_rows, plan.method.name());
        return bad(format!("{rows} of {} rows of its prompt reused by method {name}", plan.total_rows()));
    }
    Ok(())
}

/// Checks that a plan goes on from, and leaves, a sequence that has all of its rows.
fn check_kept(plan: &Plan) -> Result<()> {
    let is_whole = plan.evict.is_none() && plan.look_ahead.is_none();
    let returns = plan.returns.scores || plan.returns.prompt_logprobs.is_some();
    if let Some(Continues { rows, .. }) = plan.continues
        && !(is_whole && !returns && (plan.query_rows().start as usize..plan.total_rows()).contains(&rows))
    {
        return Err(Error::Plan(format!(
            "{rows} of {} rows of its prompt kept from another request",
            plan.total_rows()
        )));
    }
    if plan.windows_from > plan.total_rows() {
        return Err(Error::Plan(format!("windows from row {} of {} on", plan.windows_from, plan.total_rows())));
    }
    if plan.keep_sequence && !is_whole {
        return Err(Error::Plan("an evicted sequence is kept for nothing".to_owned()));
    }
    Ok(())
}

/// Checks that the draft model of an eviction exists, and that the prompt and its tokens fit the
/// model.
fn check_draft_model(plan: &Plan, models: &Models<'_>) -> Result<()> {
    let Some(evict) = plan.evicts().filter(|evict| evict.asks_draft_model()) else { return Ok(()) };
    let bad = |what: String| Err(Error::Plan(what));
    let Some(draft) = &plan.draft_model else {
        return bad(format!("eviction {} wants a draft model, and there is none", evict.descriptor().name));
    };
    let Some(config) = models.auxiliary_config(&draft.model) else {
        return bad(format!("there is no model `{}` beside the main one", draft.model));
    };
    if let Some(id) = plan.sources().iter().filter_map(Source::token).find(|&id| id as usize >= config.vocab) {
        return bad(format!("token id {id} is outside the vocabulary of {} of model `{}`", config.vocab, draft.model));
    }
    Ok(config.check_length(plan.total_rows(), evict.pseudo_tokens())?)
}

/// Checks that a chunk can be compressed as the plan demands.
fn check_compression(plan: &Plan, chunk: &Chunk) -> Result<()> {
    let Some(compress) = &chunk.compress else { return Ok(()) };
    let (name, tokens, bad) = (compress.descriptor().name, chunk.ids.len(), |what: String| Err(Error::Plan(what)));
    if !plan.method.takes(&KEEP_PER_CHUNK) {
        return bad(format!("method {} works on whole chunks", plan.method.name()));
    }
    if plan.evict.is_some() || plan.look_ahead.is_some() {
        return bad("rows of chunks that were compressed are not looked at again".to_owned());
    }
    if !compress.descriptor().compresses_chunks() {
        return bad(format!("{name} compresses no chunk"));
    }
    if compress.keep == 0 || compress.keep >= tokens || compress.window == 0 || compress.pooled % 2 == 0 {
        return bad(format!("a chunk of {tokens} tokens cannot keep {} of them by {name}", compress.keep));
    }
    Ok(())
}

/// Checks that the plan has the auxiliary model that its method wants, and that this one writes as
/// many tokens.
fn check_readers(plan: &Plan) -> Result<()> {
    let Some(reading) = plan.method.auxiliary_reading().filter(|_| plan.continues.is_none() && plan.budget > 0) else {
        return Ok(());
    };
    let (name, wanted) = (plan.method.name(), reading.written());
    match &plan.auxiliary[..] {
        [auxiliary] if auxiliary.written == wanted => Ok(()),
        [auxiliary] => {
            let written = auxiliary.written;
            Err(Error::Plan(format!(
                "method {name} wants {wanted} tokens written beside the main model, not {written}"
            )))
        }
        all => Err(Error::Plan(format!("method {name} wants one model beside the main one, not {}", all.len()))),
    }
}

/// Checks that an auxiliary model of the plan exists and fits the context.
fn check_auxiliary(plan: &Plan, auxiliary: &Auxiliary, models: &Models<'_>) -> Result<()> {
    let Auxiliary { model, prompts, written, .. } = auxiliary;
    let Some(config) = models.auxiliary_config(model) else {
        return Err(Error::Plan(format!("there is no model `{model}` beside the main one")));
    };
    let fits = |prompt: &AuxiliaryPrompt| {
        check_prompt(plan, model, prompt, config)?;
        Ok(config.check_length(prompt.ids.len(), *written as usize)?)
    };
    prompts.iter().try_for_each(fits)
}

fn check_prompt(plan: &Plan, model: &str, prompt: &AuxiliaryPrompt, config: &Config) -> Result<()> {
    let AuxiliaryPrompt { ids, query, stands_for } = prompt;
    let bad = |what: String| Err(Error::Plan(what));
    if *query == 0 || ids.len() != query + stands_for.len() {
        let rows = format!("{} rows and {query} of its query", stands_for.len());
        return bad(format!("model `{model}` has {} tokens for {rows}; the query needs one at least", ids.len()));
    }
    if let Some(id) = ids.iter().find(|&&id| id as usize >= config.vocab) {
        return bad(format!("token id {id} is outside the vocabulary of {} of model `{model}`", config.vocab));
    }
    let context = plan.prefix_tokens() as u32..plan.query_rows().start;
    let outside = |rows: &&std::ops::Range<u32>| {
        rows.start > rows.end || (!rows.is_empty() && (rows.start < context.start || rows.end > context.end))
    };
    if let Some(rows) = stands_for.iter().find(outside) {
        return bad(format!("a row of model `{model}` stands for the rows {rows:?}, and the context has {context:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tributary_protocol::{Evict, Eviction};

    use super::*;
    use crate::kit;
    use tributary_model::Adapters;

    type Change = fn(&mut Plan);

    fn refusal(change: impl FnOnce(&mut Plan)) -> (u8, String) {
        let mut config = kit::config();
        config["max_position_embeddings"] = 30.into();
        let mut plan = kit::plan(2, &[9, 8], 4, 2);
        plan.auxiliary = vec![kit::auxiliary(vec![7, 8, 9, 10], vec![0..0, 2..19])];
        change(&mut plan);
        let (main, small) = (kit::model(&config), kit::model(&kit::config()));
        let rows = main.embed(&[1; 8]).expect("ids").hidden;
        let adapters = Adapters::new([(7, rows)]);
        let models = Models::from(&*main).with_adapters(adapters).with_elsewhere("small", small.config());
        match check(&plan, &models, 2) {
            Ok(()) => (0, String::new()),
            Err(error) => (error.exit_code(), error.to_string()),
        }
    }

    #[test]
    fn a_method_that_has_the_context_read_wants_one_model_for_it() {
        let read_by = |models: usize| {
            refusal(|plan| {
                (plan.method, plan.budget) = (kit::method("cacheclip"), 3);
                plan.auxiliary = vec![plan.auxiliary[0].clone(); models];
            })
        };
        for models in [0, 2] {
            let wanted = format!("plan: method cacheclip wants one model beside the main one, not {models}");
            assert_eq!(read_by(models), (64, wanted));
        }
        assert_eq!(read_by(1).0, 0);
        let writes = |written: u32| {
            refusal(|plan| {
                (plan.method, plan.budget) = (kit::method("spec-prefill-like:tokens=3"), 3);
                plan.auxiliary[0].written = written;
            })
        };
        let wanted = "plan: method spec-prefill-like wants 3 tokens written beside the main model, not 0";
        assert_eq!(writes(0), (64, wanted.to_owned()));
        assert_eq!(writes(3).0, 0);
    }

    /// Compresses the first chunk to `keep` tokens.
    fn compress(plan: &mut Plan, method: Eviction, keep: usize) {
        plan.method = kit::method("none");
        let (window, pooled, sinks, beta) = (4, 3, 2, 20);
        let evict = Evict { method, keep, window, pooled, sinks, beta, pseudo: 0, seed: 0, gather: false };
        plan.chunks[0].compress = Some(evict);
    }

    #[test]
    fn chunks_keep_what_they_can() {
        let table: [(Change, &str); 4] = [
            (|plan| compress(plan, Eviction::SnapKv, 9), "plan: a chunk of 9 tokens cannot keep 9 of them by snapkv"),
            (|plan| compress(plan, Eviction::Laq, 4), "plan: laq compresses no chunk"),
            (
                |plan| {
                    compress(plan, Eviction::SnapKv, 4);
                    plan.method = kit::method("ideal");
                },
                "plan: method ideal works on whole chunks",
            ),
            (
                |plan| {
                    compress(plan, Eviction::SnapKv, 4);
                    plan.evict = plan.chunks[0].compress.clone();
                },
                "plan: rows of chunks that were compressed are not looked at again",
            ),
        ];
        for (change, says) in table {
            assert_eq!(refusal(change), (64, says.to_owned()));
        }
        assert_eq!(refusal(|plan| compress(plan, Eviction::SnapKv, 4)).0, 0);
    }

    #[test]
    fn a_prefill_that_is_not_its_methods_is_refused() {
        let table: [(Change, &str); 2] = [
            (|plan| plan.method.prefill = tributary_protocol::Prefill::Ring, "plan: none does not prefill like Ring"),
            (
                |plan| plan.method.prefill = kit::method("cacheblend").prefill,
                "plan: none does not prefill like Chunks(Drift(Drift { of: Values, layers: 1, score: Squared, blind: 0 }))",
            ),
        ];
        for (change, message) in table {
            assert_eq!(refusal(change), (64, message.to_owned()));
        }
    }

    #[test]
    fn a_plan_that_cannot_run_is_refused_by_every_rank() {
        assert_eq!(refusal(|_| ()).0, 0);
        let around = |plan: &mut Plan| plan.chunks[0].around = Some(Around { adapter: 3, head: 1, tail: 0 });
        let table: [(Change, &str); 18] = [
            (|plan| plan.reused_rows = 3, "plan: 3 of 23 rows of its prompt reused by method none"),
            (|plan| plan.order = vec![1, 0], "plan: chunks in the order [1, 0] by method none"),
            (
                |plan| {
                    plan.method = kit::method("samkv");
                    plan.budget = 3;
                },
                "plan: a budget of 3 rows, and 17 are kept of its documents",
            ),
            (
                |plan| plan.look_ahead = Some(LookAhead { adapter: 4, rows: 2 }),
                "plan: a look-ahead wants 2 rows of adapter 4, which is not here or has fewer",
            ),
            (
                |plan| plan.look_ahead = Some(LookAhead { adapter: 7, rows: 8 }),
                "31 prompt tokens and 0 to generate exceed the model's 30 positions",
            ),
            (|plan| plan.auxiliary[0].model = "tiny".into(), "plan: there is no model `tiny` beside the main one"),
            (
                |plan| plan.auxiliary[0].prompts[0].query = 0,
                "plan: model `small` has 4 tokens for 2 rows and 0 of its query; the query needs one at least",
            ),
            (
                |plan| plan.auxiliary[0].prompts[0].ids[1] = 61,
                "plan: token id 61 is outside the vocabulary of 61 of model `small`",
            ),
            (
                |plan| plan.auxiliary[0].prompts[0].stands_for[1] = 17..20,
                "plan: a row of model `small` stands for the rows 17..20, and the context has 2..19",
            ),
            (
                |plan| (plan.auxiliary[0].prompts[0].ids, plan.auxiliary[0].prompts[0].query) = (vec![1; 600], 598),
                "600 prompt tokens and 0 to generate exceed the model's 512 positions",
            ),
            (around, "plan: a chunk wants 1 rows of adapter 3, which is not here or has fewer"),
            (|plan| plan.owner = 2, "plan: its owner is rank 2 of 2"),
            (|plan| plan.chunks[1].rank = 2, "plan: a chunk is given to rank 2 of 2"),
            (|plan| plan.query.clear(), "plan: query, context and every chunk need at least one token"),
            (|plan| plan.chunks[0].ids.clear(), "plan: query, context and every chunk need at least one token"),
            (|plan| plan.max_tokens = 0, "plan: at least one token must be generated"),
            (|plan| plan.query[1] = 61, "plan: token id 61 is outside the vocabulary of 61"),
            (|plan| plan.max_tokens = 8, "23 prompt tokens and 8 to generate exceed the model's 30 positions"),
        ];
        for (change, message) in table {
            assert_eq!(refusal(change), (64, message.to_owned()));
        }
        assert_eq!(refusal(|plan| plan.max_tokens = 7).0, 0, "the positions hold everything");
    }
}
