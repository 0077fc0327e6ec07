//! The path of a request: prepared, planned, sent to its ranks, answered, reported.

use std::time::Instant;

use tributary_coordinator::conductor::{Observed, Prefilled};
use tributary_coordinator::{Clock, Environment, dispatch, report};
use tributary_planner::{GroupShape, Planner};
use tributary_protocol::{Event, Plan};

use crate::answered::Answered;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::question::Question;
use crate::run_config::RunConfig;

impl Engine<'_> {
    /// Answers a request; the clock starts here. [`start`](Self::start) comes before.
    ///
    /// # Errors
    /// Returns an error if the request is refused, or if a rank fails: after that the group is
    /// gone.
    pub fn answer(&mut self, question: &Question, run_config: &RunConfig) -> Result<Answered> {
        let group = run_config.group();
        self.survey(group);
        let question = question.undecoded();
        let clock = Clock::start();
        fail::fail_point!("engine::request");
        let mut prepared = question.prepare(&self.folder, &self.config.intake)?;
        let tokens = self.readers.tokens(&prepared, &run_config.settings)?;
        let planned = self.planner.plan(tokens, &run_config.settings, run_config.threads)?;
        if let Some(note) = self.planner.foretold(&planned) {
            tracing::warn!("{note}");
            prepared.notes.push(note);
        }
        let link = self.ranks.backend().link(group).ok_or(Error::Bug("the ranks were not started"))?;
        let answered = {
            let mut told = told(self.observed.clone(), &mut self.planner, group, &planned.plan);
            dispatch::run(link, &planned.plan, &clock, &mut told)
        };
        let answer = match answered {
            Ok(answer) => answer,
            // The request alone has failed.
            Err(error @ tributary_coordinator::Error::Refused(_)) => return Err(error.into()),
            Err(error) => {
                self.observed.tell(|observer| observer.failed(error.exit_code()));
                return Err(self.lost(group, error));
            }
        };
        let said = self.folder.said(&prepared.query, &answer.outcome.tokens)?;
        let backend = self.backend_of(group.world);
        let environment = Environment { threads: run_config.threads, backend, ..self.environment.clone() };
        let report = report(&planned, &answer, &environment, &self.folder.shape(), said, &prepared);
        let answered = Answered { prepared, planned, answer, report };
        if let Some(shown) = &self.shown {
            shown(&answered);
        }
        Ok(answered)
    }
}

/// Passes the events of one request that is alone on its ranks to the planner and the observer.
fn told(observed: Observed, planner: &mut Planner, group: GroupShape, plan: &Plan) -> impl FnMut(&Event) {
    let mut token_at = Instant::now();
    move |event| {
        let stores = match event {
            Event::Prefilled { reports, .. } => planner.note(group, reports),
            _ => Vec::new(),
        };
        observed.tell(|observer| match event {
            Event::FirstToken { .. } => token_at = Instant::now(),
            Event::Prefilled { reports, .. } => Prefilled::new(Some(plan), reports, &stores).tell(observer),
            Event::Refused { traffic, .. } => {
                traffic.iter().enumerate().for_each(|(rank, traffic)| observer.moved(rank, traffic));
            }
            Event::Stepped { reports, .. } => {
                let before = std::mem::replace(&mut token_at, Instant::now());
                reports.iter().for_each(|report| observer.moved(report.rank, &report.traffic));
                observer.stepped(reports, &[token_at.saturating_duration_since(before)]);
            }
            _ => {}
        });
    }
}
