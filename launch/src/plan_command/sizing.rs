//! The options of `tributary plan` that ask how many GPUs a load needs, and its answer.

use clap::Args;
use tributary_study::forecast::lengths::tokens;
use tributary_study::sizing::duration::{rate, seconds};
use tributary_study::sizing::{Answer, Demand, File, Question, render, write};

use crate::stdout::{print, print_json};

/// Requirements of a deployment.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sizing")]
pub struct SizingArgs {
    /// Time to first token that 95 % of requests must meet, such as 1s or 800ms; with --trace: find
    /// the fastest replay that meets it
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = seconds,
        requires = "demand",
        conflicts_with = "chunk_tokens"
    )]
    slo_ttft: Option<f64>,
    /// Requests a second of all groups of ranks together, as a Poisson process
    #[arg(long, value_name = "RATE", value_parser = rate, requires = "slo_ttft", group = "demand")]
    requests_per_second: Option<f64>,
    /// Tokens of a document; each document is a chunk
    #[arg(long, value_name = "N", default_value = "2k", value_parser = tokens, requires = "slo_ttft")]
    document_tokens: usize,
    /// Number of documents kept for later requests
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "slo_ttft")]
    documents: usize,
    /// File for a chart of GPUs against lengths and rates, overwritten; may be given twice
    #[arg(long, value_name = "FILE.svg|FILE.html", requires = "slo_ttft")]
    chart: Vec<File>,
}

impl SizingArgs {
    /// Bound of the time to first token, in seconds.
    pub fn slo_s(&self) -> Option<f64> {
        self.slo_ttft
    }

    /// Demand of the options, if there is one.
    pub fn demand(&self) -> Option<Demand> {
        let (document_tokens, documents) = (self.document_tokens, self.documents);
        let (slo_s, rate_per_s) = self.slo_ttft.zip(self.requests_per_second)?;
        Some(Demand { slo_s, rate_per_s, document_tokens, documents })
    }

    /// Finds the answer, and prints and draws it where this process `leads`.
    pub fn answer(&self, question: Question, json: bool, leads: bool) -> anyhow::Result<()> {
        let answer = Answer::new(question)?;
        if !leads {
            return Ok(());
        }
        for file in &self.chart {
            write(&answer, file)?;
        }
        if json { print_json(&answer.report()) } else { print(&render(&answer)) }
    }
}
