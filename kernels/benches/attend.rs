fn main() {
    use candle_core::{Device, Tensor};
    use tributary_kernels::*;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        let dev = Device::Cpu;
        let time = |name: &str, flop: f64, f: &mut dyn FnMut()| {
            f();
            let mut best = f64::MAX;
            for _ in 0..9 {
                let s = std::time::Instant::now();
                f();
                best = best.min(s.elapsed().as_secs_f64());
            }
            println!("{name:30} {:9.3} ms {:8.1} GFLOP/s", best * 1e3, flop / best / 1e9);
        };
        let w = Tensor::randn(0f32, 1.0, (1408, 512), &dev).unwrap();
        let wb = w.to_dtype(candle_core::DType::BF16).unwrap();
        for rows in [1usize, 4, 16, 64, 600, 4096] {
            let x = Tensor::randn(0f32, 1.0, (rows, 512), &dev).unwrap();
            time(&format!("linear {rows}"), 2.0 * rows as f64 * 512. * 1408., &mut || {
                linear(&x, &w, None).unwrap();
            });
            time(&format!("linear bf16 {rows}"), 2.0 * rows as f64 * 512. * 1408., &mut || {
                linear(&x, &wb, None).unwrap();
            });
        }
        let g = Tensor::randn(0f32, 1.0, (4096, 1408), &dev).unwrap();
        time("silu_mul 4096x1408", 0.0, &mut || {
            silu_mul(&g, &g).unwrap();
        });
        time("silu candle 4096x1408", 0.0, &mut || {
            (g.silu().unwrap() * &g).unwrap();
        });
        let g = Tensor::randn(0f32, 1.0, (4096, 512), &dev).unwrap();
        let ww = Tensor::randn(0f32, 1.0, 512, &dev).unwrap();
        time("rms_norm 4096x512", 0.0, &mut || {
            rms_norm(&g, &ww, 1e-5).unwrap();
        });
        time("rms_norm candle 4096x512", 0.0, &mut || {
            candle_nn::ops::rms_norm(&g, &ww, 1e-5).unwrap();
        });
        let p = Partial {
            out: Tensor::randn(0f32, 1.0, (4096, 8, 64), &dev).unwrap(),
            lse: Tensor::randn(0f32, 1.0, (4096, 8), &dev).unwrap(),
        };
        time("merge 4096x8x64", 0.0, &mut || {
            merge(&p, &p).unwrap();
        });
        let idx: Vec<u32> = (0..600).collect();
        let r = gather(&g, &idx).unwrap();
        time("scatter 600 of 4096x512", 0.0, &mut || {
            scatter(&g, &idx, &r).unwrap();
        });
    });
}
