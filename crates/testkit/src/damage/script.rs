//! Damage encoded as bytes: the input of the fuzz target `check_image` and of its regression tests.
//! Any bytes are a valid script, and equal bytes give equal damage.
//!
//! ```text
//! byte 0       profile, modulo their number
//! byte 1       bit 0: the raw disk is judged, without replay of the journal
//!              bits 1 to 2: number of unreadable blocks      bit 3: the image is truncated
//!              bits 4 to 5: who made it (`Maker`), where the target knows others than mke2fs
//! byte 2       seed of the unreadable blocks, and where the image is cut: 256ths of it
//! then         edits of 13 bytes: action, place (2), position (2), value (8), little-endian
//! ```

use anyhow::Result;
use floe_blockdev::{FaultMix, Faulty};

use super::fields_of;
use crate::image::{Contents, Image};
use crate::profile::Profile;
use crate::rng::Rng;
use crate::volume::{Place, Volume, survey};

/// Bytes before the first edit.
const HEAD_BYTES: usize = 3;
/// Bytes of an edit.
const EDIT_BYTES: usize = 13;
/// Maximum edits; further ones are ignored because they only make a failure harder to understand.
const MOST_EDITS: usize = 8;

/// A base image that scripts damage, restored after each.
#[derive(Debug)]
pub struct Stage {
    contents: Contents,
    image: Image,
    places: Vec<Place>,
}

/// Behaviour of the device under test, besides its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Skip the replay of the journal.
    pub ignore_journal: bool,
    /// Number of unreadable blocks.
    pub unreadable: u32,
    /// Seed that selects them.
    pub seed: u64,
    /// Size of the truncated image in bytes.
    pub size_bytes: u64,
}

/// The program that makes the base image which a script selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maker {
    /// mke2fs, by profile.
    Mke2fs(Profile),
    /// Floe: a native file system.
    Native,
    /// Floe: rext3.
    Rext3,
}

impl Maker {
    /// The first bytes of a script that selects it.
    pub fn head(self) -> [u8; HEAD_BYTES] {
        let number = |profile| Profile::ALL.iter().position(|&one| one == profile).unwrap_or(0);
        match self {
            // There are fewer than 256.
            Self::Mke2fs(profile) => [number(profile) as u8, 0, 0],
            Self::Native => [0, 1 << 4, 0],
            Self::Rext3 => [0, 2 << 4, 0],
        }
    }
}

/// The maker that a script selects.
pub fn maker_of(script: &[u8]) -> Maker {
    match script.get(1).copied().unwrap_or(0) >> 4 & 3 {
        1 => Maker::Native,
        2 => Maker::Rext3,
        _ => Maker::Mke2fs(profile_of(script)),
    }
}

/// The profile that a script selects.
pub fn profile_of(script: &[u8]) -> Profile {
    let number = usize::from(script.first().copied().unwrap_or(0));
    Profile::ALL[number % Profile::ALL.len()]
}

/// A random script for a profile, of one to four edits. Mostly for complete images that are fully
/// readable.
pub fn random(rng: &mut Rng, profile: Profile) -> Vec<u8> {
    random_for(rng, Maker::Mke2fs(profile))
}

/// The same for another maker.
pub fn random_for(rng: &mut Rng, maker: Maker) -> Vec<u8> {
    let mut script = vec![0; HEAD_BYTES + EDIT_BYTES * (1 + rng.index(4))];
    rng.fill(&mut script);
    let head = maker.head();
    script[0] = head[0];
    script[1] = script[1] & if rng.chance(8) { 0xcf } else { 1 } | head[1];
    script
}

impl Stage {
    /// The stage of a profile, undamaged.
    ///
    /// # Errors
    /// As [`crate::build::base`].
    pub fn new(profile: Profile) -> Result<Self> {
        Self::of(crate::build::base_contents(profile)?)
    }

    /// The stage of another base image.
    ///
    /// # Errors
    /// The image cannot be written, or is none that [`Volume`] opens.
    pub fn of(contents: Contents) -> Result<Self> {
        let image = contents.to_image()?;
        let places = survey(&Volume::open(&image)?)?;
        Ok(Self { contents, image, places })
    }

    /// Decodes the device conditions from a script's first bytes.
    pub fn conditions(&self, script: &[u8]) -> Conditions {
        let byte = |at: usize| script.get(at).copied().unwrap_or(0);
        let (options, how) = (byte(1), u64::from(byte(2)));
        let whole = self.contents.size_bytes();
        Conditions {
            ignore_journal: options & 1 != 0,
            unreadable: u32::from(options >> 1 & 3),
            seed: how,
            size_bytes: if options & 8 != 0 { whole * how / 256 } else { whole },
        }
    }

    /// Damages the image according to `script`, passes the device to `look`, and reverts the
    /// damage.
    ///
    /// # Errors
    /// The image cannot be written.
    pub fn perform<T>(
        &self,
        script: &[u8],
        look: impl FnOnce(&Faulty<&Image>, Conditions) -> T,
    ) -> Result<T> {
        let conditions = self.conditions(script);
        let volume = Volume::open(&self.image)?;
        let block_bytes = volume.geometry.block_size;
        let edits = script.get(HEAD_BYTES..).unwrap_or(&[]).chunks(EDIT_BYTES).take(MOST_EDITS);
        let mut before = Vec::new();
        for edit in edits {
            before.extend(self.edit(&volume, edit)?);
        }
        let mix = FaultMix { unreadable: conditions.unreadable, ..FaultMix::default() };
        let device = Faulty::from_seed(&self.image, block_bytes, conditions.seed, mix)
            .truncated(conditions.size_bytes);
        let seen = look(&device, conditions);
        for (at, bytes) in before.iter().rev() {
            self.image.write(*at, bytes)?;
        }
        // Checksums elsewhere may have been updated.
        self.contents.write_over(&self.image)?;
        Ok(seen)
    }

    /// Makes one edit; returns its offset and the old bytes.
    fn edit(&self, volume: &Volume<'_>, edit: &[u8]) -> Result<Option<(u64, Vec<u8>)>> {
        let mut raw = [0; EDIT_BYTES];
        raw[..edit.len()].copy_from_slice(edit);
        let [action, p0, p1, a0, a1, value @ ..] = raw;
        let (which, position) = (u16::from_le_bytes([p0, p1]), u16::from_le_bytes([a0, a1]));
        let place = self.places[usize::from(which) % self.places.len()];
        let kind = action & 7;
        // Anywhere in the image, or in a structure that may have become unreachable.
        let (at, len) = if kind == 7 {
            let at = u64::from(u32::from_le_bytes([p0, p1, a0, a1])) % self.image.size();
            (at, 8.min((self.image.size() - at) as usize))
        } else {
            match volume.range_of(place) {
                Ok((at, len)) if at.saturating_add(len as u64) <= self.image.size() => (at, len),
                _ => return Ok(None),
            }
        };
        let mut bytes = vec![0; len];
        self.image.read(at, &mut bytes)?;
        let before = bytes.clone();
        let number = u64::from_le_bytes(value);
        match kind {
            0..=2 => set_field(place, &mut bytes, usize::from(position), number, kind),
            3 => overwrite(&mut bytes, usize::from(position), &value, 8),
            4 => {
                overwrite(&mut bytes, usize::from(position), &value, 1 + usize::from(value[7] & 7))
            }
            5 => self.copy(volume, number, &mut bytes)?,
            6 => bytes.fill(value[0]),
            _ => overwrite(&mut bytes, 0, &value, 8),
        }
        self.image.write(at, &bytes)?;
        if action & 0x80 != 0 && kind != 7 {
            // Fails if damage moved structures; then the checksums stay wrong.
            let _ = volume.fix(place);
        }
        Ok(Some((at, before)))
    }

    /// Overwrites a structure with another one of the same length.
    fn copy(&self, volume: &Volume<'_>, number: u64, bytes: &mut [u8]) -> Result<()> {
        let other = self.places[(number % self.places.len() as u64) as usize];
        if let Ok((at, len)) = volume.range_of(other)
            && len == bytes.len()
            && at.saturating_add(len as u64) <= self.image.size()
        {
            self.image.read(at, bytes)?;
        }
        Ok(())
    }
}

/// Sets a field, adds to it, or flips bits of it.
fn set_field(place: Place, bytes: &mut [u8], position: usize, number: u64, kind: u8) {
    let fields = fields_of(place, bytes);
    let Some(field) = fields.get(position % fields.len().max(1)) else {
        return overwrite(bytes, position, &number.to_le_bytes(), 4);
    };
    let old = field.get(bytes);
    let new = match kind {
        0 => number,
        1 => old.wrapping_add(number),
        _ => old ^ number,
    };
    field.put(bytes, new);
}

fn overwrite(bytes: &mut [u8], position: usize, value: &[u8; 8], len: usize) {
    let start = position % bytes.len().max(1);
    let end = (start + len).min(bytes.len());
    bytes[start..end].copy_from_slice(&value[..end - start]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, tool};

    #[test]
    fn a_script_damages_and_is_undone() {
        if tool::missing() {
            return;
        }
        let mut rng = Rng::new(7);
        let stage = Stage::new(Profile::Ext4K1).expect("built");
        let whole = stage.image.to_vec().expect("read");
        let mut changed = 0;
        for _ in 0..60 {
            let mut script = vec![0; rng.index(120)];
            rng.fill(&mut script);
            let seen = |script: &[u8]| {
                stage.perform(script, |_, _| stage.image.to_vec().expect("read")).expect("done")
            };
            let once = seen(&script);
            changed += usize::from(once != whole);
            assert!(once == seen(&script), "{script:x?} is not reproducible");
            assert!(stage.image.to_vec().expect("read") == whole, "{script:x?} was not undone");
        }
        assert!(changed > 40, "only {changed} of 60 scripts have an effect");
    }
}
