//! Training samples: requests as token ids.

/// A request as token ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sample {
    /// Before the first chunk; every chunk sees it. May be empty.
    pub prefix: Vec<u32>,
    /// The context, a chunk each.
    pub chunks: Vec<Vec<u32>>,
    /// Tokens after the context.
    pub query: Vec<u32>,
    /// Tokens of the teacher's answer, at most.
    pub answer_tokens: usize,
    /// Tokens before the first chunk of the teacher's prompt, where that is not `prefix`.
    pub taught_behind: Option<Vec<u32>>,
}

impl Sample {
    /// The prompt that the teacher reads.
    pub fn prompt(&self) -> Vec<u32> {
        let context = self.chunks.iter().flatten();
        self.taught_behind.as_ref().unwrap_or(&self.prefix).iter().chain(context).chain(&self.query).copied().collect()
    }

    /// Tokens of the context.
    pub fn context_tokens(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }
}

/// A hash of samples, as hexadecimal digits: a training resumes with the same ones only.
pub fn digest(samples: &[Sample]) -> String {
    let mut hash = blake3::Hasher::new();
    let mut add = |ids: &[u32]| {
        hash.update(&(ids.len() as u64).to_le_bytes());
        for id in ids {
            hash.update(&id.to_le_bytes());
        }
    };
    for sample in samples {
        add(&sample.prefix);
        sample.chunks.iter().for_each(|chunk| add(chunk));
        add(&sample.query);
        add(&[sample.answer_tokens as u32]);
        sample.taught_behind.iter().for_each(|ids| add(ids));
    }
    hash.finalize().to_hex()[..32].to_owned()
}
