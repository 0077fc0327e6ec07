//! Quantised weights of a Hugging Face folder, by the form of their tensors: FP8, integers of 8 and
//! 4 bits (compressed-tensors), AWQ, GPTQ. A matrix is codes, with scales and zero points by
//! groups; where a group is whole runs of 32 codes it stays packed.

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use tributary_kernels::{Packed, Packing, of_e4m3};

use crate::error::Result;

/// Codes of the smallest block, and of a run in which those of four bits are laid out.
const RUN: usize = 32;

/// Where AWQ has the eight outputs of a word: output j is in its four bits number `AWQ_PLACES[j]`.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// What a config says of the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantisation {
    method: Method,
    /// Outputs and inputs that share a scale where scales are by blocks.
    block: [usize; 2],
    /// The packing of a matrix with the smallest groups.
    packing: Packing,
    /// Inputs of a group; a whole row where none is stated.
    group: Option<usize>,
    /// Whether groups are of inputs in another order (`desc_act`).
    reordered: bool,
    /// Whether integers of 8 bits have zero points.
    with_zeros: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// Packings of GGUF, which stand in a file of that kind.
    Gguf,
    /// MXFP4 of experts, whose tensors their layer knows (gpt-oss).
    Experts,
    /// Scales of FP8, or of integers of compressed-tensors.
    Scaled,
    Awq,
    Gptq {
        /// What was subtracted from zero points before they were stored.
        less: u8,
    },
}

impl Quantisation {
    /// The packing of a matrix whose rows have so many numbers, if all are stored alike.
    pub(crate) fn packing(self, inputs: usize) -> Packing {
        self.of_codes(self.packing, inputs)
    }

    /// That of a matrix with such codes: `packing`, or the same with larger groups.
    pub(crate) fn of_codes(self, packing: Packing, inputs: usize) -> Packing {
        let group = if self.block[1] > 0 { self.block[1] } else { self.group.unwrap_or(inputs) };
        let wide = packing.in_groups_of_128().filter(|wide| {
            inputs.is_multiple_of(wide.numbers()) && (group >= inputs || group.is_multiple_of(wide.numbers()))
        });
        wide.unwrap_or(packing)
    }

    /// Numbers of a row of a stored matrix of codes of this form, whose shape as stored is `shape`.
    pub(crate) fn stored_inputs(self, shape: &[usize], of_a_word: usize) -> usize {
        match (self.method, shape) {
            (Method::Awq, [inputs, _]) => *inputs,
            (Method::Gptq { .. }, [words, _]) => words * of_a_word,
            (_, [.., words]) => words * of_a_word,
            (_, []) => 0,
        }
    }

    /// Whether matrices stay packed in memory, or are unpacked while they load.
    pub(crate) fn stays_packed(self) -> bool {
        !self.reordered && !self.with_zeros && self.group.is_none_or(|group| group.is_multiple_of(RUN))
    }

    /// Whether experts alone are packed.
    pub(crate) fn is_of_experts(self) -> bool {
        self.method == Method::Experts
    }

    /// The packing of a matrix of random weights; none where its rows are not whole blocks, or
    /// where such folders have no packed ones.
    pub(crate) fn of_dummy(self, name: &str, inputs: usize) -> Option<Packing> {
        let is_packed = match self.method {
            Method::Gguf => true,
            Method::Experts => name.contains(".experts."),
            Method::Scaled | Method::Awq | Method::Gptq { .. } => name.contains("_proj."),
        };
        let packing = self.packing(inputs);
        (is_packed && inputs.is_multiple_of(packing.numbers())).then_some(packing)
    }

    /// The form that a `quantization_config` states; `None` without one.
    ///
    /// # Errors
    /// Returns a message if it is not supported.
    pub(crate) fn stated(config: &Value, packed_experts: bool) -> std::result::Result<Option<Self>, String> {
        if config.is_null() {
            return Ok(None);
        }
        let method = config["quant_method"].as_str().unwrap_or_default();
        let of = |method: Method, packing: Packing| Self {
            method,
            block: [0; 2],
            packing,
            group: group_of(config),
            reordered: config["desc_act"] == true,
            with_zeros: false,
        };
        match method {
            "mxfp4" if packed_experts => Ok(Some(of(Method::Experts, Packing::Mxfp4))),
            "fp8" => {
                if let Some(kind) = config["fmt"].as_str().filter(|kind| *kind != "e4m3") {
                    return Err(format!("fp8 of fmt `{}` is not supported; e4m3 is", kind.escape_debug()));
                }
                let block = block_of(&config["weight_block_size"], "weight_block_size")?;
                Ok(Some(Self { block, ..of(Method::Scaled, Packing::Fp8) }))
            }
            "compressed-tensors" => {
                let stated = compressed(config)?;
                let Compressed { block, packing, group, with_zeros } = stated;
                Ok(Some(Self { block, group, with_zeros, ..of(Method::Scaled, packing) }))
            }
            "gguf" => {
                let name = config["type"].as_str().unwrap_or_default();
                let packing = Packing::ALL.into_iter().find(|packing| packing.name() == name);
                match packing.filter(|packing| packing.is_of_gguf()) {
                    Some(packing) => Ok(Some(of(Method::Gguf, packing))),
                    None => Err(format!("gguf of type `{}`: no type of blocks", name.escape_debug())),
                }
            }
            "awq" | "gptq" => Ok(Some(of(in_words(config)?, Packing::Int4))),
            other => Err(format!(
                "quantization_config of `{}` is not supported; awq, compressed-tensors, fp8 and gptq are, and mxfp4 of gpt-oss",
                other.chars().filter(|letter| !letter.is_control()).take(40).collect::<String>()
            )),
        }
    }
}

/// The method of AWQ or GPTQ that a config states.
fn in_words(config: &Value) -> std::result::Result<Method, String> {
    four_bits(config)?;
    let of = |key: &'static str, usual: &'static str| config[key].as_str().unwrap_or(usual);
    if config["quant_method"] == "awq" {
        return match of("version", "gemm") {
            "gemm" => Ok(Method::Awq),
            other => Err(format!("awq of version `{}` is not supported; gemm is", other.escape_debug())),
        };
    }
    match of("checkpoint_format", "gptq") {
        "gptq" => Ok(Method::Gptq { less: 1 }),
        "gptq_v2" => Ok(Method::Gptq { less: 0 }),
        other => {
            let other = other.escape_debug();
            Err(format!("gptq of checkpoint_format `{other}` is not supported; gptq and gptq_v2 are"))
        }
    }
}

/// A block size of a config; 0 without one.
fn block_of(value: &Value, name: &str) -> std::result::Result<[usize; 2], String> {
    match value {
        Value::Null => Ok([0; 2]),
        value => {
            let sizes: Vec<usize> =
                value.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|size| size as usize).collect();
            match sizes[..] {
                [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
                _ => Err(format!("{name} {value}: must be two sizes")),
            }
        }
    }
}

/// Inputs of a group; −1 stands for a whole row.
fn group_of(config: &Value) -> Option<usize> {
    let stated = config["group_size"].as_u64().or_else(|| config["q_group_size"].as_u64());
    stated.map(|size| size as usize).filter(|&size| size > 0)
}

fn four_bits(config: &Value) -> std::result::Result<(), String> {
    let bits = if config["bits"].is_null() { &config["w_bit"] } else { &config["bits"] };
    match bits.as_u64() {
        Some(4) => Ok(()),
        _ => Err(format!("{} of {bits} bits is not supported; 4 are", config["quant_method"])),
    }
}

/// What a config of compressed-tensors states.
struct Compressed {
    block: [usize; 2],
    packing: Packing,
    group: Option<usize>,
    with_zeros: bool,
}

fn compressed(config: &Value) -> std::result::Result<Compressed, String> {
    const FORMATS: [&str; 4] = ["float-quantized", "int-quantized", "naive-quantized", "pack-quantized"];
    if config["sparsity_config"]["format"].as_str().is_some_and(|format| format != "dense") {
        return Err("compressed-tensors with a sparsity_config is not supported".to_owned());
    }
    if let Some(status) = config["quantization_status"].as_str().filter(|status| *status != "compressed") {
        let status = status.escape_debug();
        return Err(format!("compressed-tensors of quantization_status `{status}` is not supported; compressed is"));
    }
    let transforms = &config["transform_config"];
    if transforms.as_object().is_some_and(|fields| !fields.is_empty()) {
        return Err("compressed-tensors with a transform_config is not supported".to_owned());
    }
    let groups = config["config_groups"].as_object().filter(|groups| !groups.is_empty());
    let groups = groups.ok_or("compressed-tensors without config_groups")?;
    let mut stated = Compressed { block: [0; 2], packing: Packing::Fp8, group: None, with_zeros: false };
    for group in groups.values() {
        let format = group["format"].as_str().or_else(|| config["format"].as_str()).unwrap_or_default();
        if !FORMATS.contains(&format) {
            let format = format.escape_debug();
            return Err(format!(
                "compressed-tensors of format `{format}` is not supported; {} are",
                FORMATS.join(", ")
            ));
        }
        let weights = &group["weights"];
        let bits = weights["num_bits"].as_u64();
        if bits != Some(if format == "pack-quantized" { 4 } else { 8 }) {
            return Err(format!(
                "compressed-tensors of {} bits in format {format} is not supported",
                weights["num_bits"]
            ));
        }
        stated.group = group_of(weights).or(stated.group);
        stated.packing = match (format, weights["type"].as_str()) {
            ("pack-quantized", _) => Packing::Int4,
            (_, Some("int")) => Packing::Int8,
            _ => Packing::Fp8,
        };
        stated.with_zeros |= stated.packing == Packing::Int8 && weights["symmetric"] == false;
        if matches!(weights["actorder"].as_str(), Some("group" | "dynamic")) {
            return Err("compressed-tensors with actorder `group` is not supported".to_owned());
        }
        let block = block_of(&weights["block_structure"], "block_structure")?;
        if block != [0; 2] {
            stated.block = block;
        }
    }
    Ok(stated)
}

/// Tensors by their names.
pub(crate) trait Tensors {
    /// The tensor of a name, if there is one.
    fn find(&self, name: &str) -> Option<TensorView<'_>>;
}

/// The codes of a matrix.
struct Coded {
    packing: Packing,
    outputs: usize,
    inputs: usize,
    /// `[outputs, inputs]`, a byte each.
    codes: Vec<u8>,
    /// The group of each input.
    group_of: Vec<u32>,
    /// Outputs that share a row of scales.
    rows: usize,
    groups: usize,
    /// `[outputs / rows, groups]`.
    scales: Vec<f32>,
    /// The same shape, or empty.
    zeros: Vec<i16>,
}

/// The quantised matrix `module`.weight of a shape; `None` if the module is not quantised.
///
/// # Errors
/// Returns a message if a tensor is missing, or has another shape or type than its form has.
pub(crate) fn matrix(
    tensors: &impl Tensors,
    module: &str,
    shape: [usize; 2],
    form: Quantisation,
) -> std::result::Result<Option<Quantised>, String> {
    let of = |part: &str| tensors.find(&format!("{module}.{part}"));
    let coded = match form.method {
        Method::Scaled => match (of("weight_packed"), of("weight")) {
            (Some(packed), _) => packed_rows(tensors, module, &packed, shape)?,
            (None, Some(weight)) => match weight.dtype() {
                Dtype::F8_E4M3 => scaled(tensors, module, (&weight, Packing::Fp8), (shape, form.block))?,
                Dtype::I8 => scaled(tensors, module, (&weight, Packing::Int8), (shape, form.block))?,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        },
        Method::Experts => return Ok(None),
        Method::Gguf => {
            return Err("weights in GGUF's packings are in a .gguf file: name that as the model".to_owned());
        }
        Method::Awq | Method::Gptq { .. } => match of("qweight") {
            None => return Ok(None),
            Some(weight) => by_columns(tensors, module, &weight, (shape, form))?,
        },
    };
    coded.check().map_err(|what| format!("`{module}`: {what}"))?;
    Ok(Some(Quantised(coded)))
}

/// A quantised matrix.
pub(crate) struct Quantised(Coded);

impl Quantised {
    /// The matrix packed, if its groups are whole runs.
    ///
    /// # Errors
    /// Returns an error if candle fails.
    pub(crate) fn packed(&self) -> Result<Option<Packed>> {
        self.0.packed()
    }

    /// Its numbers, on the host.
    ///
    /// # Errors
    /// Returns an error if candle fails.
    pub(crate) fn plain(&self, dtype: DType) -> Result<Tensor> {
        let Coded { outputs, inputs, .. } = self.0;
        Ok(Tensor::from_vec(self.0.numbers(), (outputs, inputs), &Device::Cpu)?.to_dtype(dtype)?)
    }
}

impl Coded {
    /// Rejects scales and codes that are no numbers.
    fn check(&self) -> std::result::Result<(), String> {
        if let Some(scale) = self.scales.iter().find(|scale| !scale.is_finite()) {
            return Err(format!("a scale is {scale}"));
        }
        if let Some(zero) = self.zeros.iter().find(|zero| self.packing == Packing::Int4 && !(0..=16).contains(*zero)) {
            return Err(format!("a zero point is {zero}; from 0 to 16 are possible"));
        }
        match self.packing == Packing::Fp8 && self.codes.iter().any(|code| code & 0x7f == 0x7f) {
            true => Err("a number in FP8 is NaN".to_owned()),
            false => Ok(()),
        }
    }

    /// Place of the scale of an output and an input.
    fn place(&self, output: usize, input: usize) -> usize {
        output / self.rows * self.groups + self.group_of[input] as usize
    }

    fn packed(&self) -> Result<Option<Packed>> {
        let is_whole = |packing: &Packing| {
            let of_block = |groups: &[u32]| groups.iter().all(|group| *group == groups[0]);
            let numbers = packing.numbers();
            self.inputs.is_multiple_of(numbers) && self.group_of.chunks_exact(numbers).all(of_block)
        };
        let wide = self.packing.in_groups_of_128().filter(is_whole);
        let fits = self.packing == Packing::Int4 || self.zeros.is_empty();
        let Some(packing) = wide.or(Some(self.packing).filter(is_whole)).filter(|_| fits) else { return Ok(None) };
        let mut bytes = Vec::with_capacity(self.codes.len() / packing.numbers() * packing.bytes());
        for (index, codes) in self.codes.chunks_exact(packing.numbers()).enumerate() {
            let first = index * packing.numbers();
            let place = self.place(first / self.inputs, first % self.inputs);
            let scale = self.scales[place];
            bytes.extend_from_slice(&scale.to_le_bytes());
            match packing {
                Packing::Int4 => bytes.push(self.zeros[place] as u8),
                Packing::Int4G128 => bytes.extend((-scale * f32::from(self.zeros[place])).to_le_bytes()),
                _ => {}
            }
            if self.packing == Packing::Int4 {
                for run in codes.chunks_exact(RUN) {
                    let (low, high) = run.split_at(RUN / 2);
                    bytes.extend(low.iter().zip(high).map(|(low, high)| low | high << 4));
                }
            } else {
                bytes.extend_from_slice(codes);
            }
        }
        Ok(Some(Packed::new(packing, [self.outputs, self.inputs], bytes)?))
    }

    fn numbers(&self) -> Vec<f32> {
        let number = |(index, &code): (usize, &u8)| {
            let place = self.place(index / self.inputs, index % self.inputs);
            let zero = self.zeros.get(place).copied().unwrap_or(0);
            let value = match self.packing {
                Packing::Fp8 => of_e4m3(code),
                Packing::Int8 => f32::from(i16::from(code.cast_signed()) - zero),
                _ => f32::from(i16::from(code) - zero),
            };
            value * self.scales[place]
        };
        self.codes.iter().enumerate().map(number).collect()
    }
}

/// A tensor's numbers in f32.
fn floats(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = view.data();
    Some(match view.dtype() {
        Dtype::F32 => data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::F16 => data.as_chunks::<2>().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::BF16 => data.as_chunks::<2>().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32()).collect(),
        // A power of two, less than the smallest normal number at least.
        Dtype::F8_E8M0 => data.iter().map(|&code| f32::from_bits((u32::from(code) << 23).max(0x0040_0000))).collect(),
        _ => return None,
    })
}

/// A tensor's whole numbers of 32 bits.
fn words(view: &TensorView<'_>) -> Option<Vec<u32>> {
    let is_words = matches!(view.dtype(), Dtype::I32 | Dtype::U32);
    is_words.then(|| view.data().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
}

/// What a form lacks.
fn lacks(module: &str, part: &str) -> String {
    format!("`{module}` is quantised and has no `{part}` of its form")
}

/// Rejects a tensor of another shape.
fn expect(module: &str, part: &str, view: &TensorView<'_>, shape: &[usize]) -> std::result::Result<(), String> {
    match view.shape() == shape {
        true => Ok(()),
        false => Err(format!("tensor `{module}.{part}`: expected shape {shape:?}, found {:?}", view.shape())),
    }
}

/// Codes of eight bits with scales of any form, without zero points or with them.
fn scaled(
    tensors: &impl Tensors,
    module: &str,
    (weight, packing): (&TensorView<'_>, Packing),
    ([outputs, inputs], block): ([usize; 2], [usize; 2]),
) -> std::result::Result<Coded, String> {
    expect(module, "weight", weight, &[outputs, inputs])?;
    let find = |part: &str| Some((part.to_owned(), tensors.find(&format!("{module}.{part}"))?));
    let (part, view) =
        find("weight_scale_inv").or_else(|| find("weight_scale")).ok_or_else(|| lacks(module, "weight_scale"))?;
    let scales = floats(&view).ok_or_else(|| format!("tensor `{module}.{part}` is {:?}", view.dtype()))?;
    let (rows, columns, groups) = match *view.shape() {
        [] | [1] => (outputs, inputs, 1),
        [1, 1] if block[0] == 0 => (outputs, inputs, 1),
        [rows] | [rows, 1] if rows == outputs && (block[0] == 0 || outputs.div_ceil(block[0]) != rows) => {
            (1, inputs, 1)
        }
        [rows, groups] if block[0] > 0 && rows == outputs.div_ceil(block[0]) && groups == inputs.div_ceil(block[1]) => {
            (block[0], block[1], groups)
        }
        [rows, groups] if rows == outputs && groups > 0 && inputs.is_multiple_of(groups) => {
            (1, inputs / groups, groups)
        }
        ref other => {
            return Err(format!("tensor `{module}.{part}`: shape {other:?} does not fit [{outputs}, {inputs}]"));
        }
    };
    let zeros = match tensors.find(&format!("{module}.weight_zero_point")) {
        Some(zeros) if zeros.dtype() == Dtype::I8 && zeros.data().len() == scales.len() => {
            zeros.data().iter().map(|zero| i16::from(zero.cast_signed())).collect()
        }
        Some(_) => return Err(format!("tensor `{module}.weight_zero_point` does not fit its scales")),
        None => Vec::new(),
    };
    let group_of = (0..inputs).map(|input| (input / columns) as u32).collect();
    Ok(Coded { packing, outputs, inputs, codes: weight.data().to_vec(), group_of, rows, groups, scales, zeros })
}

/// Codes of four bits of compressed-tensors, eight inputs in a word.
fn packed_rows(
    tensors: &impl Tensors,
    module: &str,
    weight: &TensorView<'_>,
    [outputs, inputs]: [usize; 2],
) -> std::result::Result<Coded, String> {
    const OFFSET: i16 = 8;
    let wide = inputs.div_ceil(8);
    expect(module, "weight_packed", weight, &[outputs, wide])?;
    let words_of = |part: &str, view: &TensorView<'_>| {
        words(view).ok_or_else(|| format!("tensor `{module}.{part}` is {:?}", view.dtype()))
    };
    let packed = words_of("weight_packed", weight)?;
    let codes = (0..outputs * inputs)
        .map(|index| nibble(packed[index / inputs * wide + index % inputs / 8], index % inputs % 8))
        .collect();
    let view = tensors.find(&format!("{module}.weight_scale")).ok_or_else(|| lacks(module, "weight_scale"))?;
    let scales = floats(&view).ok_or_else(|| format!("tensor `{module}.weight_scale` is {:?}", view.dtype()))?;
    let groups = match *view.shape() {
        [rows, groups] if rows == outputs && groups > 0 && inputs.is_multiple_of(groups) => groups,
        ref other => {
            return Err(format!("tensor `{module}.weight_scale`: shape {other:?} does not fit [{outputs}, {inputs}]"));
        }
    };
    let zeros = match tensors.find(&format!("{module}.weight_zero_point")) {
        None => vec![OFFSET; scales.len()],
        Some(zeros) if zeros.dtype() == Dtype::I8 => {
            expect(module, "weight_zero_point", &zeros, &[outputs, groups])?;
            zeros.data().iter().map(|zero| i16::from(zero.cast_signed()) + OFFSET).collect()
        }
        Some(zeros) => {
            // Packed from one output to the next.
            expect(module, "weight_zero_point", &zeros, &[outputs.div_ceil(8), groups])?;
            let packed = words_of("weight_zero_point", &zeros)?;
            let zero = |index: usize| {
                let (output, group) = (index / groups, index % groups);
                i16::from(nibble(packed[output / 8 * groups + group], output % 8))
            };
            (0..scales.len()).map(zero).collect()
        }
    };
    let group = inputs / groups;
    let group_of = (0..inputs).map(|input| (input / group) as u32).collect();
    Ok(Coded { packing: Packing::Int4, outputs, inputs, codes, group_of, rows: 1, groups, scales, zeros })
}

/// Four bits of a word.
fn nibble(word: u32, place: usize) -> u8 {
    (word >> (4 * place) & 15) as u8
}

/// Codes of four bits of AWQ and GPTQ, whose matrices are turned over.
fn by_columns(
    tensors: &impl Tensors,
    module: &str,
    weight: &TensorView<'_>,
    ([outputs, inputs], form): ([usize; 2], Quantisation),
) -> std::result::Result<Coded, String> {
    if !outputs.is_multiple_of(8) || !inputs.is_multiple_of(8) {
        return Err(format!("`{module}` of shape [{outputs}, {inputs}]: eight codes are in a word"));
    }
    let find = |part: &str| tensors.find(&format!("{module}.{part}"));
    let words_of = |part: &str, view: &TensorView<'_>| {
        words(view).ok_or_else(|| format!("tensor `{module}.{part}` is {:?}", view.dtype()))
    };
    let view = find("scales").ok_or_else(|| lacks(module, "scales"))?;
    let by_group = floats(&view).ok_or_else(|| format!("tensor `{module}.scales` is {:?}", view.dtype()))?;
    let groups = match *view.shape() {
        [groups, columns] if groups > 0 && columns == outputs => groups,
        ref other => return Err(format!("tensor `{module}.scales`: shape {other:?} does not fit {outputs} outputs")),
    };
    let group = form.group.unwrap_or(inputs);
    if groups != inputs.div_ceil(group) {
        return Err(format!("tensor `{module}.scales`: {groups} groups of {group} of {inputs} inputs"));
    }
    let packed = words_of("qweight", weight)?;
    let awq = form.method == Method::Awq;
    expect(module, "qweight", weight, &if awq { [inputs, outputs / 8] } else { [inputs / 8, outputs] })?;
    let code = |index: usize| {
        let (output, input) = (index / inputs, index % inputs);
        match awq {
            true => nibble(packed[input * (outputs / 8) + output / 8], AWQ_PLACES[output % 8]),
            false => nibble(packed[input / 8 * outputs + output], input % 8),
        }
    };
    let codes = (0..outputs * inputs).map(code).collect();
    let zeros = match find("qzeros") {
        None if awq => vec![8; by_group.len()],
        None => return Err(lacks(module, "qzeros")),
        Some(zeros) => {
            expect(module, "qzeros", &zeros, &[groups, outputs / 8])?;
            zeros_of(&words_of("qzeros", &zeros)?, [outputs, groups], form.method)
        }
    };
    let group_of = match find("g_idx").filter(|_| !awq) {
        Some(list) => {
            expect(module, "g_idx", &list, &[inputs])?;
            words_of("g_idx", &list)?
        }
        None if form.reordered => return Err(lacks(module, "g_idx")),
        None => (0..inputs).map(|input| (input / group) as u32).collect(),
    };
    if let Some(group) = group_of.iter().find(|group| **group as usize >= groups) {
        return Err(format!("tensor `{module}.g_idx` names group {group} of {groups}"));
    }
    let scales = (0..by_group.len()).map(|index| by_group[index % groups * outputs + index / groups]).collect();
    Ok(Coded { packing: Packing::Int4, outputs, inputs, codes, group_of, rows: 1, groups, scales, zeros })
}

/// The zero points of AWQ and GPTQ, `[outputs, groups]`: eight outputs of a group are in a word.
fn zeros_of(packed: &[u32], [outputs, groups]: [usize; 2], method: Method) -> Vec<i16> {
    let zero = |index: usize| {
        let (output, group) = (index / groups, index % groups);
        let word = packed[group * (outputs / 8) + output / 8];
        match method {
            Method::Gptq { less } => i16::from(nibble(word, output % 8) + less),
            _ => i16::from(nibble(word, AWQ_PLACES[output % 8])),
        }
    };
    (0..outputs * groups).map(zero).collect()
}

#[cfg(test)]
mod tests;
