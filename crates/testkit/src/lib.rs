//! Builds, damages and judges file system images for Floe's tests. A dev-dependency only.
//!
//! The life of a test image: a [`profile::Profile`] names a feature set; [`build::base`] makes a
//! populated, clean image of it once per process; [`image::Image`] is a private copy of one;
//! [`damage`] or a [`recipe`] breaks it; [`oracle`] says what e2fsck and the kernel think of it.
//!
//! Everything is deterministic: an image depends on its profile and a seed, not on the clock.

pub mod build;
pub mod compare;
pub mod crash;
pub mod damage;
pub mod differential;
pub mod fill;
pub mod image;
pub mod kernel;
pub mod load;
pub mod oracle;
pub mod problems;
pub mod profile;
pub mod recipe;
pub mod rng;
pub mod subjects;
pub mod tool;
pub mod tree;
pub mod volume;

pub use image::Image;
pub use oracle::e2fsck;
pub use profile::Profile;
pub use rng::Rng;
pub use subjects::Subject;
pub use volume::Volume;
