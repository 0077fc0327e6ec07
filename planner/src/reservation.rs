//! Memory of answers, reserved in steps. A request names its maximum number of tokens and usually
//! ends before: memory for all of them at once would be largely unused, and would keep others
//! waiting.
//!
//! A step is granted only while every sequence could still be brought to its longest end, one after
//! the other, each with the memory of those that ended before it (the banker's algorithm: Dijkstra,
//! EWD623; Habermann, "Prevention of System Deadlocks", CACM 1969). So one of them can always go
//! on, and none is discarded to make room. A sequence without a step pauses until another one has
//! ended.

/// Tokens of an answer whose memory is reserved at once.
pub const STEP_TOKENS: usize = 256;

/// Bytes of the tokens of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenBytes {
    /// Of a token in the layers that keep all of them.
    pub always: u64,
    /// Of a token in the layers that keep the newest ones.
    pub newest: u64,
    /// The number that those layers keep at most.
    pub most_newest: usize,
}

impl TokenBytes {
    /// Bytes of so many tokens.
    pub fn of(&self, tokens: usize) -> u64 {
        self.always * tokens as u64 + self.newest * tokens.min(self.most_newest) as u64
    }
}

impl From<u64> for TokenBytes {
    /// All layers keep all tokens, of which each takes these bytes.
    fn from(always: u64) -> Self {
        Self { always, ..Self::default() }
    }
}

/// Memory that a sequence takes on each rank during decoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Bytes on each rank without the tokens of the answer.
    bytes: Vec<u64>,
    /// The rank that keeps the tokens of the answer.
    owner: usize,
    /// Bytes of these tokens.
    token_bytes: TokenBytes,
    /// Tokens of the answer whose keys and values are written, that have memory, and that are the
    /// maximum.
    written: usize,
    reserved: usize,
    most: usize,
}

impl Reservation {
    /// A sequence at its first step: `bytes` on each rank in addition to at most `most` tokens of
    /// `token_bytes` on the owner.
    pub fn new(bytes: Vec<u64>, owner: usize, token_bytes: impl Into<TokenBytes>, most: usize) -> Self {
        assert!(owner < bytes.len(), "owner {owner} of {} ranks", bytes.len());
        let token_bytes = token_bytes.into();
        Self { bytes, owner, token_bytes, written: 0, reserved: most.min(STEP_TOKENS), most }
    }

    /// The reservation of a request without a sequence, which is empty.
    pub fn nothing(world: usize) -> Self {
        Self::new(vec![0; world], 0, 0, 0)
    }

    /// Bytes on a rank, with the tokens that have memory.
    pub fn bytes(&self, rank: usize) -> u64 {
        self.bytes[rank] + if rank == self.owner { self.token_bytes.of(self.reserved) } else { 0 }
    }

    /// Adds its memory to each rank's bytes.
    pub fn add_to(&self, taken: &mut [u64]) {
        taken.iter_mut().enumerate().for_each(|(rank, taken)| *taken += self.bytes(rank));
    }

    /// Whether the next token needs another step.
    pub fn is_at_its_end(&self) -> bool {
        self.written >= self.reserved && self.reserved < self.most
    }

    /// One more token is written.
    pub fn writes(&mut self) {
        self.written += 1;
    }

    /// The same with one more step.
    pub fn with_another_step(&self) -> Self {
        Self { reserved: self.most.min(self.reserved + STEP_TOKENS), ..self.clone() }
    }

    /// The same of a sequence whose answer has ended: it needs no further step.
    pub fn ended(&self) -> Self {
        Self { most: self.reserved, ..self.clone() }
    }

    /// The memory that it takes in addition to that of another one, whose place it takes.
    #[must_use]
    pub fn beside(&self, replaced: &Self) -> Self {
        let bytes = self.bytes.iter().enumerate().map(|(rank, bytes)| bytes.saturating_sub(replaced.bytes(rank)));
        Self { bytes: bytes.collect(), ..self.clone() }
    }

    /// Bytes that it may still need on its owner.
    fn missing_bytes(&self) -> u64 {
        self.token_bytes.of(self.most) - self.token_bytes.of(self.reserved)
    }
}

/// Memory that sequences and cached chunks share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Bytes of one memory, a host's or a device's, without weights and program; unknown where
    /// absent.
    pub bytes: Option<u64>,
    /// Ranks that share it: those that take most are counted.
    pub ranks_here: usize,
    /// Bytes that each rank's cached chunks take.
    pub cached_bytes: Vec<u64>,
}

impl Room {
    /// Unlimited memory.
    pub fn unknown(world: usize) -> Self {
        Self { bytes: None, ranks_here: world, cached_bytes: vec![0; world] }
    }

    /// Whether sequences that take these bytes on each rank have room beside cached chunks.
    fn holds(&self, taken: &[u64]) -> bool {
        let Some(room) = self.bytes else { return true };
        let mut of_ranks: Vec<u64> =
            taken.iter().zip(&self.cached_bytes).map(|(taken, cached)| taken + cached).collect();
        of_ranks.sort_unstable_by(|a, b| b.cmp(a));
        of_ranks.iter().take(self.ranks_here).sum::<u64>() <= room
    }

    /// Whether all these sequences can be brought to their longest end, in some order.
    pub fn all_can_end<'a>(&self, sequences: impl IntoIterator<Item = &'a Reservation>) -> bool {
        let mut left: Vec<&Reservation> = sequences.into_iter().collect();
        let mut taken = vec![0; self.cached_bytes.len()];
        left.iter().for_each(|sequence| sequence.add_to(&mut taken));
        if !self.holds(&taken) {
            return false;
        }
        // The one that needs least is tried first: it is the likeliest to have room.
        left.sort_by_key(|sequence| sequence.missing_bytes());
        while !left.is_empty() {
            let can_end = |sequence: &&Reservation| {
                let mut at_its_end = taken.clone();
                at_its_end[sequence.owner] += sequence.missing_bytes();
                self.holds(&at_its_end)
            };
            let Some(index) = left.iter().position(can_end) else { return false };
            let ended = left.remove(index);
            taken.iter_mut().enumerate().for_each(|(rank, taken)| *taken -= ended.bytes(rank));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = STEP_TOKENS as u64;

    fn room(bytes: u64) -> Room {
        Room { bytes: Some(bytes), ranks_here: 2, cached_bytes: vec![0, 0] }
    }

    fn of(steps: usize) -> Reservation {
        Reservation::new(vec![100, 50], 0, 1, steps * STEP_TOKENS)
    }

    #[test]
    fn a_sequence_takes_its_steps_one_by_one() {
        let mut sequence = Reservation::new(vec![100, 50], 1, 2, STEP_TOKENS + 10);
        assert_eq!([sequence.bytes(0), sequence.bytes(1)], [100, 50 + 2 * STEP]);
        for _ in 0..STEP_TOKENS {
            assert!(!sequence.is_at_its_end());
            sequence.writes();
        }
        assert!(sequence.is_at_its_end());
        sequence = sequence.with_another_step();
        assert_eq!([sequence.bytes(0), sequence.bytes(1)], [100, 50 + 2 * (STEP + 10)]);
        (0..10).for_each(|_| sequence.writes());
        assert!(!sequence.is_at_its_end(), "it has all that it can need");
    }

    #[test]
    fn windows_keep_the_newest_tokens_of_an_answer() {
        let token_bytes = TokenBytes { always: 3, newest: 5, most_newest: STEP_TOKENS + 100 };
        let sequence = Reservation::new(vec![0, 0], 1, token_bytes, 4 * STEP_TOKENS);
        assert_eq!([sequence.bytes(0), sequence.bytes(1)], [0, 8 * STEP]);
        assert_eq!(sequence.missing_bytes(), 3 * 3 * STEP + 5 * 100);
        let later = sequence.with_another_step();
        assert_eq!((later.bytes(1), later.missing_bytes()), (8 * STEP + 3 * STEP + 5 * 100, 2 * 3 * STEP));
    }

    #[test]
    fn sequences_end_one_after_the_other_with_the_memory_of_those_before() {
        // Two that may each reach four steps: both have one, and there must be room for the rest of
        // one of them.
        let two = [of(4), of(4)];
        let needed = 2 * 150 + 2 * STEP + 3 * STEP;
        assert!(room(needed).all_can_end(&two));
        assert!(!room(needed - 1).all_can_end(&two));
        // A short one that ends first releases the memory that the long one lacks.
        let with_short = [of(4), Reservation::new(vec![3 * STEP, 0], 0, 1, STEP_TOKENS)];
        assert!(room(150 + STEP + 4 * STEP).all_can_end(&with_short));
        assert!(!room(150 + STEP + 4 * STEP - 1).all_can_end(&with_short));
        assert!(room(0).all_can_end(&[]) && Room::unknown(2).all_can_end(&two));
    }

    #[test]
    fn cached_chunks_and_the_ranks_of_a_memory_count() {
        let beside = Room { cached_bytes: vec![7, 9], ..room(150 + STEP + 16) };
        assert!(beside.all_can_end(&[of(1)]));
        assert!(!Room { cached_bytes: vec![8, 9], ..beside.clone() }.all_can_end(&[of(1)]));
        // A device of each rank: the fullest one counts.
        let device = Room { bytes: Some(107 + STEP), ranks_here: 1, ..beside };
        assert!(device.all_can_end(&[of(1)]));
        assert!(!Room { bytes: Some(106 + STEP), ..device }.all_can_end(&[of(1)]));
    }
}
