//! Cubes whose log waits for a repair that weighs it.

use super::Gates;

impl Gates {
    /// Answers nothing of a cube whose log waits for a repair.
    pub(crate) fn shut(&self, cube: u32, why: String) {
        if let Some(gate) = self.known(cube) {
            gate.about().waits = true;
        }
        self.fail(cube, why);
    }

    /// Whether the log of a cube waits for a repair.
    pub(crate) fn waits(&self, cube: u32) -> bool {
        self.known(cube).is_some_and(|gate| gate.about().waits)
    }
}
