//! Cubes that wait for a repair, which weighs their log or mends their descriptors.

use super::Gates;

impl Gates {
    /// Answers nothing of a cube that waits for a repair.
    pub(crate) fn shut(&self, cube: u32, why: String) {
        if let Some(gate) = self.known(cube) {
            gate.about().waits = true;
        }
        self.fail(cube, why);
    }

    /// Whether a cube waits for a repair of its log or its descriptors.
    pub(crate) fn waits(&self, cube: u32) -> bool {
        self.known(cube).is_some_and(|gate| gate.about().waits)
    }
}
