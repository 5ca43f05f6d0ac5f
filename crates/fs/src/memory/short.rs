//! Bytes of names. Those of most names lie where the value lies, and take no memory of their own.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Bytes that lie in place, at most.
const IN_PLACE: usize = 22;

/// A name, at most 255 bytes.
#[derive(Clone)]
pub(crate) enum Short {
    InPlace(u8, [u8; IN_PLACE]),
    Apart(Box<[u8]>),
}

const _: () = assert!(size_of::<Short>() == 24);

impl From<&[u8]> for Short {
    fn from(name: &[u8]) -> Self {
        let mut bytes = [0; IN_PLACE];
        match bytes.get_mut(..name.len()) {
            Some(place) => {
                place.copy_from_slice(name);
                // At most 22.
                Self::InPlace(name.len() as u8, bytes)
            }
            None => Self::Apart(name.into()),
        }
    }
}

impl Deref for Short {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::InPlace(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Apart(bytes) => bytes,
        }
    }
}

impl PartialEq for Short {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Short {}

impl Hash for Short {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Short {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(into, "{:?}", String::from_utf8_lossy(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_come_back() {
        for len in 0..=255 {
            let name: Vec<u8> = (0..len).map(|at| at as u8 + 1).collect();
            let short = Short::from(&name[..]);
            assert_eq!(*short, *name);
            assert_eq!(short, short.clone());
            assert_eq!(matches!(short, Short::InPlace(..)), name.len() <= IN_PLACE);
        }
    }
}
