//! A rank's part of one collective call, and the check that two ranks' calls fit each other.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::Collective;

/// One rank's part of a call: its arguments, which the others' must fit, and its data.
pub struct Contribution {
    pub call: Call,
    pub payload: Payload,
}

/// The data that a rank hands over. Tensors share their storage with the sender's: nothing is
/// copied.
#[derive(Default)]
pub struct Payload {
    /// One a receiver (all-to-all), or one for the only or every receiver.
    pub tensors: Vec<Option<Tensor>>,
    pub bytes: Option<Arc<Vec<u8>>>,
}

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Call {
    Exchange { form: Form, send_rows: usize, to: usize, from: usize, rows: usize },
    AllGather { form: Form, rows: Vec<usize> },
    AllToAll { form: Form, send_rows: Vec<usize>, rows: Vec<usize> },
    BroadcastBytes { root: usize },
    GatherBytes { root: usize },
    Barrier,
}

/// The form that all ranks' tensors share: everything but the number of rows.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Form {
    /// The type of a value.
    #[serde(with = "dtype")]
    pub dtype: DType,
    /// Dimensions 1 and up.
    pub row_dims: Vec<usize>,
}

/// A dtype by its name.
mod dtype {
    use std::str::FromStr;

    use candle_core::DType;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        dtype.as_str().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        DType::from_str(&name).map_err(|_| D::Error::custom(format!("dtype `{name}`")))
    }
}

impl Form {
    /// The form of a tensor; none for a scalar, which has no rows.
    pub fn of(tensor: &Tensor) -> Option<Self> {
        let (_, row_dims) = tensor.dims().split_first()?;
        Some(Self { dtype: tensor.dtype(), row_dims: row_dims.to_vec() })
    }

    /// Payload bytes of a number of rows.
    pub fn bytes(&self, rows: usize) -> u64 {
        let row_bytes = self.row_dims.iter().product::<usize>() * self.dtype.size_in_bytes();
        (rows * row_bytes) as u64
    }
}

impl Call {
    pub fn kind(&self) -> Collective {
        match self {
            Call::Exchange { .. } => Collective::Exchange,
            Call::AllGather { .. } => Collective::AllGather,
            Call::AllToAll { .. } => Collective::AllToAll,
            Call::BroadcastBytes { .. } => Collective::BroadcastBytes,
            Call::GatherBytes { .. } => Collective::GatherBytes,
            Call::Barrier => Collective::Barrier,
        }
    }

    /// The ranks without whose part `rank` cannot finish this call. The root of a broadcast waits
    /// for everyone, so that it notices a rank that is stuck.
    pub fn needs(&self, rank: usize, world: usize) -> Vec<usize> {
        match self {
            Call::Exchange { from, .. } => vec![*from],
            Call::BroadcastBytes { root } if *root != rank => vec![*root],
            Call::GatherBytes { root } if *root != rank => Vec::new(),
            _ => (0..world).collect(),
        }
    }

    /// The form of its tensors; none for bytes.
    pub fn form(&self) -> Option<&Form> {
        match self {
            Call::Exchange { form, .. } | Call::AllGather { form, .. } | Call::AllToAll { form, .. } => Some(form),
            Call::BroadcastBytes { .. } | Call::GatherBytes { .. } | Call::Barrier => None,
        }
    }

    /// The other ranks that need the part of `rank`, which makes this call.
    pub fn goes_to(&self, rank: usize, world: usize) -> Vec<usize> {
        let all = 0..world;
        let needing = match self {
            Call::Exchange { to, .. } => vec![*to],
            Call::BroadcastBytes { root } | Call::GatherBytes { root } if *root != rank => vec![*root],
            Call::GatherBytes { .. } => Vec::new(),
            _ => all.collect(),
        };
        needing.into_iter().filter(|&other| other != rank).collect()
    }

    /// Whether every rank that the call names is one of `world`, and every list has one entry a
    /// rank.
    pub fn is_of(&self, world: usize) -> bool {
        match self {
            Call::Exchange { to, from, .. } => *to < world && *from < world,
            Call::AllGather { rows, .. } => rows.len() == world,
            Call::AllToAll { send_rows, rows, .. } => send_rows.len() == world && rows.len() == world,
            Call::BroadcastBytes { root } | Call::GatherBytes { root } => *root < world,
            Call::Barrier => true,
        }
    }

    /// Numbers of tensors and of byte messages that `rank` gets from this call.
    pub fn gives(&self, rank: usize, world: usize) -> (usize, usize) {
        match self {
            Call::Exchange { .. } => (1, 0),
            Call::AllGather { .. } | Call::AllToAll { .. } => (world, 0),
            Call::BroadcastBytes { .. } => (0, 1),
            Call::GatherBytes { root } if *root == rank => (0, world),
            Call::GatherBytes { .. } | Call::Barrier => (0, 0),
        }
    }

    /// Rows that `from`, which makes this call, sends to `to`; for tensors only. The call [is
    /// of](Self::is_of) a world with both.
    pub fn rows_to(&self, from: usize, to: usize) -> usize {
        match self {
            Call::Exchange { send_rows, to: target, .. } if *target == to => *send_rows,
            Call::AllGather { rows, .. } => rows[from],
            Call::AllToAll { send_rows, .. } => send_rows[to],
            _ => 0,
        }
    }

    /// Payload bytes that `from`, which makes this call, sends to `to`; for tensors only.
    pub fn bytes_to(&self, from: usize, to: usize) -> u64 {
        self.form().map_or(0, |form| form.bytes(self.rows_to(from, to)))
    }

    /// Whether this call of rank `mine` and `other` of rank `theirs` can be the same collective.
    /// Both ranks may be one.
    pub fn fits(&self, mine: usize, other: &Call, theirs: usize) -> bool {
        match (self, other) {
            (
                Call::Exchange { form, send_rows, to, from, rows },
                Call::Exchange {
                    form: other_form,
                    send_rows: other_send_rows,
                    to: other_to,
                    from: other_from,
                    rows: other_rows,
                },
            ) => {
                let there = (*to == theirs) == (*other_from == mine) && (*to != theirs || send_rows == other_rows);
                let back = (*other_to == mine) == (*from == theirs) && (*other_to != mine || other_send_rows == rows);
                form == other_form && there && back
            }
            (
                Call::AllToAll { form, send_rows, rows },
                Call::AllToAll { form: other_form, send_rows: other_send_rows, rows: other_rows },
            ) => form == other_form && send_rows[theirs] == other_rows[mine] && other_send_rows[mine] == rows[theirs],
            _ => self == other,
        }
    }

    /// Payload bytes that `rank` sends to other ranks; for tensors only.
    pub fn sent_bytes(&self, rank: usize) -> u64 {
        match self {
            Call::Exchange { form, send_rows, to, .. } if *to != rank => form.bytes(*send_rows),
            Call::AllGather { form, rows } => form.bytes(rows[rank]) * (rows.len() as u64 - 1),
            Call::AllToAll { form, send_rows, .. } => form.bytes(others(send_rows, rank)),
            _ => 0,
        }
    }

    /// Payload bytes that `rank` receives from other ranks; for tensors only.
    pub fn received_bytes(&self, rank: usize) -> u64 {
        match self {
            Call::Exchange { form, from, rows, .. } if *from != rank => form.bytes(*rows),
            Call::AllGather { form, rows } => form.bytes(others(rows, rank)),
            Call::AllToAll { form, rows, .. } => form.bytes(others(rows, rank)),
            _ => 0,
        }
    }
}

fn others(rows: &[usize], rank: usize) -> usize {
    rows.iter().sum::<usize>() - rows[rank]
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} rows of {:?}", self.dtype, self.row_dims)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.kind().name();
        match self {
            Call::Exchange { form, send_rows, to, from, rows } => {
                write!(f, "{name} of {form}: {send_rows} to rank {to}, {rows} from rank {from}")
            }
            Call::AllGather { form, rows } => {
                write!(f, "{name} of {form}: {rows:?} from the ranks")
            }
            Call::AllToAll { form, send_rows, rows } => {
                write!(f, "{name} of {form}: {send_rows:?} to the ranks, {rows:?} from them")
            }
            Call::BroadcastBytes { root } => write!(f, "{name} from rank {root}"),
            Call::GatherBytes { root } => write!(f, "{name} to rank {root}"),
            Call::Barrier => write!(f, "{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_of_one_world() {
        let form = Form { dtype: DType::F32, row_dims: vec![4] };
        let exchange = Call::Exchange { form: form.clone(), send_rows: 1, to: 2, from: 0, rows: 1 };
        let gather = Call::AllGather { form: form.clone(), rows: vec![1, 2, 3] };
        let uneven = Call::AllToAll { form, send_rows: vec![1, 2, 3], rows: vec![1, 2] };
        assert!(exchange.is_of(3) && !exchange.is_of(2));
        assert!(gather.is_of(3) && !gather.is_of(2) && !gather.is_of(4));
        assert!(!uneven.is_of(2) && !uneven.is_of(3));
        assert!(Call::BroadcastBytes { root: 1 }.is_of(2) && !Call::GatherBytes { root: 2 }.is_of(2));
        assert_eq!((exchange.gives(0, 3), gather.gives(0, 3)), ((1, 0), (3, 0)));
        assert_eq!([0, 1].map(|rank| Call::GatherBytes { root: 1 }.gives(rank, 2)), [(0, 0), (0, 2)]);
    }
}
