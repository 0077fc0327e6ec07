//! SplitMix64 (Steele et al. 2014): numbers that follow from a seed on every machine and rank. It
//! is no source of secrets.

/// Distance between two states of the generator.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generator, with its state.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of a seed after its first `draws` draws.
    pub fn after(seed: u64, draws: u64) -> Self {
        Self(seed.wrapping_add(draws.wrapping_mul(STEP)))
    }

    /// Draws the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Draws a number below `bound`, at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }

    /// Draws a number from 0, inclusive, to 1, exclusive, of 24 bits.
    pub fn uniform(&mut self) -> f32 {
        (self.draw() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// The first number of a seed: its bits, mixed.
    pub fn mixed(seed: u64) -> u64 {
        Self(seed).draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        // As the authors' own program draws them for this seed.
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        let mut drawn = SplitMix64::new(1_234_567);
        assert_eq!([(); 5].map(|()| drawn.draw()), published);
        for (draws, number) in (0..).zip(published) {
            assert_eq!(SplitMix64::after(1_234_567, draws).draw(), number);
        }
        assert_eq!(SplitMix64::mixed(1_234_567), published[0]);
        assert_eq!(SplitMix64::new(1_234_567).below(1000) as u64, published[0] % 1000);
        let uniform = SplitMix64::new(1_234_567).uniform();
        assert!((f64::from(uniform) - published[0] as f64 / 2f64.powi(64)).abs() < 1e-7, "{uniform}");
    }
}
