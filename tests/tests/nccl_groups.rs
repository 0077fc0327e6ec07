//! Number of groups of messages of a request over NCCL, by the log of the emulated one
//! (EMULATED_NCCL_LOG), against the formula (`planner::cost::groups`); and their order. The
//! log's name must be in the environment when a process starts, so the requests run in a child.

/// Facts that only an emulated NCCL logs.
mod emulated {
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Duration;

    use candle_core::DType;
    use tributary_comm::nccl::{NcclSettings, UnequalGathers};
    use tributary_engine::Carrier;
    use tributary_kernels::{Kernels, cuda};
    use tributary_methods::ModelFacts;
    use tributary_model::Model;
    use tributary_planner::cost::{Selected, groups};
    use tributary_protocol::{Exchange, METHODS, Plan, PlannedMethod};
    use tributary_tests::samples::Case;
    use tributary_tests::{dummy_model_on, method_of, plan, reordered, run_all_over, shape, tiny_config, with_ratio};

    /// Groups by which the ranks are connected: an exchange, three gathers and an all-to-all.
    const CONNECTING: usize = 5;
    const WORLD: usize = 4;
    const LAYERS: usize = 40;
    /// The layer after the last one that InfoFlow's probe measures.
    const PROBED: usize = 26;
    const LOG: &str = "EMULATED_NCCL_LOG";

    /// The same weights on one GPU for each rank; as many layers as a real model has, each as small
    /// as possible.
    fn models() -> Vec<Arc<dyn Model>> {
        let changes = [
            ("hidden_size", serde_json::json!(64)),
            ("intermediate_size", 64.into()),
            ("num_hidden_layers", LAYERS.into()),
            ("num_attention_heads", 2.into()),
            ("num_key_value_heads", 2.into()),
            ("head_dim", 64.into()),
        ];
        let config = tiny_config(&changes);
        let model = |rank| dummy_model_on(&config, 7, DType::BF16, &cuda::device(rank).expect("a GPU"));
        (0..WORLD).map(model).collect()
    }

    fn method(spec: &str) -> PlannedMethod {
        method_of(spec, ModelFacts::new(LAYERS, 2))
    }

    /// Requests that are made one after the other, and how many groups the last one costs.
    fn numbered() -> Vec<(&'static str, Vec<Plan>, usize)> {
        let of = |method: PlannedMethod, exchange| {
            let plan = with_ratio(plan(2, &[9, 8, 10, 7], 4, WORLD, method, exchange), 0.3);
            Plan { max_tokens: 1, ..plan }
        };
        let flow = || method(&format!("infoflow:layers=13..{PROBED}"));
        let warm = |cold: Plan| {
            let mut warm = cold.clone();
            warm.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
            vec![Plan { keep_chunks: true, ..cold }, warm]
        };
        let probe = PROBED + 1;
        let relay = LAYERS + 1 + 3 * LAYERS + 1;
        let prophet = of(method("prophetkv:layout=tl-tp"), Exchange::PassQ);
        vec![
            ("full", vec![of(method("full"), Exchange::PassQ)], 0),
            ("ring", vec![of(method("ring"), Exchange::PassQ)], 120),
            ("all-gather", vec![of(method("all-gather"), Exchange::PassQ)], 40),
            ("all-gather, a head at a time", vec![of(method("all-gather:heads=1"), Exchange::PassQ)], 80),
            ("star", vec![of(method("star"), Exchange::PassQ)], 80),
            ("apb", vec![of(method("apb:anchor=3:passing=2"), Exchange::PassQ)], 39 + 80),
            ("none, replicate", vec![of(method("none"), Exchange::Replicate)], 40),
            ("epic, replicate", vec![of(method("epic"), Exchange::Replicate)], 80),
            ("epic, pass-q", vec![of(method("epic"), Exchange::PassQ)], 80),
            ("cacheblend, pass-q", vec![of(method("cacheblend"), Exchange::PassQ)], 80 + 3),
            ("infoflow, replicate", vec![of(flow(), Exchange::Replicate)], 80 + probe),
            ("infoflow, pass-q", vec![of(flow(), Exchange::PassQ)], 80 + probe),
            ("infoflow, selected", vec![of(flow(), Exchange::Selected)], 80 + probe),
            ("infoflow, replicate, warm", warm(of(flow(), Exchange::Replicate)), 80 + probe),
            ("infoflow, replicate, reordered", vec![reordered(of(flow(), Exchange::Replicate))], 80 + 2 * probe),
            ("infoflow, replicate, reordered, warm", warm(reordered(of(flow(), Exchange::Replicate))), 80 + 2 * probe),
            ("prophetkv, pass-q", vec![prophet], 80 + 41),
            ("relay, pass-q", vec![of(method("relay"), Exchange::PassQ)], 80 + relay),
            ("trace, pass-q", vec![of(method("trace"), Exchange::PassQ)], 80 + relay),
        ]
    }

    /// The same, and a request of every method without a case of its own, whose groups the formula
    /// alone says.
    fn cases(model: &dyn Model) -> Vec<(&'static str, Vec<Plan>, Option<usize>)> {
        let mut cases: Vec<_> =
            numbered().into_iter().map(|(name, plans, wanted)| (name, plans, Some(wanted))).collect();
        let case = Case {
            prefix: 2,
            lead: &[],
            chunks: &[9, 8, 10, 7],
            query: 4,
            world: WORLD,
            exchange: Exchange::PassQ,
            ratio: 0.3,
        };
        for method in METHODS.into_iter().filter(|method| method.requires.is_none()) {
            if cases.iter().all(|(_, plans, _)| plans[0].method.method != method) {
                let plan = case.planned(method.name, model).unwrap_or_else(|why| panic!("{}: {why}", method.name));
                cases.push((method.name, vec![Plan { max_tokens: 1, ..plan }], None));
            }
        }
        cases
    }

    /// Rank 0's groups so far.
    fn logged(log: &str) -> Vec<String> {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let group = |line: &str| Some(line.strip_prefix("rank 0 group ")?.split_once(": ")?.1.to_owned());
        text.lines().filter_map(group).collect()
    }

    /// Where all chunks are warm, the probe's partials come first, and stale rows between them:
    /// none comes before the first, and none after the last, where the scores come. There are other
    /// numbers of partials and of stale layers.
    fn check_order(name: &str, groups: &[String]) {
        let partials = &groups[0];
        let is_partials = |group: &&String| *group == partials;
        let of_probes = if name.contains("reordered") { 2 * PROBED } else { PROBED };
        assert_eq!(groups.iter().filter(is_partials).count(), of_probes, "{name}: {groups:?}");
        let last = groups.iter().rposition(|group| is_partials(&group)).expect("partials");
        let probes = of_probes / PROBED;
        assert_eq!(last + 1, of_probes + LAYERS + probes - 1, "{name}: all stale rows have set out: {groups:?}");
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn requests() {
        let (models, log) = (models(), std::env::var(LOG).unwrap_or_default());
        let settings = NcclSettings {
            start_timeout: Duration::from_secs(60),
            allow_shared_gpu: false,
            unequal_gathers: UnequalGathers::ByHosts,
            message_multiprocessors: 4,
        };
        let model_shape = shape(&*models[0], DType::BF16);
        for (name, plans, wanted) in cases(&*models[0]) {
            let before = logged(&log).len();
            let runs = run_all_over(Carrier::Nccl(settings), &models, Kernels::Auto, WORLD, &plans);
            let formula = |index: usize| {
                let (plan, (outcome, _)) = (&plans[index], &runs[index]);
                groups(plan, WORLD, &model_shape, &Selected::from(outcome))
            };
            let last = plans.len() - 1;
            let received = runs[last].1[0].traffic.tensor_bytes_received();
            println!("{name}: {} groups, rank 0 receives {received} bytes", formula(last));
            assert_eq!(formula(last), wanted.unwrap_or(formula(last)), "{name}: formula");
            if log.is_empty() {
                continue; // only the formula was looked at
            }
            let all = logged(&log).split_off(before + CONNECTING);
            let most = (0..=last).map(formula).sum::<usize>();
            // Under pass-q a rank without the last layer's only row starts fewer there.
            let least = if wanted.is_some() { most } else { most.saturating_sub(2 * (WORLD - 1)) };
            let started = all.len();
            assert!((least..=most).contains(&started), "{name}: rank 0 started {started} groups of {most}");
            if name.contains("warm") {
                check_order(name, &all[formula(0)..]);
            }
        }
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn a_request_costs_the_groups_of_the_formula_in_their_order() {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", "emulated::requests", "--include-ignored", "--nocapture"]).env(LOG, log.path());
        let ended = child.output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
        println!("{said}");
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        assert!(logged(&log.path().display().to_string()).len() > 1000, "the log was written");
    }
}
