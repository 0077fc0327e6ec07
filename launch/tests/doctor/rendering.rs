//! `doctor`'s report as a text.

use tributary::doctor::{
    AllGather, Checks, Collectives, CpuLimit, Facts, Gpu, Interface, Latency, LeftOut, Limits, Report, Space,
};

fn facts(rank: usize) -> Facts {
    let interface = Interface {
        name: "eth0".into(),
        state: "up".into(),
        mtu_bytes: Some(9000),
        speed_mbit_per_s: Some(2500),
        loopback: false,
        addresses: vec!["10.0.0.1/24".into(), "2001:db8::1/64".into()],
    };
    let gpu = Gpu {
        name: "NVIDIA H200".into(),
        uuid: "GPU-1".into(),
        bus_id: "0000:1b:00.0".into(),
        memory_bytes: 141 << 30,
        driver: "13.0".into(),
    };
    Facts {
        host: ["node-a", "node-b"][rank].into(),
        boot_id: "0123456789abcdef".into(),
        pid: 100 + rank as u32,
        threads: 2,
        cores: [2 * rank, 2 * rank + 1].into(),
        cpu_limit: Some(CpuLimit { cores: 2.5, group: "/job".into() }),
        free_memory_bytes: Some(3 << 29),
        instructions: "AVX2".into(),
        version: "0.1.0".into(),
        shared_memory: Some(Space { free_bytes: 1 << 30, total_bytes: 2 << 30 }),
        limits: Limits { open_files: Some(20000), stack_bytes: Some(8 << 20), ..Limits::default() },
        interfaces: vec![interface],
        gpus: if rank == 0 { vec![gpu] } else { Vec::new() },
        gpu_in_use: None,
    }
}

fn report(ranks: usize, collectives: Collectives, min_busbw: Option<f64>) -> Report {
    let facts: Vec<Facts> = (0..ranks).map(facts).collect();
    let mut report = Report::new("Open MPI 4.1.4 (mpirun), 2 ranks", &facts, collectives, min_busbw);
    report.version = "0.1.0".into();
    report
}

#[test]
fn a_whole_report() {
    let all_gathers = vec![
        AllGather::new("1MiB".parse().expect("a size"), 2, true, vec![0.5, 0.25, 1.0], 0),
        AllGather::new("256MiB".parse().expect("a size"), 2, true, vec![100.0; 3], 0),
    ];
    let latency = Latency { rank_bytes: 256, runs_us: vec![9.5; 3], median_us: 9.5, min_us: 8.25, max_us: 11.0 };
    let collectives =
        Collectives { checks: Checks::Passed, all_gathers, latency: Some(latency), ..Collectives::default() };
    let wanted = "\
tributary 0.1.0
launcher: Open MPI 4.1.4 (mpirun), 2 ranks

rank    host  local rank  pid  threads  cores  which cores  free memory  instructions  version
0     node-a           0  100        2      2          0-1      1.5 GiB          AVX2    0.1.0
1     node-b           0  101        2      2          2-3      1.5 GiB          AVX2    0.1.0

node-a (boot id 01234567): rank 0
  interface  state   MTU  speed [Gbit/s]                   addresses
  eth0          up  9000             2.5  10.0.0.1/24 2001:db8::1/64
  /dev/shm: 1.0 GiB free of 2.0 GiB
  limits: 20000 open files, unlimited locked memory, 8.0 MiB stack, unlimited core file
  GPU 0000:1b:00.0: NVIDIA H200, 141.0 GiB, GPU-1, driver for CUDA 13.0
  control group /job: 2.5 cores

node-b (boot id 01234567): rank 1
  interface  state   MTU  speed [Gbit/s]                   addresses
  eth0          up  9000             2.5  10.0.0.1/24 2001:db8::1/64
  /dev/shm: 1.0 GiB free of 2.0 GiB
  limits: 20000 open files, unlimited locked memory, 8.0 MiB stack, unlimited core file
  control group /job: 2.5 cores

collectives: every check passed on 2 ranks

all-gather: 3 runs after 2 warm-ups, each as long as its slowest rank's
size     median [ms]  min [ms]  max [ms]  algorithm [GB/s]  bus [GB/s]  wrong values
1 MiB          0.500     0.250     1.000             2.097       1.049             0
256 MiB      100.000   100.000   100.000             2.684       1.342             0
algorithm: size / median time; bus: (n - 1) / n of it, as nccl-tests has them.
latency: an all-gather of 256 B a rank takes 9.5 µs (min 8.2, max 11.0)

fit
";
    let found = report(2, collectives, Some(1.0)).render();
    assert_eq!(found, wanted, "\n{found}");
}

#[test]
fn one_rank_has_nothing_to_measure() {
    let collectives = Collectives { checks: Checks::LeftOut, ..Collectives::default() };
    let text = report(1, collectives, None).render();
    assert!(text.ends_with("collectives: not checked\nall-gather: one rank has nothing to measure\n\nfit\n"), "{text}");
}

#[test]
fn failures_and_gaps_are_shown() {
    let checks = Checks::Failed("exchange: 2 parts, not 1".into());
    let left_out = vec![LeftOut { size_bytes: "8GiB".parse().expect("a size"), reason: "too little memory".into() }];
    let text = report(2, Collectives { checks, left_out, ..Collectives::default() }, None).render();
    assert!(text.contains("collectives: FAILED: exchange: 2 parts, not 1\n"), "{text}");
    assert!(text.contains("all-gather of 8 GiB: not measured: too little memory\n"), "{text}");
    assert!(text.ends_with("\nunfit: collectives: exchange: 2 parts, not 1\n"), "{text}");
}
