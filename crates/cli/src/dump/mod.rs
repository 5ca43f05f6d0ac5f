//! Shows structures as tables.

pub(crate) mod blocks;
pub(crate) mod inodes;
pub(crate) mod special;

/// Names of the set flags, with the bits of unknown ones.
pub(crate) fn flags<F: bitflags::Flags<Bits = u32>>(flags: &F) -> String {
    let mut names: Vec<String> =
        flags.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let known = flags.iter_names().fold(0, |bits, (_, flag)| bits | flag.bits());
    let unknown = flags.bits() & !known;
    if unknown != 0 {
        names.push(format!("{unknown:#x}"));
    }
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}
