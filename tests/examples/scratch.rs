use tributary_comm::wire::*;
use tributary_kernels::Kernels;
use tributary_tests::*;
fn main() {
    let config = tiny_config(&[("hidden_size", 512.into()), ("num_hidden_layers", 8.into()), ("num_attention_heads", 8.into()), ("num_key_value_heads", 2.into()), ("head_dim", 64.into()), ("intermediate_size", 1408.into()), ("vocab_size", 4096.into()), ("tie_word_embeddings", true.into()), ("max_position_embeddings", 32768.into())]);
    let model = dummy_model(&config, 1);
    let chunks = [512usize; 16];
    let show = |name: &str, r: &(Outcome, Vec<RankReport>)| {
        for rep in &r.1 {
            let total: f64 = rep.spans.iter().filter(|s| s.phase < Phase::Decode).map(|s| s.seconds).sum();
            print!("{name} rank {} total {total:.2}s: ", rep.rank);
            for s in &rep.spans { print!("{} {:.3} (wait {:.3}) ", s.phase, s.seconds, s.waited_s); }
            println!("bytes {}", rep.traffic.tensor_bytes_received());
        }
    };
    let arg: String = std::env::args().nth(1).unwrap_or("all".into());
    let go = |name: &str, world: usize, method: Method, ex: Exchange| {
        if arg != "all" && !name.starts_with(&arg) { return; }
        let p = with_ratio(plan(1, &chunks, 32, world, method, ex), 0.15);
        let rs = run_all(&model, Kernels::Auto, world, &[p.clone(), p]);
        show(name, &rs[1]);
    };
    go("full", 1, Method::Full, Exchange::PassQ);
    go("infoflow1", 1, infoflow(4, 5), Exchange::PassQ);
    go("ring", 2, Method::Ring, Exchange::PassQ);
    go("allgather", 2, Method::AllGather { heads_per_gather: None }, Exchange::PassQ);
    go("none", 2, Method::None, Exchange::PassQ);
    go("infoflow-passq", 2, infoflow(4, 5), Exchange::PassQ);
    go("infoflow-repl", 2, infoflow(4, 5), Exchange::Replicate);
    go("infoflow-sel", 2, infoflow(4, 5), Exchange::Selected);
    go("relay", 2, Method::Relay { layout: Layout::Global }, Exchange::PassQ);
}
