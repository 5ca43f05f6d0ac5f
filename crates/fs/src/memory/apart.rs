//! Values on cache lines of their own, so that who writes them disturbs nobody who reads what lies beside them.

use std::ops::{Deref, DerefMut};

/// A value on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Apart<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
