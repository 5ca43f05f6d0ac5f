//! Owners, modes, times and special files from an mtree(5) specification, as written by NetBSD's
//! and FreeBSD's builds and by `bsdtar --format=mtree`.

use std::collections::BTreeMap;

use crate::mkfs::tree::{Attributes, Body, NodeId, Timestamp, Tree, TreeError};

use super::apply::{DEVICE_TOO_LARGE, device_fits};
use super::path::names;
use super::{lists, shown};

/// The fault of a specification. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct MtreeError {
    /// The line, or the first of several joined lines.
    pub line: usize,
    /// The fault.
    pub fault: String,
}

/// The words of a line: `key=value`, or a key alone.
type Words = BTreeMap<String, String>;

/// Applies a specification to the files of a tree. Files that it does not name stay unchanged.
/// Missing directories, links and special files are made. A missing regular file is an error,
/// unless its line says `optional`.
///
/// # Errors
/// [`MtreeError`]; a part of the tree may have been changed.
pub fn apply_mtree(tree: &mut Tree, text: &[u8]) -> Result<(), MtreeError> {
    let mut defaults = Words::new();
    let mut trail = vec![tree.root()];
    for (line, words) in lines(text) {
        let fault = |fault: String| MtreeError { line, fault };
        let Some((first, rest)) = words.split_first() else { continue };
        match &first[..] {
            b"/set" => defaults.extend(rest.iter().map(|word| pair(word))),
            b"/unset" => rest.iter().for_each(|word| {
                defaults.remove(&pair(word).0);
            }),
            b".." => {
                if trail.len() > 1 {
                    trail.pop();
                }
            }
            path => {
                let path = unescape(path);
                let mut words = defaults.clone();
                words.extend(rest.iter().map(|word| pair(word)));
                let is_whole = path.contains(&b'/');
                let here = if is_whole { None } else { trail.last().copied() };
                let here = here.unwrap_or(tree.root());
                let node = apply(tree, here, &path, &words).map_err(fault)?;
                if let Some(node) = node.filter(|&node| !is_whole && tree.node(node).is_directory())
                {
                    trail = if path == b"." { vec![node] } else { [&trail[..], &[node]].concat() };
                }
            }
        }
    }
    Ok(())
}

/// Splits lines into words, without comments; a backslash at the end of a line joins the next one.
fn lines(text: &[u8]) -> Vec<(usize, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    let mut joined: Option<(usize, Vec<u8>)> = None;
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let (first, mut whole) = joined.take().unwrap_or((number, Vec::new()));
        if let Some(part) = line.strip_suffix(b"\\") {
            whole.extend(part);
            whole.push(b' ');
            joined = Some((first, whole));
            continue;
        }
        whole.extend(line);
        let words = whole.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let words: Vec<Vec<u8>> = words.map(<[u8]>::to_vec).collect();
        if !words.first().is_none_or(|word| word.starts_with(b"#")) {
            all.push((first, words));
        }
    }
    all
}

fn pair(word: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(word);
    let (key, value) = text.split_once('=').unwrap_or((&text, ""));
    (key.to_owned(), value.to_owned())
}

/// Decodes a name with escapes such as `\040` (vis(3)).
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let digits = text.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let octal =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(octal) => {
                bytes.push(octal);
                at += 4;
            }
            None if byte == b'\\' && text.get(at + 1) == Some(&b'\\') => {
                bytes.push(byte);
                at += 2;
            }
            None => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    bytes
}

/// Applies one line; `None` for a missing optional file.
fn apply(
    tree: &mut Tree,
    here: NodeId,
    path: &[u8],
    words: &Words,
) -> Result<Option<NodeId>, String> {
    let named = |why: &str| format!("{}: {why}", shown(path));
    let all = names(path).map_err(|error| error.to_string())?;
    let wanted = words.get("type").map_or("", String::as_str);
    let judge = |tree: &Tree, node| {
        let fits = wanted.is_empty() || kind_of(tree.node(node).body()) == wanted;
        if fits { Ok(()) } else { Err(named(&format!("is not of type {wanted}"))) }
    };
    let Some((name, parents)) = all.split_last() else {
        judge(tree, here)?;
        change(tree, here, words).map_err(|why| named(&why))?;
        return Ok(Some(here));
    };
    let mut parent = here;
    for name in parents {
        let found = tree.look_up(parent, name);
        parent = found.ok_or_else(|| named("its directory does not exist"))?;
    }
    let node = match tree.look_up(parent, name) {
        Some(node) => {
            judge(tree, node)?;
            node
        }
        None => match new_body(words).map_err(|why| named(&why))? {
            Some(body) => {
                let made = tree.insert(parent, name, Attributes::default(), body);
                made.map_err(|error: TreeError| named(&error.to_string()))?
            }
            None if words.contains_key("optional") => return Ok(None),
            None => return Err(named("does not exist")),
        },
    };
    change(tree, node, words).map_err(|why| named(&why))?;
    Ok(Some(node))
}

fn kind_of(body: &Body) -> &'static str {
    match body {
        Body::Directory => "dir",
        Body::File { .. } => "file",
        Body::Symlink(_) => "link",
        Body::CharDevice { .. } => "char",
        Body::BlockDevice { .. } => "block",
        Body::Fifo => "fifo",
        Body::Socket => "socket",
    }
}

/// The body of a missing file; `None` if the source should have had it.
fn new_body(words: &Words) -> Result<Option<Body>, String> {
    let device = || -> Result<(u32, u32), String> {
        let text = words.get("device").ok_or("a device needs `device=`")?;
        let numbers: Vec<&str> = text.split(',').collect();
        let [.., major, minor] = &numbers[..] else { return Err(format!("device={text}")) };
        let number =
            |text: &str| text.parse().map_err(|_| format!("device={text} is not a number"));
        let (major, minor) = (number(major)?, number(minor)?);
        match device_fits(major, minor) {
            true => Ok((major, minor)),
            false => Err(format!("device={text}: {DEVICE_TOO_LARGE}")),
        }
    };
    Ok(Some(match words.get("type").map_or("", String::as_str) {
        "dir" => Body::Directory,
        "link" => {
            let target = words.get("link").map(|target| unescape(target.as_bytes()));
            let target = target.filter(|target| !target.is_empty() && !target.contains(&0));
            Body::Symlink(target.ok_or("a link needs `link=`")?.into())
        }
        "char" => device().map(|(major, minor)| Body::CharDevice { major, minor })?,
        "block" => device().map(|(major, minor)| Body::BlockDevice { major, minor })?,
        "fifo" => Body::Fifo,
        "socket" => Body::Socket,
        _ => return Ok(None),
    }))
}

/// Sets owner, mode and times of a node.
fn change(tree: &mut Tree, node: NodeId, words: &Words) -> Result<(), String> {
    let mut attributes = tree.node(node).attributes();
    let number = |key: &str, radix: u32| {
        let value = words.get(key);
        let parsed = value.map(|value| {
            u32::from_str_radix(value, radix).map_err(|_| format!("{key}={value} is not a number"))
        });
        parsed.transpose()
    };
    if let Some(mode) = number("mode", 8)? {
        // Only mode bits.
        attributes.mode = (mode & 0o7777) as u16;
        attributes.xattrs = lists::list_after_chmod(tree, &attributes);
    }
    attributes.uid = number("uid", 10)?.unwrap_or(attributes.uid);
    attributes.gid = number("gid", 10)?.unwrap_or(attributes.gid);
    if let Some(text) = words.get("time") {
        let time = time(text).ok_or_else(|| format!("time={text} is not a time"))?;
        attributes = attributes.at(time);
    }
    tree.set_attributes(node, attributes);
    Ok(())
}

/// Parses seconds, a point, and a number of nanoseconds.
fn time(text: &str) -> Option<Timestamp> {
    let (secs, nanos) = text.split_once('.').unwrap_or((text, "0"));
    let nanos = nanos.parse().ok().filter(|&nanos| nanos < 1_000_000_000)?;
    Some(Timestamp { seconds: secs.parse().ok()?, nanoseconds: nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::new(Attributes::root());
        let bin = tree.insert(tree.root(), b"bin", Attributes::directory(0o700), Body::Directory);
        tree.insert(bin.unwrap(), b"a b", Attributes::file(0o600), Body::empty_file()).unwrap();
        tree
    }

    #[test]
    fn both_forms_of_a_specification_are_applied() {
        let nested = b"#mtree\n/set type=file uid=0 gid=0 mode=0755\n\
            . type=dir mode=0711 time=5.7\nbin type=dir uid=3 \\\n  gid=4\na\\040b mode=4755 uid=9\n\
            tty type=char device=native,5,1 mode=620\n..\nlink type=link link=bin/a\\040b\n..\n";
        let whole = b"#mtree\n. type=dir mode=0711 time=5.7\n./bin type=dir uid=3 gid=4 mode=755\n\
            ./bin/a\\040b type=file mode=4755 uid=9 sha256=ff\n\
            ./bin/tty type=char device=native,5,1 mode=620\n\
            ./link type=link link=bin/a\\040b mode=755\n./gone type=file optional\n";
        for text in [&nested[..], whole] {
            let mut tree = tree();
            apply_mtree(&mut tree, text).unwrap();
            let at = |path: &[u8]| tree.node(tree.look_up_path(path).unwrap());
            let root = at(b"/").attributes();
            assert_eq!((root.mode, root.mtime), (0o711, Timestamp { seconds: 5, nanoseconds: 7 }));
            assert_eq!((at(b"bin").attributes().uid, at(b"bin").attributes().gid), (3, 4));
            let file = at(b"bin/a b").attributes();
            assert_eq!((file.mode, file.uid), (0o4755, 9));
            assert_eq!(at(b"bin/tty").body(), &Body::CharDevice { major: 5, minor: 1 });
            assert_eq!(at(b"link").body(), &Body::Symlink(b"bin/a b"[..].into()));
        }
    }

    #[test]
    fn faults_are_named_with_their_lines() {
        for (text, fault) in [
            ("\n./bin type=file", "line 2: ./bin: is not of type file"),
            (". type=file", "line 1: .: is not of type file"),
            ("./new type=file", "line 1: ./new: does not exist"),
            ("./bin type=dir mode=u=rwx", "line 1: ./bin: mode=u=rwx is not a number"),
            ("./bin time=x", "line 1: ./bin: time=x is not a time"),
            ("./no/way type=dir", "line 1: ./no/way: its directory does not exist"),
            ("./c type=char", "line 1: ./c: a device needs `device=`"),
        ] {
            assert_eq!(apply_mtree(&mut tree(), text.as_bytes()).unwrap_err().to_string(), fault);
        }
        for device in ["4096,0", "0,1048576"] {
            let text = format!("./c type=char device={device}");
            let error = apply_mtree(&mut tree(), text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("does not fit an inode"), "{error}");
        }
        apply_mtree(&mut tree(), b"./c type=char device=4095,1048575").unwrap();
        let escape = apply_mtree(&mut tree(), b"../x type=dir").unwrap_err();
        assert!(escape.fault.contains("leave the root"), "{escape}");
    }
}
