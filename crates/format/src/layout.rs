//! The `layout!` macro: a structure, its offsets, and its decoder and encoder, in one table.

/// A value stored at a fixed place in a structure.
pub trait Field: Sized {
    /// Bytes it takes.
    const SIZE: usize;
    /// Reads it, low byte first. `from` has exactly [`Field::SIZE`] bytes.
    fn get_le(from: &[u8]) -> Self;
    /// Reads it, high byte first. `from` has exactly [`Field::SIZE`] bytes.
    fn get_be(from: &[u8]) -> Self;
    /// Writes it, low byte first. `into` has exactly [`Field::SIZE`] bytes.
    fn put_le(&self, into: &mut [u8]);
    /// Writes it, high byte first. `into` has exactly [`Field::SIZE`] bytes.
    fn put_be(&self, into: &mut [u8]);
}

macro_rules! integer_fields {
    ($($int:ty),*) => {$(
        impl Field for $int {
            const SIZE: usize = size_of::<$int>();
            #[inline]
            fn get_le(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$int>()];
                bytes.copy_from_slice(from);
                Self::from_le_bytes(bytes)
            }
            #[inline]
            fn get_be(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$int>()];
                bytes.copy_from_slice(from);
                Self::from_be_bytes(bytes)
            }
            #[inline]
            fn put_le(&self, into: &mut [u8]) {
                into.copy_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn put_be(&self, into: &mut [u8]) {
                into.copy_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integer_fields!(u8, u16, u32, u64);

impl<T: Field + Copy + Default, const COUNT: usize> Field for [T; COUNT] {
    const SIZE: usize = T::SIZE * COUNT;
    #[inline]
    fn get_le(from: &[u8]) -> Self {
        let mut values = [T::default(); COUNT];
        for (value, bytes) in values.iter_mut().zip(from.chunks_exact(T::SIZE)) {
            *value = T::get_le(bytes);
        }
        values
    }
    #[inline]
    fn get_be(from: &[u8]) -> Self {
        let mut values = [T::default(); COUNT];
        for (value, bytes) in values.iter_mut().zip(from.chunks_exact(T::SIZE)) {
            *value = T::get_be(bytes);
        }
        values
    }
    #[inline]
    fn put_le(&self, into: &mut [u8]) {
        for (value, bytes) in self.iter().zip(into.chunks_exact_mut(T::SIZE)) {
            value.put_le(bytes);
        }
    }
    #[inline]
    fn put_be(&self, into: &mut [u8]) {
        for (value, bytes) in self.iter().zip(into.chunks_exact_mut(T::SIZE)) {
            value.put_be(bytes);
        }
    }
}

/// The little-endian field of type `T` at byte `AT`. An offset past the end does not compile.
#[inline]
pub fn le<T: Field, const AT: usize, const N: usize>(bytes: &[u8; N]) -> T {
    const { assert!(AT + T::SIZE <= N, "field outside its structure") };
    T::get_le(&bytes[AT..AT + T::SIZE])
}

/// The big-endian field of type `T` at byte `AT`. An offset past the end does not compile.
#[inline]
pub fn be<T: Field, const AT: usize, const N: usize>(bytes: &[u8; N]) -> T {
    const { assert!(AT + T::SIZE <= N, "field outside its structure") };
    T::get_be(&bytes[AT..AT + T::SIZE])
}

/// Stores `value`, low byte first, at byte `AT`. An offset past the end does not compile.
#[inline]
pub fn put_le<T: Field, const AT: usize, const N: usize>(bytes: &mut [u8; N], value: &T) {
    const { assert!(AT + T::SIZE <= N, "field outside its structure") };
    value.put_le(&mut bytes[AT..AT + T::SIZE]);
}

/// Stores `value`, high byte first, at byte `AT`. An offset past the end does not compile.
#[inline]
pub fn put_be<T: Field, const AT: usize, const N: usize>(bytes: &mut [u8; N], value: &T) {
    const { assert!(AT + T::SIZE <= N, "field outside its structure") };
    value.put_be(&mut bytes[AT..AT + T::SIZE]);
}

/// The `u16` at `at` of a slice whose length is only known at run time, or `None` past its end.
#[inline]
pub fn le16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?).map(u16::get_le)
}

/// The `u32` at `at` of a slice whose length is only known at run time, or `None` past its end.
#[inline]
pub fn le32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?).map(u32::get_le)
}

/// Declares a structure by its offsets and makes `decode` and `encode_into`.
///
/// `layout! { /// doc  pub struct Name[SIZE] little { 0x00 field: u32, .. } }`; the byte order is
/// `little` or `big`. Bytes that no field covers are left alone by `encode_into`, so a structure is
/// changed by decoding it, editing it and encoding it over its old bytes.
#[macro_export]
macro_rules! layout {
    (@get little $ty:ty, $at:literal, $bytes:ident) => {
        $crate::layout::le::<$ty, $at, { Self::SIZE }>($bytes)
    };
    (@get big $ty:ty, $at:literal, $bytes:ident) => {
        $crate::layout::be::<$ty, $at, { Self::SIZE }>($bytes)
    };
    (@put little $ty:ty, $at:literal, $bytes:ident, $value:expr) => {
        $crate::layout::put_le::<$ty, $at, { Self::SIZE }>($bytes, $value)
    };
    (@put big $ty:ty, $at:literal, $bytes:ident, $value:expr) => {
        $crate::layout::put_be::<$ty, $at, { Self::SIZE }>($bytes, $value)
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident[$size:expr] $order:ident {
            $($(#[$field_meta:meta])* $at:literal $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        impl $name {
            /// Bytes of the structure on the disk.
            pub const SIZE: usize = $size;

            /// Decodes the structure. No bytes are refused.
            #[inline]
            pub fn decode(bytes: &[u8; $size]) -> Self {
                Self { $($field: $crate::layout!(@get $order $ty, $at, bytes),)* }
            }

            /// Writes every field over `bytes`; bytes that no field covers stay as they are.
            pub fn encode_into(&self, bytes: &mut [u8; $size]) {
                $($crate::layout!(@put $order $ty, $at, bytes, &self.$field);)*
            }

            /// Names and decoded values of all fields, in disk order, for `floe dump`.
            pub fn fields(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), format!("{:?}", self.$field)),)*]
            }
        }
    };
}
