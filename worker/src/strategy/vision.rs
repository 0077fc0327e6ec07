//! The pictures of a request: their pixels go from rank 0 to the ranks that keep their chunks,
//! whose towers read them at the same time; then every rank gets all features, since any rank may
//! compute any row.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{cast, contiguous, cuda, join};
use tributary_model::{Features, Grid, Pictures, Tower, VisionConfig};
use tributary_pictures::{PatchRows, patch_rows};
use tributary_protocol::{PIXEL_BYTES, Phase, Picture, Plan, packs};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::gallery::Gallery;

/// Reads the pictures of a plan. Every rank calls it; without pictures it does nothing.
///
/// # Errors
/// Returns an error if the model reads no pictures, if a tower fails, or if the communicator does.
pub fn look(cx: &mut Context<'_>, plan: &Plan) -> Result<()> {
    let pictures = plan.pictures();
    if pictures.is_empty() {
        return Ok(());
    }
    let model = cx.models.main;
    let (Some(tower), Some(config)) = (model.tower(), model.config().vision.as_ref()) else {
        return Err(Error::Plan("the model reads no pictures".to_owned()));
    };
    cx.enter(Phase::Vision, plan)?;
    let (rank, world) = (cx.rank(), cx.comm.size());
    let of_rank = |rank: usize| pictures.iter().filter(move |(_, of)| *of == rank).map(|(picture, _)| *picture);
    let own: Vec<&Picture> = of_rank(rank).collect();
    let pixels = pixels(cx, &(0..world).map(|rank| of_rank(rank).collect()).collect::<Vec<_>>(), config)?;
    let features = own_features(cx, &Seeing { tower, config, plan }, &own, &pixels)?;
    let counts: Vec<usize> = (0..world).map(|rank| of_rank(rank).map(Picture::grid_rows).sum()).collect();
    let features = on_every_rank(cx, features, &counts)?;
    let in_order = (0..world).flat_map(of_rank).map(|picture| (picture.hash, picture.grid_rows() as u32));
    cx.models.gallery = Gallery::new(in_order, features);
    Ok(())
}

/// Bytes of a picture's pixels.
fn pixel_bytes(picture: &Picture, config: &VisionConfig) -> usize {
    picture.pixel_bytes(config.patch * config.merge)
}

/// The pixels of this rank's pictures, one picture after the other; `of_ranks` has all of them.
fn pixels(cx: &mut Context<'_>, of_ranks: &[Vec<&Picture>], config: &VisionConfig) -> Result<Vec<u8>> {
    let (rank, world) = (cx.rank(), of_ranks.len());
    let bytes = |of: &[&Picture]| of.iter().map(|picture| pixel_bytes(picture, config)).sum::<usize>();
    let all = |of: &[&Picture]| -> Result<Vec<u8>> {
        let mut pixels = Vec::with_capacity(bytes(of));
        of.iter().for_each(|picture| pixels.extend_from_slice(&picture.pixels.0));
        match pixels.len() == bytes(of) {
            true => Ok(pixels),
            false => Err(Error::Bug("rank 0 has the pixels of every picture")),
        }
    };
    if world == 1 {
        return all(&of_ranks[0]);
    }
    // A row is a line of a place: its length divides the pixels of every picture.
    let (width, device) = (config.patch * config.merge * PIXEL_BYTES, cx.models.main.device().clone());
    let mut sends = Vec::with_capacity(world);
    for (to, of) in of_ranks.iter().enumerate() {
        let is_sent = rank == 0 && to != 0 && !of.is_empty();
        sends.push(match is_sent {
            true => Tensor::from_vec(all(of)?, (bytes(of) / width, width), &Device::Cpu)?.to_device(&device)?,
            false => cuda::nothing((0, width), DType::U8, &device)?,
        });
    }
    let mut rows = vec![0; world];
    if rank != 0 {
        rows[0] = bytes(&of_ranks[rank]) / width;
    }
    let pending = cx.comm.start_all_to_all_v(&sends, &rows)?;
    let received = cx.comm.wait(pending)?;
    drop(sends);
    if rank == 0 {
        return all(&of_ranks[0]);
    }
    if rows[0] == 0 {
        return Ok(Vec::new());
    }
    Ok(cuda::download(&contiguous(&received[0])?)?.flatten_all()?.to_vec1()?)
}

/// A tower, and the plan whose pictures it reads.
struct Seeing<'a> {
    tower: &'a Tower,
    config: &'a VisionConfig,
    plan: &'a Plan,
}

impl Seeing<'_> {
    /// Patches of a picture's row.
    fn row_patches(&self) -> usize {
        self.config.merge * self.config.merge
    }
}

/// The features of this rank's pictures, of which some may be cached. The others run through the
/// tower pack by pack; every rank passes the control points of the rank with most packs.
fn own_features(cx: &mut Context<'_>, seeing: &Seeing<'_>, own: &[&Picture], pixels: &[u8]) -> Result<Features> {
    let packs = packs(own, seeing.row_patches());
    let (mut found, mut from) = (Vec::new(), 0);
    for pack in &packs {
        let end = from + pack.iter().map(|picture| pixel_bytes(picture, seeing.config)).sum::<usize>();
        found.extend(of_pack(cx, seeing, pack, &pixels[from..end])?);
        from = end;
    }
    let idle = seeing.plan.picture_packs(seeing.row_patches()) - packs.len();
    cx.math.progress.idle_layers(idle * seeing.config.layers)?;
    if found.is_empty() {
        return in_dtype(read(cx, seeing, &[], &[])?, cx.models.main.dtype());
    }
    Ok(Features::joined(&found.iter().collect::<Vec<_>>())?)
}

/// The features of each picture of a pack. A pack passes as many control points with cached
/// features as without.
fn of_pack(cx: &mut Context<'_>, seeing: &Seeing<'_>, pack: &[&Picture], pixels: &[u8]) -> Result<Vec<Features>> {
    let mut cached: Vec<Option<Features>> = pack.iter().map(|picture| cx.chunk_cache.features(&picture.hash)).collect();
    let (mut lacking, mut of_lacking, mut from) = (Vec::new(), Vec::new(), 0);
    for (picture, cached) in pack.iter().zip(&cached) {
        let end = from + pixel_bytes(picture, seeing.config);
        if cached.is_none() {
            lacking.push(*picture);
            of_lacking.extend_from_slice(&pixels[from..end]);
        }
        from = end;
    }
    if lacking.is_empty() {
        cx.math.progress.idle_layers(seeing.config.layers)?;
        return Ok(cached.into_iter().flatten().collect());
    }
    let made = in_dtype(read(cx, seeing, &lacking, &of_lacking)?, cx.models.main.dtype())?;
    let mut first = 0;
    for (picture, cached) in pack.iter().zip(&mut cached).filter(|(_, cached)| cached.is_none()) {
        let features = made.rows(first, picture.grid_rows())?;
        first += picture.grid_rows();
        if seeing.plan.keep_chunks {
            cx.chunk_cache.keep_features(&picture.hash, &features)?;
        }
        *cached = Some(features);
    }
    Ok(cached.into_iter().flatten().collect())
}

/// The features of these pictures, all at once.
fn read(cx: &Context<'_>, seeing: &Seeing<'_>, pictures: &[&Picture], pixels: &[u8]) -> Result<Features> {
    let Seeing { tower, config, .. } = *seeing;
    let preprocessing = &config.preprocessing;
    let shape = PatchRows {
        patch: config.patch,
        merge: config.merge,
        frames: config.frames,
        mean: preprocessing.mean,
        std: preprocessing.std,
    };
    let (mut patches, mut grids, mut from) = (Vec::new(), Vec::new(), 0);
    for picture in pictures {
        let merge = config.merge as u32;
        let grid = Grid { rows: picture.lines * merge, columns: picture.columns * merge };
        let bytes = pixel_bytes(picture, config);
        let (height, width) = (grid.rows as usize * config.patch, grid.columns as usize * config.patch);
        patches.extend(patch_rows(&pixels[from..from + bytes], height, width, &shape));
        grids.push(grid);
        from += bytes;
    }
    let count = grids.iter().map(|grid| grid.patches()).sum::<usize>();
    let patches = Tensor::from_vec(patches, (count, config.patch_numbers()), &Device::Cpu)?;
    // A request that a rank alone refused would leave the others in the gather.
    let features = tower.features(&Pictures { patches, grids }, &cx.math.progress);
    features.map_err(|error| match error {
        tributary_model::Error::Input(_) => Error::Bug("patches make up the grids of their pictures"),
        error => error.into(),
    })
}

/// Features in the type in which they travel: the same whether they do or not.
fn in_dtype(features: Features, dtype: DType) -> Result<Features> {
    let levels = features.levels.iter().map(|level| Ok(cast(level, dtype)?)).collect::<Result<_>>()?;
    Ok(Features { features: cast(&features.features, dtype)?, levels })
}

/// The features of all ranks, rank by rank; `counts` has the rows of each.
fn on_every_rank(cx: &mut Context<'_>, features: Features, counts: &[usize]) -> Result<Features> {
    if counts.len() == 1 {
        return Ok(features);
    }
    let levels = features.levels.len();
    let parts: Vec<&Tensor> = std::iter::once(&features.features).chain(&features.levels).collect();
    let hidden = features.features.dim(1)?;
    let own = contiguous(&join(&parts, 1)?)?; // [rows, (1 + levels) · hidden]
    let all = cx.comm.all_gather_v(&own, counts)?;
    let filled: Vec<&Tensor> = all.iter().filter(|part| part.dims()[0] > 0).collect();
    let all = join(&filled, 0)?;
    let part = |index: usize| Ok(contiguous(&all.narrow(1, index * hidden, hidden)?)?);
    Ok(Features { features: part(0)?, levels: (1..=levels).map(part).collect::<Result<_>>()? })
}
