//! Builds, damages and judges file system images for Floe's tests. Used only as a dev-dependency.
//!
//! The life of a test image: a [`profile::Profile`] names a feature set; [`build::base`] builds its
//! populated, clean image once per process; [`image::Image`] is a private copy; [`damage`] or a
//! [`recipe`] damages it; [`oracle`] returns the verdicts of e2fsck and the kernel.
//!
//! Everything is deterministic: an image depends on its profile and a seed, not on the clock.

pub mod build;
pub mod compare;
pub mod crash;
pub mod damage;
pub mod differential;
pub mod image;
pub mod kernel;
pub mod oracle;
pub mod pairs;
pub mod picture;
pub mod problems;
pub mod profile;
pub mod quota;
pub mod recipe;
pub mod relay;
pub mod rng;
pub mod subjects;
pub mod tool;
pub mod tree;
pub mod volume;

pub use image::{Contents, Image};
pub use oracle::e2fsck;
pub use profile::Profile;
pub use rng::Rng;
pub use subjects::Subject;
pub use volume::Volume;
