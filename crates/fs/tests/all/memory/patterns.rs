//! Patterns of programs that rely on fsync and rename.

use super::acts::Act;

/// Patterns by name: calls, separated by semicolons.
const PATTERNS: [(&str, &str); 7] = [
    (
        "maildir",
        "mkdir a; mkdir b; sync; create a/c; write a/c 0 2500; fsync a/c; link a/c b/c; unlink a/c; \
         fsync a; create a/b; write a/b 0 700; fsync a/b; rename a/b b/b; fsync b; fsync a",
    ),
    (
        "rename-replace",
        "create a; write a 0 5000; fsync a; create b; write b 0 3000; rename b a; create c; \
         fsync c; create b; write b 0 2000; write b 2000 2000; fsync b; rename b a; create b; \
         fsync b",
    ),
    (
        "append",
        "create a; write a 0 900; fsync a; write a 900 900; fsync a; write a 1800 4000; create b; \
         fsync b; write a 5800 100; fsync a",
    ),
    (
        "write-ahead log",
        "create a; write a 0 8000; sync; create b; write b 0 1500; fsync b; write a 1000 1500; \
         fsync a; truncate b 0; write b 0 600; fsync b; write a 7000 3000; fsync a; unlink b; sync",
    ),
    (
        "directories that move",
        "mkdir a; mkdir a/b; mkdir a/b/c; mkdir b; mkdir c; sync; rename a/b b/b; rename a b/b/c/a; \
         fsync b/b/c; create b/b/c/a/a; rmdir c; fsync b",
    ),
    (
        "a directory that is published",
        "mkdir a; create a/c; write a/c 0 900; rename a b; fsync b/c; mkdir c; sync; create b/a; rename b c/b; \
         write c/b/c 900 900; fsync c/b/c; rename c a; fsync a/b",
    ),
    (
        "what came and went",
        "mkdir a; create a/b; write a/b 0 9000; unlink a/b; create b; fsync b; rmdir a; mkdir a; \
         fsync a; create c; write c 0 3000; truncate c 100; fsync c; unlink c; sync",
    ),
];

/// All patterns, each with its name.
pub(crate) fn patterns() -> impl Iterator<Item = (&'static str, Vec<Act>)> {
    PATTERNS.into_iter().map(|(name, calls)| (name, calls.split(';').map(parse).collect()))
}

pub(crate) fn parse(call: &str) -> Act {
    let words: Vec<&str> = call.split_whitespace().collect();
    let path = |at: usize| words[at].to_owned();
    match words[0] {
        "create" => Act::Create(path(1)),
        "mkdir" => Act::Mkdir(path(1)),
        "link" => Act::Link(path(1), path(2)),
        "unlink" => Act::Unlink(path(1)),
        "rmdir" => Act::Rmdir(path(1)),
        "rename" => Act::Rename(path(1), path(2)),
        "write" => Act::Write(path(1), words[2].parse().unwrap(), words[3].parse().unwrap()),
        "truncate" => Act::Truncate(path(1), words[2].parse().unwrap()),
        "fsync" => Act::Fsync(path(1)),
        "sync" => Act::Sync,
        other => panic!("no call {other}"),
    }
}
