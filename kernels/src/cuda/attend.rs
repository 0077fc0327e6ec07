//! Attention on CUDA: which kernel runs, what it is told, and what it leaves.
//!
//! Many query rows on Hopper: keys and values are packed once (`kernels/cu/pack_sm90.cu`), then read by
//! `kernels/cu/attend_sm90.cu`. Otherwise `kernels/cu/attend.cu` reads them where they lie.

use candle_core::cuda_backend::CudaDType;
use candle_core::{CudaDevice, DType, Device, Tensor};
use cudarc::driver::{CudaSlice, DeviceRepr, LaunchConfig, PushKernelArg};
use half::{bf16, f16};

use super::arguments::{AttendArguments, Blocks, CombineArguments, PackArguments, Turn};
use super::prepared::{Prepared, prepared};
use super::reading::{Reading, of, of_mut};
use super::sight::{MAX_BLOCKS, ROW_BITS, Tiling};
use super::{capability, module, multiprocessors, rope, tensor};
use crate::error::Result;
use crate::{Keys, Partial, Positions, Rope};

/// Rows of queries and heads from which packing the keys pays: below, they are read hardly more than once.
const WIDE_ROWS: usize = 512;

/// Keys of a tile of the packed kernel.
const WIDE_KEYS: usize = 128;

/// A 16-bit float of the kernels.
pub(super) trait Half: CudaDType + DeviceRepr + Copy {
    /// Its name in kernels' names.
    const NAME: &'static str;
}

impl Half for bf16 {
    const NAME: &'static str = "bf16";
}

impl Half for f16 {
    const NAME: &'static str = "f16";
}

/// Shapes of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub queries: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Shape {
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// The shapes of a call that the kernels are made for; `None` where candle's operations must do.
pub(super) fn shape(q: &Tensor, keys: &[Keys], rope: Option<&Rope>) -> Result<Option<Shape>> {
    let (queries, heads, head_dim) = q.dims3()?;
    let Some(block) = keys.first() else { return Ok(None) };
    let shape = Shape { queries, heads, kv_heads: block.k.dim(1)?, head_dim };
    let turns = rope.is_none_or(|rope| rope.rotary_dims().is_multiple_of(16));
    let rows: usize = keys.iter().map(|block| block.at.len()).sum();
    let alike = keys.iter().all(|block| block.k.dtype() == q.dtype() && block.v.dtype() == q.dtype());
    let fits = matches!(head_dim, 64 | 96 | 128) && turns && shape.group() <= 64 && rows < 1 << ROW_BITS && alike;
    Ok((fits && matches!(q.dtype(), DType::BF16 | DType::F16) && q.device().is_cuda()).then_some(shape))
}

/// See [`crate::Kernels::attend`]; `None` for what the kernels are not made for.
///
/// # Errors
/// A position beyond the tables, the driver's.
pub fn attend(
    q: &Tensor,
    at: &Positions,
    keys: &[Keys],
    rope: Option<&Rope>,
    scale: f32,
) -> Result<Option<Partial>> {
    let Some(shape) = shape(q, keys, rope)? else { return Ok(None) };
    let Device::Cuda(device) = q.device() else { return Ok(None) };
    if let Some(rope) = rope {
        let positions = keys.iter().flat_map(|block| block.at.rope()).chain(at.rope()).copied();
        rope.check(shape.head_dim, positions)?;
    }
    if shape.queries == 0 {
        let out = Tensor::zeros((0, shape.heads, shape.head_dim), q.dtype(), q.device())?;
        return Ok(Some(Partial { out, lse: Tensor::zeros((0, shape.heads), DType::F32, q.device())? }));
    }
    let call = Call { device, shape, q: q.contiguous()?, at, scale };
    match q.dtype() {
        DType::BF16 => call.run::<bf16>(keys, rope).map(Some),
        _ => call.run::<f16>(keys, rope).map(Some),
    }
}

struct Call<'a> {
    device: &'a CudaDevice,
    shape: Shape,
    q: Tensor,
    at: &'a Positions,
    scale: f32,
}

/// What a launch leaves.
struct Results<T> {
    out: CudaSlice<T>,
    lse: CudaSlice<f32>,
    part_out: CudaSlice<f32>,
    part_lse: CudaSlice<f32>,
}

impl Call<'_> {
    fn run<T: Half>(&self, keys: &[Keys], rope: Option<&Rope>) -> Result<Partial> {
        let Shape { queries, heads, kv_heads, head_dim } = self.shape;
        let group = self.shape.group();
        let many = queries * group >= WIDE_ROWS;
        let wide = many && capability(self.device).0 == 9;
        let resident = multiprocessors(self.device) as usize * if wide { 1 } else { 2 };
        let (rows, size) = if wide { (128, WIDE_KEYS) } else { (64, 64) };
        let tiling = Tiling { rows, keys: size, group, kv_heads, resident };
        let ready = prepared(self.device, self.at, keys, tiling)?;
        // Without a packing pass, many rows would turn every key again and again: once is enough.
        let turn_first = many && !wide && rope.is_some();
        let (joined, key_rope) = match rope.filter(|_| turn_first) {
            Some(rope) => (blocks(&turned(keys, rope)?)?, None),
            None => (blocks(keys)?, rope),
        };
        let mut results = self.results::<T>(&ready, rows)?;
        if wide {
            self.wide::<T>(&ready, &joined, rope, &mut results)?;
        } else {
            self.narrow::<T>(&ready, &joined, rope, key_rope, &mut results)?;
        }
        if ready.splits > 0 {
            self.combine::<T>(&ready, rows, &mut results)?;
        }
        let out = tensor(results.out, (queries, heads, head_dim), self.device)?;
        Ok(Partial { out, lse: tensor(results.lse, (queries, heads), self.device)? })
    }

    fn results<T: Half>(&self, ready: &Prepared, rows: usize) -> Result<Results<T>> {
        let Shape { queries, heads, kv_heads, head_dim } = self.shape;
        let parts = (ready.slots * kv_heads * rows).max(1);
        // SAFETY: the kernels write every number of `out` and `lse` (an item for every query tile, a combination for every
        // tile in parts), and every number of a slot before the combination reads it.
        unsafe {
            Ok(Results {
                out: self.device.alloc(queries * heads * head_dim)?,
                lse: self.device.alloc(queries * heads)?,
                part_out: self.device.alloc(parts * head_dim)?,
                part_lse: self.device.alloc(parts)?,
            })
        }
    }

    /// What both kernels are told.
    fn arguments(&self, ready: &Prepared, rope: Option<&Rope>) -> Result<(AttendArguments, Turn)> {
        let turn = match rope {
            Some(rope) => Turn::new(rope, &*rope::tables(rope, self.device)?, &self.device.cuda_stream()),
            None => Turn::none(),
        };
        let addresses = ready.addresses(&self.device.cuda_stream());
        let arguments = AttendArguments {
            rows: addresses.rows,
            rope: addresses.rope,
            sight: addresses.sight,
            tiles: addresses.tiles,
            items: addresses.items,
            key_source: addresses.key_source,
            key_rope: addresses.key_rope,
            turn,
            key_turn: Turn::none(),
            queries: self.shape.queries as u32,
            keys: ready.keys as u32,
            kv_heads: self.shape.kv_heads as u32,
            group: self.shape.group() as u32,
            key_tiles: ready.keys.div_ceil(WIDE_KEYS) as u32,
            scale_log2: self.scale * std::f32::consts::LOG2_E,
            ..AttendArguments::default()
        };
        Ok((arguments, turn))
    }

    fn narrow<T: Half>(
        &self,
        ready: &Prepared,
        keys: &[(Tensor, Tensor)],
        rope: Option<&Rope>,
        key_rope: Option<&Rope>,
        results: &mut Results<T>,
    ) -> Result<()> {
        let (mut arguments, turn) = self.arguments(ready, rope)?;
        arguments.key_turn = if key_rope.is_some() { turn } else { Turn::none() };
        let head_dim = self.shape.head_dim;
        let shared_bytes = 5 * 64 * if head_dim <= 64 { 128 } else { 256 };
        let name = format!("attend_{}_{head_dim}", T::NAME);
        self.launch::<T>("attend", &name, ready, arguments, Some(keys), 128, shared_bytes, results)
    }

    fn wide<T: Half>(
        &self,
        ready: &Prepared,
        keys: &[(Tensor, Tensor)],
        rope: Option<&Rope>,
        results: &mut Results<T>,
    ) -> Result<()> {
        let (kv_heads, head_dim) = (self.shape.kv_heads, self.shape.head_dim);
        let tiles = ready.keys.div_ceil(WIDE_KEYS);
        let columns = head_dim.div_ceil(64);
        let (k_bytes, v_bytes) = (columns * WIDE_KEYS * 128, WIDE_KEYS / 64 * head_dim * 128);
        let (mut arguments, turn) = self.arguments(ready, rope)?;
        // SAFETY: the packing kernel writes all of it that the products read, zeros beyond the last key.
        let (k, v) = unsafe {
            let count = (kv_heads * tiles).max(1);
            (self.device.alloc::<u8>(count * k_bytes)?, self.device.alloc::<u8>(count * v_bytes)?)
        };
        let stream = self.device.cuda_stream();
        let (packed_k, _k) = of(&k, &stream);
        let (packed_v, _v) = of(&v, &stream);
        if tiles > 0 {
            let name = format!("pack_sm90_{}_{head_dim}", T::NAME);
            let function = module::function(self.device, "pack_sm90", &name)?;
            let pack = PackArguments {
                key_source: arguments.key_source,
                key_rope: arguments.key_rope,
                packed_k,
                packed_v,
                turn,
                keys: ready.keys as u32,
                kv_heads: kv_heads as u32,
                key_tiles: tiles as u32,
            };
            let reading = Reading::of_pairs(keys);
            let addresses = reading.pairs::<T>(&stream)?;
            let blocks = Blocks::new(&addresses);
            let shared_mem_bytes = (WIDE_KEYS * (head_dim / 2 + 1) * 4) as u32;
            module::allow_shared(&function, shared_mem_bytes)?;
            let grid_dim = (tiles as u32, kv_heads as u32, 1);
            let config = LaunchConfig { grid_dim, block_dim: (256, 1, 1), shared_mem_bytes };
            let mut launch = stream.launch_builder(&function);
            launch.arg(&pack).arg(&blocks);
            // SAFETY: the arguments are laid out as the kernel's; every address is of memory that lives until the launch is
            // in the stream, and is freed in the stream's order.
            unsafe { launch.launch(config) }.map_err(super::driver("pack_sm90"))?;
        }
        (arguments.packed_k, arguments.packed_v) = (packed_k, packed_v);
        let shared_bytes = columns * WIDE_KEYS * 128 + 2 * (k_bytes + v_bytes) + 64;
        let name = format!("attend_sm90_{}_{head_dim}", T::NAME);
        self.launch::<T>("attend_sm90", &name, ready, arguments, None, 384, shared_bytes, results)
    }

    #[allow(clippy::too_many_arguments)]
    fn launch<T: Half>(
        &self,
        file: &'static str,
        name: &str,
        ready: &Prepared,
        mut arguments: AttendArguments,
        keys: Option<&[(Tensor, Tensor)]>,
        threads: u32,
        shared_bytes: usize,
        results: &mut Results<T>,
    ) -> Result<()> {
        let stream = self.device.cuda_stream();
        let function = module::function(self.device, file, name)?;
        module::allow_shared(&function, shared_bytes as u32)?;
        let query = Reading::new([&self.q]);
        let (q, _q) = query.address::<T>(0, &stream)?;
        let (out, _out) = of_mut(&mut results.out, &stream);
        let (lse, _lse) = of_mut(&mut results.lse, &stream);
        let (part_out, _part_out) = of_mut(&mut results.part_out, &stream);
        let (part_lse, _part_lse) = of_mut(&mut results.part_lse, &stream);
        arguments = AttendArguments { q, out, lse, part_out, part_lse, ..arguments };
        let reading = Reading::of_pairs(keys.unwrap_or_default());
        let addresses = reading.pairs::<T>(&stream)?;
        let blocks = Blocks::new(&addresses);
        let config = LaunchConfig {
            grid_dim: (ready.items as u32, self.shape.kv_heads as u32, 1),
            block_dim: (threads, 1, 1),
            shared_mem_bytes: shared_bytes as u32,
        };
        let mut launch = stream.launch_builder(&function);
        launch.arg(&arguments);
        if keys.is_some() {
            launch.arg(&blocks);
        }
        // SAFETY: as for packing.
        unsafe { launch.launch(config) }.map_err(super::driver(file))?;
        Ok(())
    }

    fn combine<T: Half>(&self, ready: &Prepared, rows: usize, results: &mut Results<T>) -> Result<()> {
        let stream = self.device.cuda_stream();
        let function = module::function(self.device, "attend_combine", &format!("attend_combine_{}", T::NAME))?;
        let addresses = ready.addresses(&stream);
        let (part_out, _part_out) = of(&results.part_out, &stream);
        let (part_lse, _part_lse) = of(&results.part_lse, &stream);
        let (out, _out) = of_mut(&mut results.out, &stream);
        let (lse, _lse) = of_mut(&mut results.lse, &stream);
        let arguments = CombineArguments {
            part_out,
            part_lse,
            splits: addresses.splits,
            rows: addresses.rows,
            out,
            lse,
            queries: self.shape.queries as u32,
            kv_heads: self.shape.kv_heads as u32,
            group: self.shape.group() as u32,
            tile_rows: rows as u32,
            head_dim: self.shape.head_dim as u32,
        };
        let grid_dim = (ready.splits as u32, rows as u32, self.shape.kv_heads as u32);
        let config = LaunchConfig { grid_dim, block_dim: (self.shape.head_dim as u32, 1, 1), shared_mem_bytes: 0 };
        let mut launch = stream.launch_builder(&function);
        launch.arg(&arguments);
        // SAFETY: as for packing.
        unsafe { launch.launch(config) }.map_err(super::driver("attend_combine"))?;
        Ok(())
    }
}

/// The blocks as a launch takes them: contiguous, and not more than it can name.
pub(super) fn blocks(keys: &[Keys]) -> Result<Vec<(Tensor, Tensor)>> {
    let mut all: Vec<(Tensor, Tensor)> = Vec::with_capacity(keys.len());
    for block in keys {
        all.push((block.k.contiguous()?, block.v.contiguous()?));
    }
    if all.len() > MAX_BLOCKS {
        let rest = all.split_off(MAX_BLOCKS - 1);
        let (k, v): (Vec<Tensor>, Vec<Tensor>) = rest.into_iter().unzip();
        all.push((Tensor::cat(&k, 0)?, Tensor::cat(&v, 0)?));
    }
    Ok(all)
}

/// The blocks with their keys turned.
fn turned(keys: &[Keys], rope: &Rope) -> Result<Vec<Keys>> {
    let turn = |block: &Keys| Ok(Keys { k: rope.apply(&block.k, &block.at)?, v: block.v.clone(), at: block.at.clone() });
    keys.iter().map(turn).collect()
}
