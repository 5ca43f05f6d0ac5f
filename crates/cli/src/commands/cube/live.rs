//! `floe cube` on a mounted file system: extended attributes `floe.cube*`, which its server answers.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use floe_check::cube::CubeName;
use floe_format::native::cube::{OnError, Policies};
use floe_fs::Settings;
use floe_sync::thread;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde_json::{Map, Value};

use super::room::judge_journal;
use crate::exit::{Ended, Outcome};

/// Bytes of a value at most (`XATTR_SIZE_MAX`).
const MOST_BYTES: usize = 64 << 10;
/// How long the kernel may take to forget that there was no such name.
const FORGETS: Duration = Duration::from_secs(5);
/// How often the result of a check is asked for.
const ASK_EVERY: Duration = Duration::from_millis(50);

fn get(directory: &Path, name: &str) -> Result<String> {
    let mut value = vec![0; MOST_BYTES];
    match getxattr(directory, name, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(String::from_utf8_lossy(&value).into_owned())
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) if name == "floe.cube" => {
            bail!("{} lies in no cube of a mounted native file system", directory.display())
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            let number = name.strip_prefix("floe.cube.").filter(|_| is_native(directory));
            let directory = directory.display();
            match number {
                Some(number) => {
                    bail!(
                        "{directory} has no cube {number}: `floe cube list {directory}` shows all"
                    )
                }
                None => bail!("{directory} is not a native file system mounted by Floe"),
            }
        }
        Err(errno) => {
            Err(std::io::Error::from(errno)).with_context(|| directory.display().to_string())
        }
    }
}

/// Whether a directory lies in a mount of Floe that may have cubes.
fn is_native(directory: &Path) -> bool {
    getxattr(directory, "floe.cubes", &mut vec![0; MOST_BYTES][..]).is_ok()
}

/// Sets an attribute of a directory; errors name the directory of the cube.
fn set_attribute(directory: &Path, cube: &Path, name: &str, value: &[u8]) -> Result<()> {
    let failed = |why: &str| Err(anyhow::anyhow!("{}: {why}", cube.display()));
    match setxattr(directory, name, value, XattrFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP) => failed(
            "it is not below a mount of a native file system by `floe mount`, or a cube in a cube or in lost+found; nothing was \
             changed",
        ),
        Err(Errno::PERM | Errno::ACCESS) if geteuid().is_root() => failed(
            "its directory is immutable (chattr +i), as `/.cubes` always is; nothing was changed",
        ),
        Err(Errno::PERM | Errno::ACCESS) => failed("only root controls cubes"),
        Err(Errno::NOSPC) => failed(
            "there is no free lot, or the journal does not fit into one; nothing was changed",
        ),
        Err(Errno::EXIST) => failed("the name exists; nothing was changed"),
        Err(Errno::NODATA) => failed("it lies in no cube; nothing was changed"),
        Err(Errno::INVAL) => failed(
            "refused: the size of a cube is one lot at least, paths have at most 2048 bytes, and `crash` and `--journal-mode data` need \
             a journal of its own, `crash` no online recovery; nothing was changed",
        ),
        Err(errno) => Err(std::io::Error::from(errno)).with_context(|| cube.display().to_string()),
    }
}

/// The directory of a path, and its last name.
fn split(directory: &Path) -> Result<(&Path, &[u8])> {
    let name = directory.file_name().context("the path of a cube must end with a name")?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), name.as_bytes()))
}

fn words(settings: Settings) -> String {
    let mut words = Vec::new();
    if let Some(bytes) = settings.max_bytes {
        let limit = if bytes == 0 { "none".to_owned() } else { bytes.to_string() };
        words.push(format!("max_size={limit}"));
    }
    words.extend(settings.on_error.map(|value: OnError| format!("on_error={}", value.name())));
    words.extend(settings.journal_blocks.map(|blocks| format!("journal_blocks={blocks}")));
    words.extend(settings.recovery.map(|value| format!("recovery={}", value.name())));
    words.extend(settings.journal_mode.map(|value| format!("journal_mode={}", value.name())));
    words.extend(settings.fsync_mode.map(|value| format!("fsync={}", value.name())));
    words.join(" ")
}

/// Makes a cube, and waits until the kernel sees its directory.
pub(super) fn create(directory: &Path, settings: Settings) -> Result<Vec<Value>> {
    let (parent, name) = split(directory)?;
    // Where nobody tells, the call itself says why it fails.
    let most = get(parent, "floe.cube.most_journal_blocks").ok().and_then(|most| most.parse().ok());
    judge_journal(settings.journal_blocks.unwrap_or(0), most)?;
    let policies = settings.over(Policies::default(), 1);
    if let Some(why) = policies.objection(settings.journal_blocks.is_some()) {
        bail!("{why}; nothing was changed");
    }
    let value = [name, b"/", words(settings).as_bytes()].concat();
    set_attribute(parent, directory, "floe.cube.create", &value)?;
    let since = Instant::now();
    // It may have kept that there was none.
    while !directory.exists() && since.elapsed() < FORGETS {
        thread::sleep(ASK_EVERY);
    }
    show(directory)
}

pub(super) fn show(directory: &Path) -> Result<Vec<Value>> {
    Ok(vec![described(&get(directory, "floe.cube")?)])
}

pub(super) fn list(directory: &Path) -> Result<Vec<Value>> {
    let numbers = get(directory, "floe.cubes")?;
    let each = numbers
        .split_whitespace()
        .map(|number| Ok(described(&get(directory, &format!("floe.cube.{number}"))?)));
    each.collect()
}

pub(super) fn set(directory: &Path, settings: Settings) -> Result<Vec<Value>> {
    set_attribute(directory, directory, "floe.cube.set", words(settings).as_bytes())?;
    show(directory)
}

pub(super) fn remove(directory: &Path, keep_files: bool) -> Result<Vec<Value>> {
    let (parent, name) = split(directory)?;
    let value = [name, if keep_files { &b"/keep_files"[..] } else { b"" }].concat();
    match set_attribute(parent, directory, "floe.cube.remove", &value) {
        Err(error) if error.to_string().contains("not empty") => {
            bail!(
                "{} is not empty; nothing was changed. --keep-files keeps its files",
                directory.display()
            )
        }
        other => other.map(|()| Vec::new()),
    }
}

/// Asks that free blocks of cubes are fenced when the file system is unmounted.
pub(super) fn fence(directory: &Path) -> Result<()> {
    set_attribute(directory, directory, "floe.cube.fence", b"")
}

/// Checks the cube of a directory, and repairs it if that is wanted; writes the result.
pub(super) fn check(
    directory: &Path,
    named: Option<&OsStr>,
    repairs: bool,
    undo: Option<&Path>,
    out: &mut impl Write,
) -> Result<Outcome> {
    let undo = undo.map(std::path::absolute).transpose()?;
    let undo = undo.as_ref().map_or(&b""[..], |path| path.as_os_str().as_bytes());
    let behind = match named.map(|name| CubeName::of(name.as_bytes())) {
        None => String::new(),
        Some(CubeName::Number(number)) => format!(".{number}"),
        Some(CubeName::Path(_)) => {
            return Err(Ended::usage(
                "the cube of a mount is a directory, or the mount and `cube:N`",
            ));
        }
    };
    let shown = get(directory, &format!("floe.cube{behind}")).map_err(|error| match named {
        None if !is_reachable(directory) => error.context(
            "the directory of the cube cannot be read: name it by the mount and its number (`cube:N`, see `floe cube list MOUNT`)",
        ),
        _ => error,
    })?;
    let number = described(&shown)["cube"].clone();
    let verb = if repairs { "repair" } else { "check" };
    set_attribute(directory, directory, &format!("floe.cube.{verb}{behind}"), undo)?;
    let report = loop {
        let report = get(directory, &format!("floe.cube.report{behind}"))?;
        if !report.is_empty() {
            break report;
        }
        thread::sleep(ASK_EVERY);
    };
    write!(out, "cube {number}\n{report}")?;
    let state = report.lines().next().unwrap_or_default();
    Ok(match state {
        "state: sound" => Outcome::CLEAN,
        "state: repaired" => Outcome { repaired: true, ..Outcome::CLEAN },
        "state: damaged" | "state: damage is left" => Outcome { damaged: true, ..Outcome::CLEAN },
        _ => Outcome::FAILED,
    })
}

fn is_reachable(directory: &Path) -> bool {
    match std::fs::symlink_metadata(directory) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// The document of a cube, from words `key=value` that tabs separate.
fn described(text: &str) -> Value {
    let mut cube = Map::new();
    for (key, value) in text.split('\t').filter_map(|word| word.split_once('=')) {
        let value = match key {
            "lots" | "coupled" => {
                value.split(',').filter_map(|lot| lot.parse::<u64>().ok()).collect()
            }
            "path" | "mode" | "why" | "on_error" | "recovery" | "journal_mode" | "fsync" => {
                value.into()
            }
            _ => value.parse::<u64>().map_or(Value::Null, Value::from),
        };
        cube.insert(key.to_owned(), value);
    }
    Value::Object(cube)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_become_documents() {
        let cube = described("cube=3\tpath=/a b=c\tlots=1,2\tmode=serving\tfree_bytes=7");
        assert_eq!((&cube["cube"], &cube["path"]), (&3.into(), &"/a b=c".into()));
        assert_eq!((&cube["lots"][1], &cube["free_bytes"]), (&2.into(), &7.into()));
    }
}
