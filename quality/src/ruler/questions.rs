//! Questions about documents: the answering ones are among others.

use super::draft::Draft;
use crate::cut::document;
use crate::material::{Question, Questions};
use crate::random::Random;

const ASKED: &str =
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.";

/// The least number of documents: those that belong to the question.
pub fn least(question: &Question) -> usize {
    question.own.len()
}

/// A question about `size` documents: its own, then others about the same matter, then any.
pub fn draft(size: usize, question: &Question, questions: &Questions, random: &mut Random) -> Draft {
    let (all, own) = (questions.documents.len(), &question.own);
    let mut chosen = own.clone();
    let wanted = size.saturating_sub(chosen.len());
    let mut related = question.related.clone();
    random.shuffle(&mut related);
    chosen.extend(related.into_iter().take(wanted));
    let mut others: Vec<usize> = (0..all).filter(|number| !chosen.contains(number)).collect();
    random.shuffle(&mut others);
    chosen.extend(others);
    // If there are not enough, all of them come again.
    let mut chosen: Vec<usize> = chosen.iter().cycle().take(size.max(own.len())).copied().collect();
    random.shuffle(&mut chosen);
    // Each ends with a blank line, so that it may stand before any other and before the query.
    let text =
        |(index, number): (usize, usize)| format!("Document {}:\n{}\n\n", index + 1, questions.documents[number]);
    Draft {
        lead: format!("{ASKED}\n\nThe following are given documents.\n\n"),
        runs: chosen.into_iter().enumerate().flat_map(|placed| document(&text(placed))).collect(),
        query: format!("{ASKED}\n\nQuestion: {}", question.text),
        begun: " Answer:".to_owned(),
        references: question.answers.clone(),
    }
}
