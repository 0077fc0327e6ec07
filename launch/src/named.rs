//! Values with names on the command line: those of the crates below, which know no command line.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tributary_engine::{DeviceKind, Dtype, KvDtype, TemplateUse, Transport};
use tributary_kernels::Kernels;
use tributary_protocol::tile::TileOrder;
use tributary_quality::Part;

/// A name, its meaning, its value.
pub type Named<T> = (&'static str, &'static str, T);

pub static DEVICES: [Named<DeviceKind>; 2] =
    [("cpu", "The host's CPU cores", DeviceKind::Cpu), ("cuda", "NVIDIA GPUs", DeviceKind::Cuda)];

pub static DTYPES: [Named<Dtype>; 3] = [
    ("f32", "32 bits", Dtype::F32),
    ("bf16", "16 bits, with the range of f32", Dtype::Bf16),
    ("f16", "16 bits, with more precision and less range than bf16", Dtype::F16),
];

pub static KV_DTYPES: [Named<KvDtype>; 2] = [
    ("auto", "The type of --dtype", KvDtype::Auto),
    ("fp8", "8-bit float (E4M3), with a scale per token and KV head", KvDtype::Fp8),
];

pub static KERNELS: [Named<Kernels>; 2] = [
    ("auto", "The fastest for the device", Kernels::Auto),
    ("plain", "Candle operations on any device, the reference", Kernels::Plain),
];

pub static TEMPLATES: [Named<TemplateUse>; 2] =
    [("auto", "Use it if the model has one", TemplateUse::Auto), ("none", "Do not use it", TemplateUse::None)];

pub static TILE_ORDERS: [Named<TileOrder>; 2] = [
    ("raster", "Line by line, across tiles, as in the uncut picture", TileOrder::Raster),
    ("tile", "Tile after tile: another prompt than that of the uncut picture", TileOrder::Tile),
];

pub static PARTS: [Named<Part>; 3] = [
    ("selection", "The part on which methods are chosen and calibrated", Part::Selection),
    ("report", "The other part, for what a committed study lists", Part::Report),
    ("all", "All sources", Part::All),
];

pub static TRANSPORTS: [Named<Transport>; 4] = [
    ("auto", "mpi under a launcher, else local; nccl for tensors between GPUs", Transport::Auto),
    ("local", "Ranks as threads of this process", Transport::Local),
    ("mpi", "Ranks as processes, started by a launcher; nccl for tensors between GPUs", Transport::Mpi),
    ("nccl", "NCCL for tensors between GPUs; everything else as with auto", Transport::Nccl),
];

/// Parser of one of these values.
pub fn one_of<T: Copy + Send + Sync>(all: &'static [Named<T>]) -> impl TypedValueParser<Value = T> {
    let names = all.iter().map(|(name, meaning, _)| PossibleValue::new(*name).help(*meaning));
    PossibleValuesParser::new(names).map(move |name| value_of(all, &name).expect("clap has checked the name"))
}

/// The value of a name.
pub fn value_of<T: Copy>(all: &[Named<T>], name: &str) -> Option<T> {
    all.iter().find(|(own, ..)| *own == name).map(|(.., value)| *value)
}

/// The name of a value.
pub fn name_of<T: PartialEq>(all: &[Named<T>], value: &T) -> String {
    all.iter().find(|(.., own)| own == value).map_or_else(String::new, |(name, ..)| (*name).to_owned())
}

/// Type of weights and KV cache by default: f32 on a CPU, bf16 on a GPU.
pub fn usual_dtype(device: DeviceKind) -> Dtype {
    match device {
        DeviceKind::Cpu => Dtype::F32,
        DeviceKind::Cuda => Dtype::Bf16,
    }
}
