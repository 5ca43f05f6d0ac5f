//! Extended attributes by which administrators control cubes of a mounted file system (`docs/cubes.md`). No file system stores
//! them.

use std::path::PathBuf;

use floe_format::InodeNr;
use floe_fs::{CubeCall, FileSystem, FsError, Settings, Store, Which};

/// The prefix of all their names.
pub(crate) const CUBE_PREFIX: &[u8] = b"floe.cube";

/// The value of such an attribute.
pub(crate) fn read<S: Store>(
    fs: &FileSystem<S>,
    inode: InodeNr,
    name: &[u8],
) -> Result<Vec<u8>, FsError> {
    let rest = name.strip_prefix(CUBE_PREFIX).unwrap_or_default();
    let call = match rest {
        b"s" => CubeCall::List,
        b"" => CubeCall::Show(inode),
        b".most_journal_blocks" => CubeCall::MostJournal,
        b".report" => CubeCall::Report(Which::Of(inode)),
        rest if rest.starts_with(b".report.") => {
            CubeCall::Report(Which::Number(number(&rest[7..]).ok_or(FsError::NoAttribute)?))
        }
        _ => CubeCall::Number(number(rest).ok_or(FsError::NoAttribute)?),
    };
    match fs.cube_call(&call) {
        Err(FsError::Unsupported(_) | FsError::NotFound) => Err(FsError::NoAttribute),
        other => other,
    }
}

/// Sets such an attribute: a call that changes a cube. Only root may.
pub(crate) fn change<S: Store>(
    fs: &FileSystem<S>,
    inode: InodeNr,
    by: (u32, u32),
    name: &[u8],
    value: &[u8],
) -> Result<(), FsError> {
    if by.0 != 0 {
        return Err(FsError::NotPermitted);
    }
    let call = match name.strip_prefix(CUBE_PREFIX).unwrap_or_default() {
        b".create" => {
            let (name, rest) = named(value);
            CubeCall::Create { parent: inode, name, settings: Settings::parse(rest?)? }
        }
        b".set" => CubeCall::Set(inode, Settings::parse(text(value)?)?),
        b".remove" => {
            let (name, rest) = named(value);
            let keep_files = match rest? {
                "" => false,
                "keep_files" => true,
                _ => return Err(FsError::Invalid),
            };
            CubeCall::Remove { parent: inode, name, keep_files }
        }
        rest if rest.starts_with(b".check") => {
            let cube = which(inode, &rest[6..])?;
            CubeCall::Check { cube, repairs: false, undo: None }
        }
        rest if rest.starts_with(b".repair") => {
            let cube = which(inode, &rest[7..])?;
            let undo = Some(text(value)?).filter(|path| !path.is_empty()).map(PathBuf::from);
            if undo.as_ref().is_some_and(|path| !path.is_absolute()) {
                return Err(FsError::Invalid);
            }
            CubeCall::Check { cube, repairs: true, undo }
        }
        b".fence" => CubeCall::Fence,
        _ => return Err(FsError::Unsupported("this attribute of cubes")),
    };
    fs.cube_call(&call).map(drop)
}

/// The cube of an inode, or that whose number follows behind a dot.
fn which(inode: InodeNr, rest: &[u8]) -> Result<Which, FsError> {
    match rest {
        b"" => Ok(Which::Of(inode)),
        rest => {
            Ok(Which::Number(number(rest).ok_or(FsError::Unsupported("this attribute of cubes"))?))
        }
    }
}

fn number(rest: &[u8]) -> Option<u32> {
    std::str::from_utf8(rest.strip_prefix(b".")?).ok()?.parse().ok()
}

fn text(value: &[u8]) -> Result<&str, FsError> {
    std::str::from_utf8(value).map_err(|_| FsError::Invalid)
}

/// A name, and what stands behind the slash after it.
fn named(value: &[u8]) -> (&[u8], Result<&str, FsError>) {
    match value.iter().position(|byte| *byte == b'/') {
        Some(at) => (&value[..at], text(&value[at + 1..])),
        None => (value, Ok("")),
    }
}
