//! Calls that NCCL gets, by the log of the emulated one (EMULATED_NCCL_LOG): the number of groups
//! and their contents. The log's name must be in the environment when a process starts, so each
//! test runs one in a child.

/// Facts that only an emulated NCCL logs.
mod emulated {
    use std::process::Command;
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    use candle_core::{Device, Tensor};
    use tributary_comm::local::{Seat, seats};
    use tributary_comm::nccl::{NcclSettings, UnequalGathers};
    use tributary_comm::{Communicator, Start, nccl};

    const WORLD: usize = 3;
    /// Rows of each rank: unequal, and one rank has none.
    const ROWS: [usize; WORLD] = [3, 0, 5];
    /// Two f32 a row.
    const ROW_BYTES: usize = 8;
    const HOW: &str = "UNEQUAL_GATHERS";
    /// Groups by which the ranks are connected: an exchange, three gathers and an all-to-all.
    const CONNECTING: usize = 5;

    /// Runs one closure a rank, one GPU each.
    fn run(unequal_gathers: UnequalGathers, rank: impl Fn(&mut dyn Communicator, &Device) + Sync) {
        let settings = NcclSettings {
            start_timeout: Duration::from_secs(20),
            allow_shared_gpu: false,
            unequal_gathers,
            message_multiprocessors: 4,
        };
        let done = Barrier::new(WORLD);
        let work = |seat: Seat| {
            let device = Device::new_cuda_with_stream(seat.rank()).expect("a GPU");
            let mut comm = nccl::start(seat.take(), &device, settings).expect("connected");
            rank(&mut *comm, &device);
            comm.barrier().expect("all are there");
            done.wait();
        };
        thread::scope(|scope| {
            for seat in seats(WORLD) {
                scope.spawn(|| work(seat));
            }
        });
    }

    fn rows(count: usize, device: &Device) -> Tensor {
        let some = Tensor::zeros((count.max(1), 2), candle_core::DType::F32, device).expect("zeros");
        some.narrow(0, 0, count).expect("rows")
    }

    /// Lines of rank 0 in NCCL's log when another test of this program runs in a separate process,
    /// without its number.
    fn lines_of(test: &str, how: &str) -> Vec<String> {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program);
        child.args(["--exact", &format!("emulated::{test}"), "--include-ignored"]);
        let ended = child.env("EMULATED_NCCL_LOG", log.path()).env(HOW, how).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        let log = std::fs::read_to_string(log.path()).expect("the log");
        log.lines().filter_map(|line| line.strip_prefix("rank 0 ")).map(str::to_owned).collect()
    }

    /// The groups of rank 0 once the ranks are connected.
    fn groups_of(test: &str, how: &str) -> Vec<String> {
        let group = |line: &String| Some(line.strip_prefix("group ")?.split_once(": ")?.1.to_owned());
        lines_of(test, how).iter().filter_map(group).skip(CONNECTING).collect()
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn an_unequal_gather() {
        let how = match std::env::var(HOW).as_deref() {
            Ok("broadcasts") => UnequalGathers::Broadcasts,
            Ok("messages") => UnequalGathers::Messages,
            _ => UnequalGathers::ByHosts,
        };
        run(how, |comm, device| {
            let received = comm.all_gather_v(&rows(ROWS[comm.rank()], device), &ROWS).expect("gathered");
            assert_eq!(received.iter().map(|part| part.dims()[0]).collect::<Vec<_>>(), ROWS);
        });
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn between_hosts_an_unequal_gather_is_broadcasts_and_no_messages() {
        let [first, last] = [ROWS[0], ROWS[2]].map(|rows| rows * ROW_BYTES);
        let broadcasts = [format!("broadcast {first} from 0, broadcast {last} from 2")];
        assert_eq!(groups_of("an_unequal_gather", "broadcasts"), broadcasts);
        let messages = [format!("send {first} to 1, send {first} to 2, receive {last} from 2")];
        assert_eq!(groups_of("an_unequal_gather", "messages"), messages);
        assert_eq!(groups_of("an_unequal_gather", "by hosts"), messages, "all ranks are on this host");
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn calls_started_together() {
        run(UnequalGathers::ByHosts, |comm, device| {
            let (me, none) = (comm.rank(), [0; WORLD]);
            let (mine, nothing) = (rows(2, device), rows(0, device));
            let to_all = [1; WORLD].map(|count| rows(count, device));
            let (to, from) = ((me + 1) % WORLD, (me + WORLD - 1) % WORLD);
            let starts = [
                Start::Exchange { send: &mine, to, from, rows: 2 },
                Start::AllGather { send: &nothing, rows: &none },
                Start::AllToAll { send: &to_all, rows: &[1; WORLD] },
            ];
            for starts in [&starts[..], &starts[1..2]] {
                for pending in comm.start_together(starts).expect("started") {
                    comm.wait(pending).expect("received");
                }
            }
        });
    }

    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn what_is_started_together_is_one_group_and_nothing_is_none() {
        let group = "send 16 to 1, receive 16 from 2, send 8 to 1, send 8 to 2, receive 8 from 1, receive 8 from 2";
        assert_eq!(groups_of("calls_started_together", ""), [group]);
    }

    /// A group costs a thread; the emulated GPU's most urgent streams have the priority -5. NCCL
    /// takes no more multiprocessors of this Hopper than attention leaves alone.
    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn messages_go_on_a_stream_of_the_most_urgent_priority() {
        let lines = lines_of("calls_started_together", "");
        let count = CONNECTING + 1;
        assert_eq!(
            lines.last(),
            Some(&format!("ended: {count} groups, {count} threads, priority -5, at most 4 blocks")),
            "{lines:?}"
        );
    }
}
