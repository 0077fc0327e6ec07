fn main() {
    use candle_core::{Device, Tensor};
    use tributary_kernels::*;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        let dev = Device::Cpu;
        let t = |r: usize, h: usize, d: usize| Tensor::randn(0f32, 1.0, (r, h, d), &dev).unwrap();
        let time = |name: &str, flop: f64, f: &mut dyn FnMut()| {
            f();
            let mut best = f64::MAX;
            for _ in 0..5 {
                let s = std::time::Instant::now();
                f();
                best = best.min(s.elapsed().as_secs_f64());
            }
            println!("{name:30} {:9.3} ms {:8.1} GFLOP/s", best * 1e3, flop / best / 1e9);
        };
        let a = Tensor::randn(0f32, 1.0, (1024, 1024), &dev).unwrap();
        time("gemm 1024", 2.0 * 1024f64.powi(3), &mut || { a.matmul(&a).unwrap(); });
        let x = Tensor::randn(0f32, 1.0, (4096, 512), &dev).unwrap();
        let w = Tensor::randn(0f32, 1.0, (1408, 512), &dev).unwrap();
        time("gemm 4096x512x1408", 2.0 * 4096. * 512. * 1408., &mut || { linear(&x, &w, None).unwrap(); });
        let wb = w.to_dtype(candle_core::DType::BF16).unwrap();
        time("gemm 4096x512x1408 bf16", 2.0 * 4096. * 512. * 1408., &mut || { linear(&x, &wb, None).unwrap(); });
        let n = 4096usize;
        for d in [64usize, 128] {
            let (q, k, v) = (t(n, 8, d), t(n, 2, d), t(n, 2, d));
            let at = Positions::run(0, n);
            let keys = [Keys { k: k.clone(), v: v.clone(), at: at.clone() }];
            let pairs = (n * (n + 1) / 2) as f64;
            let unit = 4.0 * d as f64 * 8.0;
            time("dense", unit * pairs, &mut || { Kernels::Auto.attend(&q, &at, &keys, None, 0.125).unwrap(); });
            let rope = Rope::new(d, d, 1e4, &RopeScaling::None, Pairing::Half, 8192).unwrap();
            time("dense rope", unit * pairs, &mut || { Kernels::Auto.attend(&q, &at, &keys, Some(&rope), 0.125).unwrap(); });
            let idx: Vec<u32> = (0..n as u32).step_by(7).collect();
            let qs = gather(&q, &idx).unwrap();
            let ats = at.select(&idx);
            let p: f64 = idx.iter().map(|&i| f64::from(i + 1)).sum();
            time("staircase", unit * p, &mut || { Kernels::Auto.attend(&qs, &ats, &keys, None, 0.125).unwrap(); });
            let m = 8192usize;
            let (k, v) = (t(m, 2, d), t(m, 2, d));
            let atk = Positions::run(0, m);
            let keys = [Keys { k: k.clone(), v: v.clone(), at: atk.clone() }];
            for r in [1usize, 16, 600] {
                let q = t(r, 8, d);
                let at = Positions::run(m as u32, r);
                time(&format!("{r} rows over 8192"), unit * (r * m) as f64, &mut || { Kernels::Auto.attend(&q, &at, &keys, None, 0.125).unwrap(); });
                let part = Kernels::Auto.attend(&q, &at, &keys, None, 0.125).unwrap();
                if r > 1 {
                time(&format!("{r} column scores"), unit * (r * m) as f64 / 2.0, &mut || { Kernels::Auto.column_scores(&q, &at, &keys, None, 0.125, &part.lse, Reduce::Norm).unwrap(); });
                }
            }
        }
    });
}
