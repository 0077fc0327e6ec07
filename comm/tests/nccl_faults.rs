//! Faults that only an emulated NCCL has on demand. The environment demands them before a process
//! starts, so each test runs another test of this program in a child.

mod faults {
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::sync::Barrier;
    use std::thread;
    use std::time::{Duration, Instant};

    use candle_core::{DType, Device, Tensor};
    use tributary_comm::local::{Seat, seats};
    use tributary_comm::nccl::{NcclSettings, UnequalGathers};
    use tributary_comm::{Error, nccl};
    use tributary_protocol::Phase;

    /// A file of this name makes NCCL fail.
    const FAIL_FILE: &str = "EMULATED_NCCL_FAIL_FILE";
    /// More launches than a stream takes: the thread that adds the next one waits with the driver's
    /// lock held.
    const LAUNCHES: usize = 2000;
    const LONG: Duration = Duration::from_secs(20);

    fn rows(device: &Device) -> Tensor {
        Tensor::ones((1, 2), DType::F32, &Device::Cpu).and_then(|one| one.to_device(device)).expect("rows")
    }

    /// Waits for a child, which is killed if it takes too long.
    fn ended(mut child: Child) -> Option<ExitStatus> {
        let began = Instant::now();
        while began.elapsed() < LONG {
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(20));
        }
        child.kill().expect("it can be killed");
        None
    }

    /// The child's part. Rank 0 waits in a collective that rank 1 does not join, and after it in a
    /// launch. Then NCCL loses its connections, and only the watching thread can report it.
    #[test]
    #[ignore = "a_lost_connection_is_told runs it in a child"]
    fn child() {
        let fail_file = std::env::var(FAIL_FILE).expect("the name of a file");
        let settings = NcclSettings {
            start_timeout: LONG,
            allow_shared_gpu: false,
            unequal_gathers: UnequalGathers::ByHosts,
            message_multiprocessors: 4,
        };
        let meet = Barrier::new(2);
        let rank = |seat: Seat| {
            let device = Device::new_cuda_with_stream(seat.rank()).expect("a GPU");
            let mut comm = nccl::start(seat.take(), &device, settings).expect("connected");
            comm.set_deadline(Phase::Recompute, 10 * LONG);
            // Both ranks are connected before the connections are lost.
            meet.wait();
            if comm.rank() == 0 {
                let _gathered = comm.all_gather_v(&rows(&device), &[1, 1]).expect("started");
                std::fs::write(&fail_file, "").expect("written");
                let _launched: Vec<_> =
                    (0..LAUNCHES).map_while(|_| Tensor::zeros(4, DType::F32, &device).ok()).collect();
            }
            meet.wait();
            comm.barrier().expect_err("the group is dead")
        };
        let errors: Vec<Error> = thread::scope(|scope| {
            let ranks: Vec<_> = seats(2).into_iter().map(|seat| scope.spawn(|| rank(seat))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        for error in errors {
            assert_eq!(error.exit_code(), 69, "{error}");
            assert!(error.to_string().contains("Connection reset by peer"), "{error}");
        }
    }

    /// The watching thread makes no call to the driver, whose lock rank 0 holds: so it can report
    /// the failure.
    pub fn lost_connection_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", "faults::child", "--include-ignored"]);
        child.env(FAIL_FILE, folder.path().join("lost")).stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let status = ended(child.spawn().expect("it starts"));
        assert!(status.is_some_and(|status| status.success()), "{status:?}; None: it stood still");
    }
}

mod emulated {
    #[test]
    #[ignore = "needs emulated GPUs: make cuda-test"]
    fn a_lost_connection_is_told() {
        super::faults::lost_connection_is_told();
    }
}
