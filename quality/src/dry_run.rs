//! What an evaluation would ask.

use tributary_charts::table::{Layout, cells, table};

use crate::design::Arm;
use crate::evaluation::{Evaluation, Request};

/// Requests, answers and tokens in a table. Ends with a line break.
pub fn dry_run(evaluation: &Evaluation) -> String {
    let Evaluation { design, arms, requests, .. } = evaluation;
    let mut rows = vec![cells(["task", "requests", "answers", "tokens read", "tokens generated, at most"])];
    let row = |name: &str, own: &[&Request]| {
        let sum = |of: fn(&Request) -> usize| arms.len() * own.iter().map(|request| of(request)).sum::<usize>();
        let answers = own.len() * arms.len();
        let (read, generated) = (sum(|request| request.prompt_tokens), sum(|request| request.answer_tokens));
        vec![name.to_owned(), own.len().to_string(), answers.to_string(), read.to_string(), generated.to_string()]
    };
    for (cell, _) in &evaluation.cells {
        let own: Vec<&Request> = requests.iter().filter(|request| request.cell == *cell).collect();
        rows.push(row(&cell.to_string(), &own));
    }
    rows.push(row("all", &requests.iter().collect::<Vec<_>>()));
    let mut text = format!("# dry run of suite {}: nothing was asked; seed {}\n", design.suite, design.seed);
    for line in &design.made_of {
        text += &format!("# {line}\n");
    }
    text += &table(&rows, Layout { left: &[0], commented_rows: Some(1) });
    let labels: Vec<String> = arms.iter().map(Arm::label).collect();
    text += &format!("# {} methods and ratios: {}\n", arms.len(), labels.join(", "));
    text
}
