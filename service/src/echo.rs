//! A prompt as its answer repeats it: its text, and how likely each of its tokens is.

use std::collections::BTreeMap;

use tributary_engine::{Client, Result};
use tributary_protocol::ScoredToken;

use crate::output::PromptLogprob;
use crate::running::AskedPrompt;
use crate::spoken::{LikelyToken, Piece, TokenText};

/// The prompt as a part of the answer: its text as it came, or that of its tokens; with its tokens
/// where they were scored. The first token has no log-probability, since no token precedes it.
///
/// # Errors
/// Returns an error if the tokenizer fails.
pub fn piece(
    client: &Client,
    prompt: &AskedPrompt,
    echoed: Option<&str>,
    scored: Option<&[ScoredToken]>,
) -> Result<Piece> {
    let texts = match (echoed, scored) {
        (Some(_), None) => Vec::new(),
        _ => client.texts(&prompt.query)?,
    };
    let text = echoed.map_or_else(|| texts.concat(), str::to_owned);
    let Some(scored) = scored else { return Ok(Piece { text, ..Piece::default() }) };
    let (mut tokens, mut offset) = (Vec::with_capacity(texts.len()), 0);
    let known = std::iter::once(None).chain(scored.iter().map(Some));
    for (text, scored) in texts.into_iter().zip(known) {
        let characters = text.chars().count();
        let logprob = scored.map(|scored| scored.logprob);
        let top = scored.map_or(Ok(Vec::new()), |scored| decoded(client, &scored.top))?;
        let token = TokenText { bytes: text.clone().into_bytes(), text };
        tokens.push(LikelyToken { token, logprob, top, offset });
        offset += characters;
    }
    Ok(Piece { text, tokens, ..Piece::default() })
}

fn decoded(client: &Client, top: &[(u32, f32)]) -> Result<Vec<(TokenText, f32)>> {
    let of = |&(id, logprob): &(u32, f32)| {
        let text = client.texts(&[id])?.concat();
        Ok((TokenText { bytes: text.clone().into_bytes(), text }, logprob))
    };
    top.iter().map(of).collect()
}

/// The log-probabilities of a prompt's tokens in the form that vLLM has for them: one object a
/// token, by token id, with the token's own number and those of the likeliest in its place; null
/// for the first token.
///
/// # Errors
/// Returns an error if the tokenizer fails.
pub fn logprobs(
    client: &Client,
    prompt: &AskedPrompt,
    scored: &[ScoredToken],
) -> Result<Vec<Option<BTreeMap<String, PromptLogprob>>>> {
    let texts = client.texts(&prompt.query)?;
    let of = |(scored, text): (&ScoredToken, String)| {
        let top = scored.top.iter().zip(1..).map(|(&(id, logprob), rank)| {
            let decoded_token = client.texts(&[id])?.concat();
            Ok((id.to_string(), PromptLogprob { logprob, rank, decoded_token }))
        });
        let mut all = top.collect::<Result<BTreeMap<_, _>>>()?;
        let own = PromptLogprob { logprob: scored.logprob, rank: scored.rank, decoded_token: text };
        all.insert(scored.token.to_string(), own);
        Ok(Some(all))
    };
    std::iter::once(Ok(None)).chain(scored.iter().zip(texts.into_iter().skip(1)).map(of)).collect()
}
