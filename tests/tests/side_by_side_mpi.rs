//! As `side_by_side.rs`, with ranks that are processes under a real mpirun. Two and three of them:
//! more share a core and wait for each other. Built with the feature `mpi`.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tributary_comm::{Communicator as _, link, mpi, process};
use tributary_kernels::Kernels;
use tributary_protocol::KeySpace;
use tributary_tests::side_by_side::side_by_side_equals_alone;
use tributary_tests::{AUXILIARY, adapters, dummy_model, tiny_config};
use tributary_worker::{ChunkCache, Models, serve};

/// Last message of rank 0.
const SAYS: &str = "all answers are equal";

#[test]
fn requests_side_by_side_on_processes_answer_as_each_does_alone() {
    for world in 2..=3 {
        let mut job = Command::new("mpirun");
        job.args(["-n", &world.to_string(), "--oversubscribe", "--bind-to", "none"]);
        job.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        job.env("OMPI_MCA_mpi_yield_when_idle", "1");
        job.arg(std::env::current_exe().expect("this program"));
        let output = job.args(["--exact", "a_rank_of_the_job", "--ignored", "--nocapture"]).output().expect("mpirun");
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{world} ranks: {said}{errors}");
        let ends = said.lines().filter(|line| line.contains(SAYS));
        let ends: Vec<&str> = ends.inspect(|line| println!("{line}")).collect();
        assert_eq!(ends.len(), 1, "rank 0 of {world}: {said}{errors}");
        assert!(ends[0].contains(&format!("world {world}:")), "{said}");
    }
}

#[test]
#[ignore = "a rank of the job that the test above starts"]
fn a_rank_of_the_job() {
    let (seat, facts) = mpi::start(process::ProcessSettings::default()).expect("the ranks find each other");
    let model = dummy_model(&tiny_config(&[]), 7);
    let (coordinator, worker) = link(4);
    let leads = facts.rank == 0;
    let asked = Arc::clone(&model);
    let rank = move || {
        let mut comm = seat.take();
        let mut chunk_cache = ChunkCache::new(KeySpace::new([0; 32], "f32"), 1 << 30);
        let timeout = Duration::from_secs(60);
        let worker = leads.then_some(worker);
        let models = Models::from(&*model).with(AUXILIARY, &*model).with_adapters(adapters(&*model));
        let served = serve(models, Kernels::Auto, &mut comm, worker.as_ref(), timeout, &mut chunk_cache);
        if let Err(error) = served {
            // A process whose group has failed cannot leave MPI in order.
            println!("rank {}: {error}", comm.rank());
            std::process::exit(1);
        }
    };
    let rank = std::thread::spawn(rank);
    if leads {
        let all_equal = || side_by_side_equals_alone(&coordinator, &*asked, facts.size);
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all_equal));
        let Ok((tokens, ties)) = found else { std::process::exit(1) };
        println!("world {}: {tokens} tokens, {SAYS}, but for near ties: {ties:?}", facts.size);
    }
    drop(coordinator);
    rank.join().expect("the rank serves to its end");
}
