//! Rows that several experts compute: sorted by expert, multiplied by each expert's own weights,
//! and summed by the weights that a router gave them. On a GPU each is one launch or one call.

use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Tensor};

use crate::error::{Error, Result, expect};
use crate::{Packed, WeightRef, add, cast, cuda, join, linear};

/// Experts whose packed weights are read one by one on a GPU where each has few rows, as in
/// decoding: those of more are unpacked in one launch.
const FEW_EXPERTS: usize = 16;

/// Pairs of an expert and a row that it computes, sorted by expert, then by row.
#[derive(Debug, Clone)]
pub struct Pairs {
    /// Number of each expert's pairs.
    counts: Vec<usize>,
    rows: usize,
    /// Numbers of each row's pairs, rising, for one row after the other; the weights of these
    /// pairs, as bits; then the row of each pair; and its expert. `[4 · pairs]`, on the device.
    list: Tensor,
}

impl Pairs {
    /// Each expert's rows, rising, with their weights, as pairs on a device. Every one of `rows`
    /// rows has as many.
    ///
    /// # Errors
    /// Returns an error if a row has more pairs than others or is not there, if an expert has not
    /// as many weights as rows, or if the device refuses.
    pub fn new(shares: &[(&[u32], &[f32])], rows: usize, device: &Device) -> Result<Self> {
        let counts: Vec<usize> = shares.iter().map(|(rows, _)| rows.len()).collect();
        let pairs: usize = counts.iter().sum();
        let each = pairs.checked_div(rows).unwrap_or(0);
        let mut list = vec![0u32; 4 * pairs];
        let (numbers, rest) = list.split_at_mut(pairs);
        let (weights, rest) = rest.split_at_mut(pairs);
        let (places, experts) = rest.split_at_mut(pairs);
        let mut filled = vec![0; rows];
        let mut pair = 0;
        for (expert, (met, given)) in shares.iter().enumerate() {
            expect("pairs", "weights", met.len(), given.len())?;
            for (&row, weight) in met.iter().zip(*given) {
                let Some(before) = filled.get_mut(row as usize).filter(|before| **before < each) else {
                    let (expected, found) = (format!("each of {rows} rows {each} times"), format!("row {row} again"));
                    return Err(Error::Shape { op: "pairs", what: "rows", expected, found });
                };
                let at = row as usize * each + *before;
                (numbers[at], weights[at]) = (pair as u32, weight.to_bits());
                (places[pair], experts[pair]) = (row, expert as u32);
                *before += 1;
                pair += 1;
            }
        }
        Ok(Self { counts, rows, list: cuda::upload(&list, device)? })
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.list.elem_count() / 4
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of `x` `[rows, width]` in the order of the pairs, `[pairs, width]`.
    ///
    /// # Errors
    /// Returns an error if `x` has another number of rows, or if the device refuses.
    pub fn gather(&self, x: &Tensor) -> Result<Tensor> {
        expect("pairs", "rows", self.rows, x.dim(0)?)?;
        if self.is_empty() {
            return Ok(x.narrow(0, 0, 0)?);
        }
        let places = self.list.narrow(0, 2 * self.len(), self.len())?;
        match cuda::gather_by(x, &places)? {
            Some(rows) => Ok(rows),
            None => Ok(x.contiguous()?.index_select(&places, 0)?),
        }
    }

    /// The rows of `x` `[pairs, in]`, each times the weight `[out, in]` of its expert, for each of
    /// some sets that have a weight for every expert; all weights are of one shape. The answers
    /// `[pairs, out]` are in `x`'s dtype. On a GPU a set of packed weights is unpacked, but for
    /// those of experts without rows, and forgotten before the next set is; where few experts have
    /// few rows each, their weights are read as they are.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if the device refuses.
    pub fn linear(&self, x: &Tensor, sets: &[Vec<WeightRef<'_>>]) -> Result<Vec<Tensor>> {
        const OP: &str = "linear of pairs";
        let (pairs, inputs) = x.dims2()?;
        expect(OP, "rows", self.len(), pairs)?;
        for set in sets {
            expect(OP, "weights of a set", self.counts.len(), set.len())?;
            for weight in set {
                let ([outputs, weight_inputs], [first, _]) = (weight.dims()?, sets[0][0].dims()?);
                expect(OP, "input width of a weight", inputs, weight_inputs)?;
                expect(OP, "output width of a weight", first, outputs)?;
            }
        }
        if x.elem_count() == 0 {
            return sets.iter().map(|set| self.one_by_one(x, set)).collect();
        }
        if let Some(sets) = sets.iter().map(|set| plain(set)).collect::<Option<Vec<_>>>()
            && let Some(answers) = cuda::grouped(x, &self.counts, &sets)?
        {
            return Ok(answers);
        }
        let one = |set: &Vec<WeightRef<'_>>| match self.of_packed(x, set)? {
            Some(answer) => Ok(answer),
            None => self.one_by_one(x, set),
        };
        sets.iter().map(one).collect()
    }

    /// The products with packed weights that are unpacked together on a GPU. `None` for others,
    /// where they are not packed alike, and where few experts have few rows.
    fn of_packed(&self, x: &Tensor, set: &[WeightRef<'_>]) -> Result<Option<Tensor>> {
        let met = || self.counts.iter().zip(set).filter(|(count, _)| **count > 0);
        let counts: Vec<usize> = met().map(|(&count, _)| count).collect();
        if counts.len() <= FEW_EXPERTS && counts.iter().all(|&count| count <= Packed::FEW_ROWS) {
            return Ok(None);
        }
        let Some(packed) = met().map(|(_, weight)| weight.packed()).collect::<Option<Vec<&Packed>>>() else {
            return Ok(None);
        };
        let Some(all) = cuda::unpack(&packed, x.dtype())? else { return Ok(None) };
        let outputs = packed[0].dims()[0];
        let of = |expert: usize| all.narrow(0, expert * outputs, outputs);
        let weights = (0..packed.len()).map(of).collect::<std::result::Result<Vec<_>, _>>()?;
        let answers = cuda::grouped(x, &counts, &[weights.iter().collect()])?;
        Ok(answers.and_then(|mut answers| answers.pop()))
    }

    /// One product an expert.
    fn one_by_one(&self, x: &Tensor, weights: &[WeightRef<'_>]) -> Result<Tensor> {
        let mut first = 0;
        let product = |(&rows, &weight): (&usize, &WeightRef<'_>)| {
            first += rows;
            linear(&x.narrow(0, first - rows, rows)?, weight, None)
        };
        let parts = self.counts.iter().zip(weights).map(product).collect::<Result<Vec<_>>>()?;
        join(&parts.iter().collect::<Vec<_>>(), 0)
    }

    /// `outputs` `[pairs, width]`, each row with the bias of its expert added, a row of `biases`
    /// `[experts, width]`. The answer is in the type of `outputs`; a GPU reads biases in f32 as
    /// they are, and converts others first.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if the device refuses.
    pub fn add_biases(&self, outputs: &Tensor, biases: &Tensor) -> Result<Tensor> {
        const OP: &str = "biases of pairs";
        let (experts, width) = biases.dims2()?;
        expect(OP, "experts", self.counts.len(), experts)?;
        expect(OP, "pairs", self.len(), outputs.dim(0)?)?;
        expect(OP, "width of the pairs", width, outputs.dim(1)?)?;
        if outputs.elem_count() == 0 {
            return Ok(outputs.clone());
        }
        let experts = self.list.narrow(0, 3 * self.len(), self.len())?;
        match cuda::add_biases(outputs, biases, &experts)? {
            Some(sums) => Ok(sums),
            None => add(outputs, &cast(&biases.contiguous()?.index_select(&experts, 0)?, outputs.dtype())?),
        }
    }

    /// Adds to each row of `into` `[rows, width]` its rows of `outputs` `[pairs, width]` times
    /// their weights, in the order of experts, in place: every tensor that shares its storage sees
    /// it. Both are contiguous; `into` is f32, or f64 on a CPU.
    ///
    /// # Errors
    /// Returns an error if shapes or types do not fit, or if the device refuses.
    pub fn add(&self, into: &Tensor, outputs: &Tensor) -> Result<()> {
        const OP: &str = "sum of pairs";
        expect(OP, "rows", self.rows, into.dim(0)?)?;
        expect(OP, "pairs", self.len(), outputs.dim(0)?)?;
        expect(OP, "width of the pairs", into.dim(1)?, outputs.dim(1)?)?;
        let known = matches!(into.dtype(), DType::F32 | DType::F64);
        if !known || !into.is_contiguous() || !outputs.is_contiguous() {
            let expected = "contiguous rows, the sum in f32 or f64".into();
            let found = format!("rows of {:?} onto rows of {:?}", outputs.dtype(), into.dtype());
            return Err(Error::Shape { op: OP, what: "rows", expected, found });
        }
        let list = self.list.narrow(0, 0, 2 * self.len())?;
        if outputs.elem_count() > 0 && !cuda::add_pairs(into, outputs, &list)? {
            let list = list.to_vec1()?;
            into.inplace_op2(&cast(outputs, into.dtype())?, &AddPairs { list, rows: self.rows })?;
        }
        Ok(())
    }
}

/// The matrices of a set without packed ones.
fn plain<'a>(set: &[WeightRef<'a>]) -> Option<Vec<&'a Tensor>> {
    set.iter().map(|weight| weight.plain()).collect()
}

/// See [`Pairs::add`], on a CPU.
struct AddPairs {
    /// Numbers of each row's pairs, then their weights' bits.
    list: Vec<u32>,
    rows: usize,
}

impl AddPairs {
    fn add<T: Copy + std::ops::Mul<Output = T> + std::ops::AddAssign + From<f32>>(&self, into: &mut [T], pairs: &[T]) {
        let (numbers, weights) = self.list.split_at(self.list.len() / 2);
        let (each, width) = (numbers.len() / self.rows, into.len() / self.rows);
        let of_rows = numbers.chunks(each).zip(weights.chunks(each));
        for (into, (numbers, weights)) in into.chunks_mut(width).zip(of_rows) {
            for (&number, &weight) in numbers.iter().zip(weights) {
                let (weight, pair) = (T::from(f32::from_bits(weight)), &pairs[number as usize * width..]);
                into.iter_mut().zip(pair).for_each(|(sum, &x)| *sum += weight * x);
            }
        }
    }
}

impl InplaceOp2 for AddPairs {
    fn name(&self) -> &'static str {
        "add_pairs"
    }

    fn cpu_fwd(
        &self,
        into: &mut CpuStorage,
        into_layout: &Layout,
        pairs: &CpuStorage,
        pairs_layout: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        let of = |layout: &Layout| layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let (to, from) = (of(into_layout), of(pairs_layout));
        match (into, pairs) {
            (CpuStorage::F32(into), CpuStorage::F32(pairs)) => self.add(&mut into[to], &pairs[from]),
            (CpuStorage::F64(into), CpuStorage::F64(pairs)) => self.add(&mut into[to], &pairs[from]),
            _ => candle_core::bail!("add_pairs: rows of another type"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two experts of three have rows, and each row passes two of the three.
    #[test]
    fn rows_pass_their_experts_in_order() {
        let device = Device::Cpu;
        let shares: [(&[u32], &[f32]); 3] = [(&[0, 1], &[1.0, 2.0]), (&[], &[]), (&[0, 1], &[0.5, -1.0])];
        let pairs = Pairs::new(&shares, 2, &device).expect("pairs");
        let x = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &device).expect("a tensor");
        let gathered = pairs.gather(&x).expect("rows");
        assert_eq!(gathered.to_vec2::<f32>().expect("numbers"), [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]);
        let weights = [[[1f32, 1.0]], [[f32::NAN; 2]], [[2.0, 0.0]]].map(|rows| Tensor::new(&rows, &device));
        let weights = weights.map(|weight| weight.expect("a tensor"));
        let products = pairs.linear(&gathered, &[weights.iter().map(Into::into).collect()]).expect("products");
        assert_eq!(products[0].to_vec2::<f32>().expect("numbers"), [[3.0], [7.0], [2.0], [6.0]]);
        let biases = Tensor::new(&[[10f32], [f32::NAN], [-20.0]], &device).expect("a tensor");
        let biased = pairs.add_biases(&products[0], &biases).expect("biased");
        assert_eq!(biased.to_vec2::<f32>().expect("numbers"), [[13.0], [17.0], [-18.0], [-14.0]]);
        let into = Tensor::new(&[[100f32], [200.0]], &device).expect("a tensor");
        pairs.add(&into, &products[0]).expect("summed");
        assert_eq!(into.to_vec2::<f32>().expect("numbers"), [[104.0], [208.0]]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let new = |shares: &[(&[u32], &[f32])], rows| Pairs::new(shares, rows, &Device::Cpu);
        assert!(new(&[(&[0, 1], &[1.0; 2]), (&[0], &[1.0])], 2).is_err(), "row 0 has two pairs, row 1 has one");
        assert!(new(&[(&[0, 2], &[1.0; 2])], 2).is_err(), "there is no row 2");
        assert!(new(&[(&[0, 1], &[1.0])], 2).is_err(), "a weight is missing");
        let pairs = new(&[(&[0, 1], &[1.0; 2])], 2).expect("pairs");
        let zeros = |rows: usize, width: usize| Tensor::zeros((rows, width), DType::F32, &Device::Cpu).expect("zeros");
        assert!(pairs.gather(&zeros(3, 4)).is_err());
        assert!(pairs.linear(&zeros(2, 4), &[vec![(&zeros(3, 5)).into()]]).is_err(), "another width");
        assert!(pairs.linear(&zeros(2, 4), &[vec![(&zeros(3, 4)).into(); 2]]).is_err(), "another expert");
        assert!(pairs.add_biases(&zeros(2, 4), &zeros(2, 4)).is_err(), "biases of two experts");
        assert!(pairs.add_biases(&zeros(2, 4), &zeros(1, 5)).is_err(), "wider biases");
        assert!(pairs.add_biases(&zeros(3, 4), &zeros(1, 4)).is_err(), "another pair");
        assert!(pairs.add(&zeros(2, 4), &zeros(2, 5)).is_err());
        let none = new(&[(&[], &[])], 0).expect("no pairs");
        assert!(none.is_empty() && none.gather(&zeros(0, 4)).is_ok());
        assert_eq!(none.add_biases(&zeros(0, 4), &zeros(1, 4)).expect("nothing").dims(), [0, 4]);
    }
}
