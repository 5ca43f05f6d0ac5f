//! The rules. Each states its reason; exceptions are listed with a reason and must be necessary.

use std::collections::{BTreeMap, BTreeSet};

use super::language;
use super::pages;
use super::rooms::rooms;
use super::tree::{Tree, all_code, code};

/// A rule: returns the faults of a tree, each with its location.
type Rule = fn(&Tree) -> Vec<String>;

/// All rules by name.
pub(super) const RULES: &[(&str, Rule)] = &[
    ("layers", layers),
    ("rooms", rooms),
    ("reads", reads),
    ("threads", threads),
    ("unsafe", no_unsafe),
    ("length", length),
    ("width", width),
    ("unfinished", unfinished),
    ("accumulators", accumulators),
    ("devices", devices),
    ("places", places),
    ("structures", structures),
    ("lints", lints),
    ("promises", promises),
    ("commands", pages::commands),
    ("tests", pages::tests),
    ("files", pages::files),
    ("figures", pages::figures),
    ("sentences", language::sentences),
    ("debug_forms", language::debug_forms),
];

/// Permitted violations of a rule, with reasons.
pub(super) type Exceptions = &'static [(&'static str, &'static str)];

/// Faults in `found` (path or name, fault) without an exception, and exceptions without a fault.
pub(super) fn judge(found: Vec<(String, String)>, exceptions: Exceptions) -> Vec<String> {
    let mut needed = BTreeSet::new();
    let mut faults = Vec::new();
    for (key, fault) in found {
        match exceptions.iter().find(|(excepted, _)| *excepted == key) {
            Some((excepted, _)) => {
                needed.insert(*excepted);
            }
            None => faults.push(fault),
        }
    }
    for (excepted, reason) in exceptions {
        if !needed.contains(excepted) {
            faults.push(format!("the exception of {excepted} is not needed: {reason}"));
        }
    }
    faults
}

/// Crates, each with those it may use. Tests may also use testkit and workload.
const LAYERS: &[(&str, &[&str])] = &[
    // Threads and locks, or shuttle's replacements: stands in for the standard library, so any
    // crate may use it.
    ("sync", &[]),
    // Pure functions of bytes; from sync it uses only a table initialised on first use.
    ("format", &["sync"]),
    // Tar archives: independent of file systems except for access lists.
    ("archive", &["format", "sync"]),
    // Independent of file systems.
    ("exec", &["sync"]),
    ("blockdev", &["format", "sync"]),
    // Locates and changes structures; checks nothing.
    ("ext4", &["exec", "blockdev", "format", "sync"]),
    ("check", &["ext4", "exec", "blockdev", "format", "sync"]),
    // Only the recovery of journals that no other program knows is taken from disk.
    ("repair", &["disk", "check", "ext4", "exec", "blockdev", "format", "sync"]),
    // Rebuilds files in an overlay; never writes to its source.
    ("salvage", &["check", "ext4", "exec", "blockdev", "format", "sync"]),
    // Formats results; checks and changes nothing.
    ("report", &["salvage", "repair", "check", "ext4", "exec", "blockdev", "format", "sync"]),
    ("disk", &["archive", "check", "ext4", "exec", "blockdev", "format", "sync"]),
    ("fs", &["archive", "disk", "repair", "check", "ext4", "exec", "blockdev", "format", "sync"]),
    (
        "fuse",
        &["archive", "fs", "disk", "repair", "check", "ext4", "exec", "blockdev", "format", "sync"],
    ),
    (
        "cli",
        &[
            "archive", "report", "fuse", "fs", "disk", "salvage", "repair", "check", "ext4",
            "exec", "blockdev", "format", "sync",
        ],
    ),
    // Dev-dependencies of all crates, so they may use only those below the checker.
    ("testkit", &["blockdev", "format", "sync"]),
    ("workload", &["testkit", "blockdev", "format", "sync"]),
    // Tools. Everything that no tool does with the parts of Floe, it does with the program.
    ("vm", &["workload", "testkit", "check", "format"]),
    ("trials", &["vm", "workload", "testkit", "archive", "check", "format"]),
    // `ageing` fills file systems by the operations of the mount.
    (
        "bench",
        &["workload", "testkit", "disk", "archive", "check", "ext4", "exec", "blockdev", "format"],
    ),
    // Runs the tools, so that tidy and ci are built without any crate of the product.
    ("xtask", &[]),
];

/// Crates for tests.
const FOR_TESTS: [&str; 2] = ["testkit", "workload"];

/// The crate that a path lies in.
fn crate_of(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("crates/").or_else(|| path.strip_prefix("tools/"));
    rest.unwrap_or(path).split_once('/').map(|(name, _)| name)
}

/// Whether a file is part of the product: no test, and of no crate for tests.
pub(super) fn is_product(path: &str) -> bool {
    let of_test = || crate_of(path).is_some_and(|name| FOR_TESTS.contains(&name));
    path.starts_with("crates/") && path.contains("/src/") && !of_test()
}

/// Lines of product code by crate, without tests, comments and empty lines.
pub(super) fn product_lines(tree: &Tree) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for (path, text) in tree.rust().filter(|(path, _)| is_product(path)) {
        let lines = code(text).filter(|(_, code)| !code.trim().is_empty()).count();
        *counts.entry(crate_of(path).unwrap_or_default()).or_default() += lines;
    }
    counts
}

/// A crate uses only crates to its right in `cli -> report, fuse -> fs -> disk, repair -> check ->
/// ext4 -> exec, blockdev -> format -> sync`; testkit, workload, the tools and xtask are for
/// development only.
fn layers(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in tree.all().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
        let Some(name) = crate_of(path).filter(|&name| name != "fuzz") else { continue };
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| *layer == name) else {
            faults.push(format!("{path}: {name} is not in the list of layers"));
            continue;
        };
        let mut section = "";
        for line in text.lines() {
            if line.starts_with('[') {
                section = line.trim();
            }
            let Some(used) = line.strip_prefix("floe-") else { continue };
            let used = used.split(['.', ' ', '=']).next().unwrap_or_default();
            let development = section == "[dev-dependencies]";
            let fine = allowed.contains(&used) || (development && FOR_TESTS.contains(&used))
                // A crate's tests may use any lower layer, such as exec's laws.
                || (development && LAYERS.iter().any(|(layer, _)| *layer == used) && used != "cli");
            if !fine {
                faults.push(format!("{path}: {name} must not use {used} in {section}"));
            }
        }
    }
    faults
}

/// Crates, each with those that it is built with, tests left out.
pub(super) fn uses(tree: &Tree) -> Vec<(&str, Vec<&str>)> {
    let manifests = tree.all().filter(|(path, _)| path.ends_with("/Cargo.toml"));
    let named = manifests.filter_map(|(path, text)| Some((crate_of(path)?, text)));
    named.map(|(name, text)| (name, dependencies(text))).collect()
}

/// Crates of ours in the section of dependencies of a manifest.
fn dependencies(manifest: &str) -> Vec<&str> {
    let (_, list) = manifest.split_once("[dependencies]").unwrap_or_default();
    let list = list.split("\n[").next().unwrap_or_default();
    list.lines()
        .filter_map(|line| line.strip_prefix("floe-")?.split(['.', ' ', '=']).next())
        .collect()
}

/// Modules of `ext4` that change a file system.
const WRITERS: [&str; 6] = ["alloc", "fs", "make", "tx", "map::edit", "dir::edit"];

/// The checker only reads, so it must not use modules that change structures, not even in an
/// overlay. (Recovery, which replays a journal into one, is a module of `ext4` itself.)
fn reads(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| path.starts_with("crates/check/src/")) {
        for (line, code) in code(text) {
            let named = |module: &&str| {
                code.match_indices(&format!("floe_ext4::{module}")).any(|(at, found)| {
                    let next = code[at + found.len()..].chars().next();
                    next.is_none_or(|c| !c.is_alphanumeric() && c != '_')
                })
            };
            let grouped = code.contains("floe_ext4::{");
            if grouped || WRITERS.iter().any(named) {
                faults.push(format!("{path}:{line}: {}", code.trim()));
            }
        }
    }
    faults
}

/// Threads and locks come from the crate `sync`, so that shuttle can explore all of them; crates for
/// tests and tools are not explored.
fn threads(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in tree.rust() {
        if !is_product(path) || path.starts_with("crates/sync/") {
            continue;
        }
        for (line, code) in code(text) {
            if ["std::sync", "std::thread", "core::sync"].iter().any(|name| code.contains(name)) {
                faults.push(format!("{path}:{line}: {}", code.trim()));
            }
        }
    }
    faults
}

/// The files with code that the compiler cannot prove sound (DESIGN.md, section 1): both share memory with the kernel.
const UNPROVED: [&str; 2] = ["crates/blockdev/src/uring.rs", "crates/fuse/src/ring.rs"];

/// Forbids unsafe code elsewhere, and ways around the lint that denies it.
fn no_unsafe(tree: &Tree) -> Vec<String> {
    // Split in two, so that the rule does not match itself.
    let word = concat!("un", "safe");
    let forms: Vec<String> = ["{", "fn ", "impl ", "extern ", "trait "]
        .iter()
        .map(|what| format!("{word} {what}"))
        .chain([format!("allow({word}_code")])
        .collect();
    let mut faults: Vec<String> = tree
        .rust()
        .filter(|(path, _)| !UNPROVED.contains(path))
        .flat_map(|(path, text)| all_code(text).map(move |(line, code)| (path, line, code)))
        .filter(|(_, _, code)| forms.iter().any(|form| code.contains(form.as_str())))
        .map(|(path, line, code)| format!("{path}:{line}: {}", code.trim()))
        .collect();
    // The second lint requires a reason for each use of such code.
    for lint in [format!("{word}_code"), format!("undocumented_{word}_blocks")] {
        let lint = format!("{lint} = \"deny\"");
        if !tree.get("Cargo.toml").is_some_and(|text| text.contains(&lint)) {
            faults.push(format!("Cargo.toml: the workspace's lints lack {lint}"));
        }
    }
    faults
}

/// Maximum lines per file.
const MOST_LINES: usize = 900;

/// Maximum lines of product code per file, without its unit tests.
const MOST_PRODUCT_LINES: usize = 500;

/// Files that may be longer.
const LONG: Exceptions = &[
    (
        "crates/check/src/problem/table.rs",
        "the table of problems is data, and one macro makes one type of it",
    ),
    ("crates/repair/src/edit.rs", "the list of edits, each with its phase and loss"),
    ("crates/repair/src/plan.rs", "one match over all problems, without a catch-all arm"),
    ("crates/disk/src/mkfs/options.rs", "the table of mke2fs's options, and one parser for each"),
];

/// A file must have one purpose and be readable in one go.
fn length(tree: &Tree) -> Vec<String> {
    let most = |path: &str| if is_product(path) { MOST_PRODUCT_LINES } else { MOST_LINES };
    let lines = |path: &str, text: &str| match most(path) {
        // The last line before the tests.
        MOST_PRODUCT_LINES => code(text).count(),
        _ => text.lines().count(),
    };
    let found = tree
        .rust()
        .map(|(path, text)| (path, lines(path, text)))
        .filter(|&(path, lines)| lines > most(path))
        .map(|(path, lines)| {
            (path.to_owned(), format!("{path}: {lines} lines; {} at most", most(path)))
        })
        .collect();
    judge(found, LONG)
}

/// Maximum fields per struct.
const MOST_FIELDS: usize = 12;

const COMMAND_LINE: &str = "one field per option of a command line";
const RECORD: &str = "one field per value of a record, none of which depends on the others";

/// Structs that may have more fields.
const WIDE: Exceptions = &[
    ("crates/archive/src/extended.rs: Extended", RECORD),
    ("crates/archive/src/lib.rs: Entry", RECORD),
    ("crates/check/src/checks/context/directory.rs: DirCx", "references only, made in one place"),
    ("crates/check/src/estimate/memory/load.rs: Load", RECORD),
    ("crates/cli/src/commands/check.rs: Args", COMMAND_LINE),
    ("crates/cli/src/commands/mkfs.rs: Args", COMMAND_LINE),
    ("crates/cli/src/commands/mount/options.rs: Options", COMMAND_LINE),
    ("crates/cli/src/commands/repair.rs: Args", COMMAND_LINE),
    ("crates/cli/src/e2fsck/conf.rs: Conf", "one field per key of e2fsck.conf"),
    ("crates/cli/src/e2fsck/options.rs: Options", COMMAND_LINE),
    ("crates/cli/src/monitor/mod.rs: Checked", RECORD),
    ("crates/cli/src/run/check.rs: Run", "the options of two commands, made in one place each"),
    ("crates/cli/src/run/repair.rs: RepairRun", "the options of two commands, as for a check"),
    ("crates/disk/src/mkfs/inode.rs: NewInode", RECORD),
    ("crates/disk/src/mkfs/options.rs: Extended", COMMAND_LINE),
    ("crates/disk/src/mkfs/options.rs: Options", COMMAND_LINE),
    ("crates/disk/src/mkfs/params.rs: Params", "the parameters of a file system, decided once"),
    ("crates/disk/src/mkfs/plan.rs: Plan", "the layout of a file system, planned once"),
    ("crates/format/src/geometry.rs: Geometry", "derived from the superblock, never changed"),
    ("crates/fs/src/attributes.rs: Attributes", RECORD),
];

/// A struct with many fields is a context that everything can reach, so that nobody sees which
/// function needs what. Structures of the disk are declared by macros, and are not counted.
fn width(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        if !is_product(path) {
            continue;
        }
        let mut fields: Option<(&str, usize)> = None;
        for (_, code) in code(text) {
            fields = match fields {
                Some((name, count)) if code.starts_with('}') => {
                    if count > MOST_FIELDS {
                        let fault = format!("{path}: {name} has {count} fields");
                        found.push((format!("{path}: {name}"), fault));
                    }
                    None
                }
                Some((name, count)) => Some((name, count + usize::from(is_field(code)))),
                None => name_of_struct(code).map(|name| (name, 0)),
            };
        }
    }
    judge(found, WIDE)
}

/// The name of a struct with named fields that begins in this line, not indented.
fn name_of_struct(code: &str) -> Option<&str> {
    let (before, rest) = code.trim_end().strip_suffix('{')?.split_once("struct ")?;
    (before.is_empty() || before.starts_with("pub")).then_some(())?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Whether a line inside a struct begins a field: indented once, a name and a colon.
fn is_field(code: &str) -> bool {
    let Some(rest) = code.strip_prefix("    ").filter(|rest| !rest.starts_with([' ', '#'])) else {
        return false;
    };
    let rest = rest.strip_prefix("pub ").unwrap_or(rest);
    let rest =
        rest.strip_prefix("pub(crate) ").or(rest.strip_prefix("pub(super) ")).unwrap_or(rest);
    let name = rest.split(": ").next().unwrap_or(rest);
    name != rest && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// No unfinished code.
fn unfinished(tree: &Tree) -> Vec<String> {
    let words = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
    tree.rust()
        .flat_map(|(path, text)| all_code(text).map(move |(line, code)| (path, line, code)))
        .filter(|(_, _, code)| words.iter().any(|word| code.contains(word)))
        .map(|(path, line, code)| format!("{path}:{line}: {}", code.trim()))
        .collect()
}

/// Types that implement a trait in library code, with their paths: `impl Trait for Type`.
fn implementors<'a>(tree: &'a Tree, folder: &str, name: &str) -> Vec<(&'a str, &'a str)> {
    let marker = format!("{name} for ");
    tree.rust()
        .filter(|(path, _)| path.starts_with(folder) && path.contains("/src/"))
        .flat_map(|(path, text)| code(text).map(move |(_, code)| (path, code)))
        .filter(|(_, code)| code.starts_with("impl"))
        .filter_map(|(path, code)| {
            let named = code.split(marker.as_str()).nth(1)?;
            let end = named.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(named.len());
            // For references, boxes and tuples the contained type counts.
            let own = !["", "Box", "Arc"].contains(&&named[..end]);
            own.then_some((path, &named[..end]))
        })
        .collect()
}

/// Types named as the first argument of a macro.
fn arguments<'a>(tree: &'a Tree, name: &str) -> BTreeSet<&'a str> {
    let marker = format!("{name}!(");
    let mut found = BTreeSet::new();
    for (_, text) in tree.rust() {
        for (at, _) in text.match_indices(marker.as_str()) {
            let rest = text[at + marker.len()..].trim_start();
            let rest = rest.strip_prefix("writable ").unwrap_or(rest);
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            let named = &rest[..end.unwrap_or(rest.len())];
            found.insert(named.rsplit("::").next().unwrap_or(named));
        }
    }
    found
}

/// An accumulator promises that the order of merges is invisible; its laws are property-tested. The merged side is
/// taken apart with all fields named, so that a forgotten one does not compile.
fn accumulators(tree: &Tree) -> Vec<String> {
    let tested = arguments(tree, "accumulator_laws");
    let mut faults = Vec::new();
    for (path, name) in implementors(tree, "crates/", "Accumulator") {
        if !tested.contains(name) {
            faults.push(format!("{path}: {name} has no {}!", "accumulator_laws"));
        }
        if !tree.get(path).is_some_and(|text| names_what_it_merges(text, name)) {
            faults.push(format!("{path}: {name} does not name all that it merges"));
        }
    }
    faults
}

/// Whether the `merge` of a type takes the other side apart: `let Self { .. }`, or a variant at a time.
fn names_what_it_merges(text: &str, name: &str) -> bool {
    let Some((_, rest)) = text.split_once(&format!("Accumulator for {name}")) else { return false };
    let body = rest.split("\n}").next().unwrap_or(rest);
    let named = ["let Self {", "let Self(", "Self::"].iter().any(|form| body.contains(form));
    named && !body.contains(".. }")
}

/// A device must satisfy the contract of all devices.
fn devices(tree: &Tree) -> Vec<String> {
    let tested = arguments(tree, "device_contract");
    implementors(tree, "crates/blockdev/", "ReadBlocks")
        .into_iter()
        .filter(|(_, name)| !tested.contains(name))
        .map(|(path, name)| format!("{path}: {name} has no {}!", "device_contract"))
        .collect()
}

/// Nothing may name a path on its author's machine, or the source of its crates.
fn places(tree: &Tree) -> Vec<String> {
    let words = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("index.crates", ".io")];
    let mut faults = Vec::new();
    for (path, text) in tree.all() {
        for (line, content) in text.lines().enumerate() {
            // The lock file names the public registry; any other source is a mirror.
            let source = content.strip_prefix("source = \"");
            let mirror = path == "Cargo.lock"
                && source.is_some_and(|source| {
                    !source.starts_with("registry+https://github.com/rust-lang/")
                });
            if mirror || words.iter().any(|word| content.contains(word)) {
                faults.push(format!("{path}:{}: {}", line + 1, content.trim()));
            }
        }
    }
    faults
}

/// Each promise in docs/safety.md must name its evidence, and each named test must exist.
fn promises(tree: &Tree) -> Vec<String> {
    const PAGE: &str = "docs/safety.md";
    let sources: String = tree.rust().map(|(_, text)| text).collect();
    let (mut faults, mut shown_by) = (Vec::new(), false);
    for (line, row) in (1..).zip(tree.get(PAGE).unwrap_or_default().lines()) {
        if !row.starts_with('|') {
            shown_by = false;
            continue;
        }
        let last_cell = row.trim_end_matches('|').rsplit(" | ").next().unwrap_or_default();
        let is_head = last_cell.trim_start_matches('|').trim() == "Shown by";
        if shown_by && !last_cell.contains('`') && !row.starts_with("|---") {
            faults.push(format!("{PAGE}:{line}: names no evidence"));
        }
        shown_by |= is_head;
        for name in row.split('`').skip(1).step_by(2).filter_map(test_named) {
            if !sources.contains(&format!("fn {name}(")) {
                faults.push(format!("{PAGE}:{line}: there is no test {name}"));
            }
        }
    }
    faults
}

/// The test that a piece of code in a text names: `crate: file: test`, or only the test, whose name
/// is long.
fn test_named(piece: &str) -> Option<&str> {
    let name = piece.rsplit(": ").next()?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (is_name && (name != piece || name.matches('_').count() > 1)).then_some(name)
}

/// Each on-disk structure must be covered by the format crate's tests.
fn structures(tree: &Tree) -> Vec<String> {
    const FOLDER: &str = "crates/format/src/ext/";
    let tests: String = tree
        .rust()
        .filter(|(path, _)| path.starts_with("crates/format/tests/"))
        .map(|(_, text)| text)
        .collect();
    let mut modules = BTreeSet::new();
    for (path, _) in tree.rust() {
        if let Some(rest) = path.strip_prefix(FOLDER) {
            modules.insert(rest.split('/').next().unwrap_or(rest).trim_end_matches(".rs"));
        }
    }
    modules
        .into_iter()
        .filter(|&module| module != "mod")
        .filter(|&module| !names_module(&tests, module))
        .map(|module| format!("{FOLDER}{module} is in no test of crates/format/tests"))
        .collect()
}

/// Whether a text names `ext::module`, possibly in a list.
fn names_module(text: &str, module: &str) -> bool {
    text.contains(&format!("ext::{module}"))
        || text.split("ext::{").skip(1).any(|list| {
            list.split(';').next().is_some_and(|list| {
                list.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == module)
            })
        })
}

/// Every crate must use the workspace's lints.
fn lints(tree: &Tree) -> Vec<String> {
    tree.all()
        .filter(|(path, text)| path.ends_with("/Cargo.toml") && text.contains("[package]"))
        .filter(|(path, _)| crate_of(path).is_some_and(|name| name != "fuzz"))
        .filter(|(_, text)| !text.contains("[lints]\nworkspace = true"))
        .map(|(path, _)| format!("{path} does not take the lints of the workspace"))
        .collect()
}

/// Canaries: each rule must fail on a bad tree and pass a good one.
#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(rule: Rule, texts: &[(&str, &str)]) -> usize {
        // The exceptions of the real repository are unnecessary in a synthetic one.
        rule(&Tree::of(texts)).iter().filter(|fault| !fault.starts_with("the exception")).count()
    }

    #[test]
    fn every_rule_has_a_canary_here() {
        let tests = include_str!("rules.rs");
        let end = tests.find("/// Canaries").expect("this module");
        let of_rooms = include_str!("rooms.rs");
        let tests =
            [&tests[end..], of_rooms, include_str!("pages.rs"), include_str!("language.rs")]
                .concat();
        for (name, _) in RULES {
            assert!(tests.contains(&format!("fn canary_{name}")), "{name}");
        }
    }

    #[test]
    fn exceptions_must_be_needed() {
        let found = vec![("a.rs".to_owned(), "a.rs is bad".to_owned())];
        assert!(judge(found.clone(), &[("a.rs", "reason")]).is_empty());
        assert_eq!(judge(found, &[]).len(), 1);
        assert_eq!(judge(Vec::new(), &[("a.rs", "reason")]).len(), 1);
    }

    #[test]
    fn canary_promises() {
        let there = ("crates/check/tests/a.rs", "fn what_is_promised_is_kept() {}");
        let faults = |row: &str| {
            let page = format!("| Loss | Shown by |\n|---|---|\n{row}\n\n| no | test |\n");
            faults_of(promises, &[("docs/safety.md", &page), there])
        };
        assert_eq!(faults("| it | `check: a: what_is_promised_is_kept` |"), 0);
        assert_eq!(faults("| it | `cargo xtask differential`, `what_is_promised_is_kept` |"), 0);
        assert_eq!(faults("| it | `check: a: what_was_promised` |"), 1);
        assert_eq!(faults("| it | `what_was_promised_once` |"), 1);
        assert_eq!(faults("| it | `cli: signals` |"), 1);
        assert_eq!(faults("| it | by itself |"), 1);
    }

    #[test]
    fn lines_are_counted_without_tests_and_comments() {
        let text = "//! Docs.\n\nfn f() {\n    // Why.\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
        let texts = ["crates/check/src/a.rs", "crates/check/tests/b.rs", "crates/testkit/src/c.rs"];
        let tree = Tree::of(&texts.map(|path| (path, text)));
        assert_eq!(product_lines(&tree).into_iter().collect::<Vec<_>>(), [("check", 2)]);
    }

    #[test]
    fn canary_layers() {
        let check = |text| faults_of(layers, &[("crates/exec/Cargo.toml", text)]);
        assert_eq!(check("[dependencies]\nfloe-format.workspace = true\n"), 1);
        assert_eq!(check("[dependencies]\nfloe-testkit.workspace = true\n"), 1);
        assert_eq!(check("[dependencies]\nfloe-sync.workspace = true\n"), 0);
        assert_eq!(check("[dev-dependencies]\nfloe-testkit.workspace = true\n"), 0);
        assert_eq!(faults_of(layers, &[("crates/new/Cargo.toml", "[package]")]), 1);
        let upwards = "[dependencies]\nfloe-check = { path = \"../check\" }\n";
        assert_eq!(faults_of(layers, &[("crates/blockdev/Cargo.toml", upwards)]), 1);
        assert_eq!(faults_of(layers, &[("crates/ext4/Cargo.toml", upwards)]), 1);
        assert_eq!(faults_of(layers, &[("crates/repair/Cargo.toml", upwards)]), 0);
        assert_eq!(faults_of(layers, &[("tools/vm/Cargo.toml", upwards)]), 0);
        assert_eq!(faults_of(layers, &[("tools/new/Cargo.toml", "[package]")]), 1);
        assert_eq!(faults_of(layers, &[("xtask/Cargo.toml", upwards)]), 1);
    }

    #[test]
    fn canary_reads() {
        let path = "crates/check/src/checks/quota.rs";
        for bad in
            ["use floe_ext4::tx::Tx;\n", "floe_ext4::map::edit::insert()", "use floe_ext4::{dir};"]
        {
            assert_eq!(faults_of(reads, &[(path, bad)]), 1, "{bad}");
            assert_eq!(faults_of(reads, &[("crates/repair/src/stage.rs", bad)]), 0, "{bad}");
        }
        for good in ["use floe_ext4::map::walk;\n", "use floe_ext4::txt;"] {
            assert_eq!(faults_of(reads, &[(path, good)]), 0, "{good}");
        }
    }

    #[test]
    fn canary_threads() {
        let bad = "use std::sync::Mutex;\n";
        assert_eq!(faults_of(threads, &[("crates/check/src/lib.rs", bad)]), 1);
        assert_eq!(faults_of(threads, &[("crates/exec/src/pool.rs", "std::thread::spawn(f);")]), 1);
        assert_eq!(faults_of(threads, &[("crates/blockdev/src/mem.rs", bad)]), 1);
        assert_eq!(faults_of(threads, &[("crates/sync/src/lib.rs", bad)]), 0);
        let in_tests = "fn f() {}\n#[cfg(test)]\nmod tests { use std::sync::Mutex; }\n";
        assert_eq!(faults_of(threads, &[("crates/check/src/lib.rs", in_tests)]), 0);
    }

    #[test]
    fn canary_unsafe() {
        let lints =
            concat!("un", "safe_code = \"deny\"\nundocumented_un", "safe_blocks = \"deny\"\n");
        let lint = ("Cargo.toml", lints);
        let bad = concat!("fn f() { un", "safe { g() } }");
        assert_eq!(faults_of(no_unsafe, &[lint, ("crates/check/src/lib.rs", bad)]), 1);
        assert_eq!(
            faults_of(no_unsafe, &[lint, ("crates/check/src/lib.rs", "// no such thing")]),
            0
        );
        for path in UNPROVED {
            assert_eq!(faults_of(no_unsafe, &[lint, (path, bad)]), 0);
        }
        assert_eq!(faults_of(no_unsafe, &[("Cargo.toml", "")]), 2);
    }

    #[test]
    fn canary_length() {
        let long = "\n".repeat(MOST_LINES + 1);
        assert_eq!(faults_of(length, &[("crates/check/src/lib.rs", &long)]), 1);
        assert_eq!(faults_of(length, &[("crates/check/src/problem/table.rs", &long)]), 0);
        assert_eq!(faults_of(length, &[("a.rs", "\n")]), 0);
    }

    #[test]
    fn canary_length_of_product_code() {
        let path = "crates/check/src/lib.rs";
        let long = "\n".repeat(MOST_PRODUCT_LINES + 1);
        assert_eq!(faults_of(length, &[(path, &long)]), 1);
        let tests = "#[cfg(test)]\nmod tests {\n";
        let tested = format!("{}{tests}{long}}}\n", "\n".repeat(MOST_PRODUCT_LINES));
        assert_eq!(faults_of(length, &[(path, &tested)]), 0);
        assert_eq!(faults_of(length, &[("crates/check/tests/a.rs", &long)]), 0);
    }

    #[test]
    fn canary_width() {
        let with = |count: usize| {
            let fields: String = (0..count)
                .map(|at| format!("    /// Docs: of it.\n    pub a{at}: u8,\n"))
                .collect();
            format!("pub struct Session<'s> {{\n{fields}}}\n")
        };
        let path = "crates/repair/src/session.rs";
        assert_eq!(faults_of(width, &[(path, &with(MOST_FIELDS))]), 0);
        assert_eq!(faults_of(width, &[(path, &with(MOST_FIELDS + 1))]), 1);
        let excused = with(MOST_FIELDS + 1).replace("Session<'s>", "Params");
        assert_eq!(faults_of(width, &[("crates/disk/src/mkfs/params.rs", &excused)]), 0);
        let made = format!("fn f() {{\n{}}}\n", "    a: b,\n".repeat(MOST_FIELDS + 1));
        assert_eq!(faults_of(width, &[(path, &made)]), 0);
    }

    #[test]
    fn canary_unfinished() {
        assert_eq!(faults_of(unfinished, &[("a.rs", concat!("fn f() { todo", "!() }"))]), 1);
        assert_eq!(faults_of(unfinished, &[("a.rs", "fn f() {} // later")]), 0);
    }

    #[test]
    fn canary_accumulators() {
        let rule: Rule = accumulators;
        let merging = |body: &str| format!("impl Accumulator for Counts {{\n{body}\n}}\n");
        let path = "crates/check/src/counts.rs";
        let untested = merging("let Self { one, two } = other;");
        assert_eq!(faults_of(rule, &[(path, &untested)]), 1);
        let tested = |text: &str| format!("{text}accumulator_laws{}(super::Counts, 0..1);", "!");
        assert_eq!(faults_of(rule, &[(path, &tested(&untested))]), 0);
        for bad in ["self.one += other.one;", "let Self { one, .. } = other;"] {
            assert_eq!(faults_of(rule, &[(path, &tested(&merging(bad)))]), 1, "{bad}");
        }
        assert_eq!(faults_of(rule, &[("crates/exec/src/a.rs", "impl Accumulator for () {\n")]), 0);
    }

    #[test]
    fn canary_devices() {
        let path = "crates/blockdev/src/tape.rs";
        let bad = "impl<D: ReadBlocks> ReadBlocks for Tape<D> {\n";
        assert_eq!(faults_of(devices, &[(path, bad)]), 1);
        let good = format!("{bad}device_contract{}(writable Tape, super::made);", "!");
        assert_eq!(faults_of(devices, &[(path, &good)]), 0);
    }

    #[test]
    fn canary_places() {
        assert_eq!(faults_of(places, &[("README.md", concat!("see /wo", "rk/x"))]), 1);
        let mirror = "source = \"sparse+https://mirror.example/index\"\n";
        assert_eq!(faults_of(places, &[("Cargo.lock", mirror)]), 1);
        let public = "source = \"registry+https://github.com/rust-lang/\"\n";
        assert_eq!(faults_of(places, &[("Cargo.lock", public)]), 0);
    }

    #[test]
    fn canary_structures() {
        let structures: Rule = structures;
        let file = ("crates/format/src/ext/quota.rs", "");
        assert_eq!(faults_of(structures, &[file]), 1);
        let test = "crates/format/tests/all.rs";
        assert_eq!(faults_of(structures, &[file, (test, "use floe_format::ext::quota::X;")]), 0);
        assert_eq!(
            faults_of(structures, &[file, (test, "use floe_format::ext::{mmp, quota};")]),
            0
        );
        assert_eq!(
            faults_of(structures, &[file, (test, "use floe_format::ext::{mmp, quotas};")]),
            1
        );
    }

    #[test]
    fn canary_lints() {
        let path = "crates/check/Cargo.toml";
        assert_eq!(faults_of(lints, &[(path, "[package]\n")]), 1);
        assert_eq!(faults_of(lints, &[(path, "[package]\n[lints]\nworkspace = true\n")]), 0);
    }
}
