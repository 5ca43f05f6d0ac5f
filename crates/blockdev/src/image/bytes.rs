//! Numbers in the headers of images. Fields stand at fixed places of headers that are read whole,
//! so both sizes are known while compiling and no bytes can make these fail.

/// `N` bytes at `AT` of a header.
pub(super) fn take<const AT: usize, const N: usize, const LEN: usize>(
    bytes: &[u8; LEN],
) -> [u8; N] {
    const { assert!(AT + N <= LEN, "the field passes the end of its header") };
    let mut field = [0; N];
    field.copy_from_slice(&bytes[AT..AT + N]);
    field
}

/// A big-endian number of 32 bits at `AT`.
pub(super) fn be32<const AT: usize, const LEN: usize>(bytes: &[u8; LEN]) -> u32 {
    u32::from_be_bytes(take::<AT, 4, LEN>(bytes))
}

/// A big-endian number of 64 bits at `AT`.
pub(super) fn be64<const AT: usize, const LEN: usize>(bytes: &[u8; LEN]) -> u64 {
    u64::from_be_bytes(take::<AT, 8, LEN>(bytes))
}

/// A little-endian number of 16 bits at `AT`.
pub(super) fn le16<const AT: usize, const LEN: usize>(bytes: &[u8; LEN]) -> u16 {
    u16::from_le_bytes(take::<AT, 2, LEN>(bytes))
}

/// A little-endian number of 32 bits at `AT`.
pub(super) fn le32<const AT: usize, const LEN: usize>(bytes: &[u8; LEN]) -> u32 {
    u32::from_le_bytes(take::<AT, 4, LEN>(bytes))
}

/// A little-endian number of 64 bits at `AT`.
pub(super) fn le64<const AT: usize, const LEN: usize>(bytes: &[u8; LEN]) -> u64 {
    u64::from_le_bytes(take::<AT, 8, LEN>(bytes))
}
