//! Random damage, reproducible from a seed: to fields of known structures, to their bytes, to whole
//! blocks. Half of it passes checksum verification, because the checksums are updated afterwards.

mod aimed;
mod fields;
mod hostile;
pub mod script;

use std::fmt;

use anyhow::{Context, Result};
use floe_format::layout::le32_at;

use crate::build;
use crate::image::Image;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::volume::{Place, Volume, survey};

pub use aimed::AIMED_FROM;
pub use fields::{Field, fields_of};
pub use hostile::HOSTILE_FROM;

/// Description of the damage to an image.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The seed that reproduces it.
    pub seed: u64,
    /// One line per event: place, field, old and new value, and whether checksums were updated.
    pub events: Vec<String>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.events.join("; "))
    }
}

/// The base image of a profile, damaged according to `seed`.
///
/// # Errors
/// The base image cannot be built.
pub fn damaged_image(profile: Profile, seed: u64) -> Result<(Image, Damage)> {
    let image = build::base(profile)?;
    let damage = damage(&image, seed)?;
    Ok((image, damage))
}

/// Damages an undamaged image.
///
/// # Errors
/// The image was already damaged, or cannot be written.
pub fn damage(image: &Image, seed: u64) -> Result<Damage> {
    let volume = Volume::open(image)?;
    let places = survey(&volume).context("damage starts from an undamaged image")?;
    let mut rng = Rng::new(seed);
    let count = event_count(&mut rng);
    let mut events = Vec::new();
    match seed {
        HOSTILE_FROM.. => events.push(hostile::event(&volume, &places, &mut rng)?),
        AIMED_FROM.. => events.push(aimed::event(&volume, &mut rng)?),
        _ => {}
    }
    // Such damage mostly comes alone, too.
    let more = if events.is_empty() { count } else { count - 1 };
    for _ in 0..more {
        events.push(event(&volume, &places, &mut rng)?);
    }
    Ok(Damage { seed, events })
}

/// Damages some of the structures of an undamaged image: those that `wanted` selects.
///
/// # Errors
/// The image was already damaged, has no such structure, or cannot be written.
pub fn damage_among(
    image: &Image,
    seed: u64,
    wanted: impl Fn(&Volume<'_>, Place) -> bool,
) -> Result<Damage> {
    let volume = Volume::open(image)?;
    let mut places = survey(&volume).context("damage starts from an undamaged image")?;
    places.retain(|place| wanted(&volume, *place));
    let mut rng = Rng::new(seed);
    let count = event_count(&mut rng);
    let events = (0..count).map(|_| event(&volume, &places, &mut rng));
    Ok(Damage { seed, events: events.collect::<Result<_>>()? })
}

/// Mostly one event, so that its effect can be isolated; sometimes several, for their interaction.
const fn event_count(rng: &mut Rng) -> u64 {
    if rng.chance(3) { 2 + rng.below(3) } else { 1 }
}

/// Makes one random damage; returns its description.
fn event(volume: &Volume<'_>, places: &[Place], rng: &mut Rng) -> Result<String> {
    let place = choose(places, rng).context("an image has a superblock")?;
    // An earlier event (to a descriptor) may have made the place unreachable.
    let Ok((at, len)) = volume.range_of(place) else {
        return Ok(format!("{place:?} out of reach by now"));
    };
    let mut bytes = vec![0; len];
    if volume.image.read(at, &mut bytes).is_err() {
        return Ok(format!("{place:?} out of reach by now"));
    }
    let before = bytes.clone();
    let what = match (rng.below(20), place) {
        (0..=1, _) => flip_bytes(&mut bytes, rng),
        (2, Place::Superblock | Place::Descriptor(_) | Place::Inode(_)) => {
            flip_bytes(&mut bytes, rng)
        }
        (2, _) => {
            bytes.fill(0);
            "zeroed".to_owned()
        }
        (3, Place::Superblock | Place::Descriptor(_)) => {
            change_field(volume, place, &mut bytes, rng)
        }
        (3, _) => {
            rng.fill(&mut bytes);
            "filled with garbage".to_owned()
        }
        (
            4,
            Place::Inode(_) | Place::DirBlock(..) | Place::ExtentNode(..) | Place::Indirect(..),
        ) => copy_from_another(volume, places, place, &mut bytes, rng),
        (_, Place::BlockBitmap(..) | Place::InodeBitmap(..)) => {
            flip_bits(volume, place, &mut bytes, rng)
        }
        _ => change_field(volume, place, &mut bytes, rng),
    };
    if bytes == before {
        return Ok(format!("{place:?}: {what}, without effect"));
    }
    volume.image.write(at, &bytes)?;
    let mut line = format!("{place:?}: {what}");
    if rng.chance(2) {
        // Fails if damage moved structures; then the checksums stay wrong.
        if volume.fix(place).is_ok() {
            line.push_str(", checksum updated");
        }
    }
    Ok(line)
}

/// Chooses a kind of metadata first and then one of that kind, so that the many inodes do not get
/// all the damage.
fn choose(places: &[Place], rng: &mut Rng) -> Option<Place> {
    let weight = |place: &Place| match place {
        Place::Inode(_) => 6,
        Place::DirBlock(..) => 5,
        Place::Superblock | Place::ExtentNode(..) | Place::Descriptor(_) => 3,
        Place::BlockBitmap(..)
        | Place::InodeBitmap(..)
        | Place::Indirect(..)
        | Place::DirIndex(..)
        | Place::XattrBlock(..) => 2,
        _ => 1,
    };
    let mut kinds: Vec<&Place> = Vec::new();
    for place in places {
        if kinds.iter().all(|kind| std::mem::discriminant(*kind) != std::mem::discriminant(place)) {
            kinds.push(place);
        }
    }
    let mut ticket = rng.below(kinds.iter().map(|kind| weight(kind)).sum());
    let kind = kinds.into_iter().find(|kind| {
        let own = weight(kind);
        let hit = ticket < own;
        ticket = ticket.saturating_sub(own);
        hit
    })?;
    let alike: Vec<&Place> = places
        .iter()
        .filter(|place| std::mem::discriminant(*place) == std::mem::discriminant(kind))
        .collect();
    rng.pick(&alike).map(|place| **place)
}

fn flip_bytes(bytes: &mut [u8], rng: &mut Rng) -> String {
    let mut done = Vec::new();
    for _ in 0..=rng.below(4) {
        let at = rng.index(bytes.len());
        let old = bytes[at];
        bytes[at] ^= 1 << rng.below(8);
        done.push(format!("byte {at:#x} {old:#04x} -> {:#04x}", bytes[at]));
    }
    done.join(", ")
}

/// Flips a run of bits of a bitmap, mostly within the group.
fn flip_bits(volume: &Volume<'_>, place: Place, bytes: &mut [u8], rng: &mut Rng) -> String {
    let geometry = &volume.geometry;
    let inside = match place {
        Place::InodeBitmap(..) => geometry.inodes_per_group,
        Place::BlockBitmap(group, _) => geometry.clusters_of(group),
        _ => 0,
    };
    let end = if rng.chance(8) { bytes.len() as u64 * 8 } else { u64::from(inside) };
    let first = rng.below(end);
    let run = if rng.chance(2) { 1 } else { 1 + rng.below(40) };
    for bit in first..(first + run).min(end) {
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
    format!("{run} bits flipped from {first} on")
}

/// Copies the bytes of another place of the same kind: duplicates, and structures with valid
/// content that belongs to another owner.
fn copy_from_another(
    volume: &Volume<'_>,
    places: &[Place],
    place: Place,
    bytes: &mut [u8],
    rng: &mut Rng,
) -> String {
    let alike: Vec<Place> = places
        .iter()
        .copied()
        .filter(|other| std::mem::discriminant(other) == std::mem::discriminant(&place))
        .collect();
    let Some(&other) = rng.pick(&alike) else {
        return "nothing".to_owned();
    };
    let mut copy = vec![0; bytes.len()];
    match volume.range_of(other) {
        Ok((at, len)) if len == bytes.len() && volume.image.read(at, &mut copy).is_ok() => {
            bytes.copy_from_slice(&copy);
            format!("overwritten with {other:?}")
        }
        _ => "nothing".to_owned(),
    }
}

fn change_field(volume: &Volume<'_>, place: Place, bytes: &mut [u8], rng: &mut Rng) -> String {
    let fields = fields_of(place, bytes);
    let Some(field) = rng.pick(&fields) else {
        return flip_bytes(bytes, rng);
    };
    let old = field.get(bytes);
    let new = other_value(volume, field, old, bytes, rng);
    field.put(bytes, new);
    format!("{} {old:#x} -> {:#x}", field.name, field.get(bytes))
}

/// A value that is likely to do harm: near the old one, at a limit, or valid for another owner.
fn other_value(volume: &Volume<'_>, field: &Field, old: u64, bytes: &[u8], rng: &mut Rng) -> u64 {
    let geometry = &volume.geometry;
    match rng.below(10) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 | 5 => old ^ 1 << rng.below(field.size as u64 * 8),
        6 => rng.next_u64(),
        // Valid as a block or an inode of another owner, or just past the end.
        7 => rng.below(geometry.blocks_count + 2),
        8 if field.size == 4 => rng.below(u64::from(geometry.inodes_count) + 2),
        8 => old.wrapping_mul(2),
        _ => {
            let at = rng.index(bytes.len().saturating_sub(4)) & !3;
            u64::from(le32_at(bytes, at).unwrap_or(0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{oracle, tool};

    #[test]
    fn a_seed_repeats_its_damage() {
        if tool::missing() {
            return;
        }
        for seed in 0..20 {
            let (first, damage) = damaged_image(Profile::Ext4K1, seed).expect("damaged");
            let (second, again) = damaged_image(Profile::Ext4K1, seed).expect("damaged");
            assert_eq!(damage.events, again.events);
            assert_eq!(first.to_vec().expect("read"), second.to_vec().expect("read"));
        }
    }

    #[test]
    fn most_damage_is_seen_by_e2fsck_in_many_ways() {
        if tool::missing() {
            return;
        }
        let (mut seen, mut codes) = (0, std::collections::BTreeSet::new());
        for seed in 0..100 {
            let profile = Profile::ALL[seed % Profile::ALL.len()];
            let (image, _) = damaged_image(profile, seed as u64).expect("damaged");
            let verdict = oracle::e2fsck(&image).expect("e2fsck runs");
            seen += usize::from(verdict.damaged());
            codes.extend(verdict.codes());
        }
        assert!(seen >= 60, "only {seen} of 100 damages matter");
        assert!(codes.len() >= 30, "only {} kinds of problems: {codes:x?}", codes.len());
    }
}
