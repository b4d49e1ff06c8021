//! Numbers that look random and are the same in every run.

/// The same sequence in every run, so that a failure can be repeated.
#[derive(Clone, Debug)]
pub struct Sequence(u64);

impl Sequence {
    /// The sequence that belongs to a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        // Constants of Knuth's MMIX generator; the upper bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}
