//! Compiles the CUDA kernels where the feature `cuda` is on: every `cu/*.cu` to machine code for
//! sm_80 and sm_90a (`*_sm90.cu` for sm_90a only), which the library embeds with the names of the
//! kernels in it. Registers and spills of each kernel are left in `registers.txt` in OUT_DIR. With
//! CUDA_LINE_INFO=1 the code keeps its line numbers, by which ncu shows stalls beside the source;
//! they make up three quarters of its size.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, thread};

/// The two machines: the number by which the library knows the code, and the compiler's names for
/// it.
const TARGETS: [(u32, &str); 2] =
    [(80, "-gencode=arch=compute_80,code=sm_80"), (90, "-gencode=arch=compute_90a,code=sm_90a")];

fn main() {
    println!("cargo:rerun-if-changed=cu");
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "CUDA_LINE_INFO"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    let work = Mutex::new(jobs(&out));
    let done = Mutex::new(Vec::new());
    let workers = env::var("NUM_JOBS").ok().and_then(|text| text.parse().ok()).unwrap_or(1usize).clamp(1, 16);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(job) = work.lock().expect("no worker panics while it looks").pop() {
                    let report = compile(&job);
                    done.lock().expect("no worker panics while it adds").push((job, report));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("the workers are done");
    done.sort_by(|(a, _), (b, _)| a.code.cmp(&b.code));
    write_index(&out, &done);
}

struct Job {
    name: String,
    source: PathBuf,
    target: (u32, &'static str),
    code: PathBuf,
}

fn jobs(out: &Path) -> Vec<Job> {
    let mut jobs = Vec::new();
    for entry in fs::read_dir("cu").expect("the folder of the kernels") {
        let source = entry.expect("an entry").path();
        if source.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let name = source.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        for target in TARGETS {
            if target.0 == 80 && name.ends_with("_sm90") {
                continue;
            }
            let code = out.join(format!("{name}.{}.cubin", target.0));
            jobs.push(Job { name: name.clone(), source: source.clone(), target, code });
        }
    }
    jobs
}

/// Runs nvcc; gives ptxas' report of registers.
fn compile(job: &Job) -> String {
    let output = Command::new(nvcc())
        .args(["--cubin", "-O3", "-std=c++17", "-Xptxas=-v", job.target.1])
        .args(env::var("CUDA_LINE_INFO").is_ok_and(|value| value == "1").then_some("-lineinfo"))
        .arg("-o")
        .arg(&job.code)
        .arg(&job.source)
        .output();
    let Ok(output) = output else {
        panic!("`{}` cannot be run: the feature `cuda` needs nvcc (see .ci/cuda)", nvcc().display());
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{} for sm_{}:\n{said}", job.source.display(), job.target.0);
    said
}

fn nvcc() -> PathBuf {
    if let Some(path) = env::var_os("NVCC") {
        return path.into();
    }
    let home = env::var_os("CUDA_HOME").or_else(|| env::var_os("CUDA_PATH"));
    home.map_or_else(|| "nvcc".into(), |home| Path::new(&home).join("bin/nvcc"))
}

/// The kernels that a compiler's report names: ptxas prints each as `Compiling entry function
/// 'NAME' for 'sm_80'`.
fn kernels(report: &str) -> Vec<&str> {
    report
        .lines()
        .filter_map(|line| line.split_once("Compiling entry function '")?.1.split_once('\''))
        .map(|(name, _)| name)
        .collect()
}

/// `cubins.rs`: target, kernels and code of every kernel file; `registers.txt`: the report of
/// ptxas.
fn write_index(out: &Path, done: &[(Job, String)]) {
    let (mut index, mut registers) = (String::from("&[\n"), String::new());
    for (job, said) in done {
        let (code, names) = (job.code.display(), kernels(said));
        assert!(!names.is_empty(), "nvcc names no kernel of {}:\n{said}", job.source.display());
        writeln!(index, "    ({}, &{names:?}, include_bytes!({:?})),", job.target.0, code.to_string())
            .expect("a string takes everything");
        writeln!(registers, "== {} sm_{}\n{said}", job.name, job.target.0).expect("a string takes everything");
    }
    index.push_str("]\n");
    fs::write(out.join("cubins.rs"), index).expect("OUT_DIR can be written");
    fs::write(out.join("registers.txt"), registers).expect("OUT_DIR can be written");
}
