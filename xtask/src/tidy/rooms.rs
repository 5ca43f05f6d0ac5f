//! Rooms: the folders inside a crate, which of them use which, and the circles that must not be.
//!
//! A room is a folder of `src`, or a file of its own there; of a crate's [`PARENTS`] each folder inside is a room.
//! A room uses another if its code, tests left out, names a path of it (`crate::room::`, or as many `super::`).

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Tree, code};

/// Folders that only hold rooms.
const PARENTS: [&str; 1] = ["crates/check/src/checks"];

/// Rooms of a crate, each with those it may use.
type Rules = &'static [(&'static str, &'static [&'static str])];

/// Crates whose rooms may use only those listed. In all others, circles alone are faults.
const RULES: [(&str, Rules); 3] = [("check", OF_CHECK), ("repair", OF_REPAIR), ("cli", OF_CLI)];

/// A check may name no pass, evidence no check, and problems know neither.
const OF_CHECK: Rules = &[
    ("saved", &[]),
    ("problem", &["saved"]),
    ("error", &["keeper", "problem"]),
    ("evidence", &["saved"]),
    ("volume", &["error", "evidence", "problem"]),
    ("scan", &["evidence", "problem", "volume"]),
    ("checks", &["evidence", "problem", "saved", "scan", "volume"]),
    ("keeper", &[]),
    ("estimate", &["checks", "error", "evidence", "scan", "volume"]),
    ("options", &["estimate", "evidence", "keeper", "volume"]),
    ("checkpoint", &["checks", "error", "evidence", "keeper", "options", "saved", "volume"]),
    ("report", &["estimate", "evidence", "problem", "volume"]),
    (
        "passes",
        &[
            "checkpoint",
            "checks",
            "error",
            "estimate",
            "evidence",
            "options",
            "problem",
            "report",
            "scan",
            "volume",
        ],
    ),
    // Nothing of a check: files as they are.
    ("reader", &[]),
    ("view", &["error", "options", "passes", "problem", "volume"]),
    ("cube", &["checks", "error", "evidence", "options", "passes", "problem", "report", "volume"]),
];

/// Planning names no staging, fixes do not plan, and only a session does both.
const OF_REPAIR: Rules = &[
    ("failure", &[]),
    ("identifiers", &[]),
    ("multi_mount", &[]),
    ("shared_owners", &[]),
    ("edit", &[]),
    ("extras", &["edit"]),
    ("safety", &["edit"]),
    ("describe", &["edit"]),
    ("deed", &["describe", "edit"]),
    ("plan", &["edit"]),
    ("policy", &["shared_owners"]),
    ("moves", &["failure"]),
    ("stage", &["failure", "moves"]),
    ("file_map", &["failure", "stage"]),
    ("attribute_value", &["file_map", "stage"]),
    ("fixes", &["attribute_value", "edit", "failure", "file_map", "moves", "stage"]),
    ("better_edits", &["edit", "fixes", "plan", "stage"]),
    ("second_finding", &["file_map", "stage"]),
    ("proof", &["attribute_value", "edit", "file_map", "plan", "second_finding", "stage"]),
    (
        "session",
        &[
            "better_edits",
            "deed",
            "edit",
            "extras",
            "failure",
            "fixes",
            "moves",
            "multi_mount",
            "plan",
            "policy",
            "proof",
            "shared_owners",
            "stage",
        ],
    ),
    ("escalation", &["deed", "edit", "plan", "policy", "safety", "session"]),
    ("commit", &["moves", "multi_mount", "session"]),
    ("plan_file", &["commit", "moves", "session"]),
    ("undo", &["commit", "multi_mount"]),
    ("cube", &["deed", "failure", "policy", "session", "shared_owners"]),
];

/// Only commands know everything; the terminal and the inputs know no run.
const OF_CLI: Rules = &[
    ("exit", &[]),
    ("message", &[]),
    ("terminal", &["exit", "message"]),
    ("input", &["exit", "message", "terminal"]),
    ("e2fsck", &["exit", "input", "message", "terminal"]),
    ("online", &["exit", "input", "message", "terminal"]),
    ("monitor", &["exit", "input", "message", "online"]),
    ("image_files", &["exit", "input", "message", "terminal"]),
    ("run", &["e2fsck", "exit", "input", "message", "monitor", "online", "terminal"]),
    ("generate", &["e2fsck", "exit", "input"]),
    (
        "commands",
        &[
            "e2fsck",
            "exit",
            "generate",
            "image_files",
            "input",
            "message",
            "monitor",
            "online",
            "run",
            "terminal",
        ],
    ),
];

/// Rooms of one crate and the rooms that each uses.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    uses: BTreeMap<String, BTreeSet<String>>,
    /// Places of paths that lead to no room.
    lost: Vec<String>,
}

impl Rooms {
    /// Those of a crate in this folder, such as `crates/check`.
    pub(super) fn of(tree: &Tree, folder: &str) -> Self {
        let src = format!("{folder}/src/");
        let all: Vec<(&str, &str)> = tree
            .rust()
            .filter_map(|(path, text)| Some((path.strip_prefix(&src)?, text)))
            .filter(|(path, _)| !path.ends_with("tests.rs"))
            .collect();
        let parents: Vec<&str> =
            PARENTS.iter().filter_map(|path| path.strip_prefix(&src)).collect();
        let mut rooms = Self::default();
        let known: BTreeSet<String> =
            all.iter().map(|(path, _)| room_of(&module_of(path), &parents)).collect();
        let macros: String = all.iter().map(|(_, text)| *text).collect();
        let root = |path: &str| ["lib.rs", "main.rs"].contains(&path);
        let root = all.iter().find(|(path, _)| root(path)).map_or("", |(_, text)| text);
        for (path, text) in &all {
            let module = module_of(path);
            // The root only says what there is.
            if module.is_empty() {
                continue;
            }
            let room = room_of(&module, &parents);
            let used = rooms.uses.entry(room.clone()).or_default();
            for (line, target) in paths(text, &module) {
                let target: Vec<&str> = target.iter().map(String::as_str).collect();
                let first = target.first().copied().unwrap_or_default();
                let target = room_of(&target, &parents);
                if target == room || parents.contains(&target.as_str()) {
                    continue;
                }
                if known.contains(&target) {
                    used.insert(target);
                } else if !first.starts_with(char::is_uppercase)
                    && !is_item(root, first)
                    && !macros.contains(&format!("macro_rules! {first} "))
                {
                    // An item of the root, such as `crate::Cli`, belongs to no room.
                    rooms.lost.push(format!("{src}{path}:{line}: {target} is no room of {folder}"));
                }
            }
        }
        rooms
    }

    /// Rooms that reach each other, each set once.
    pub(super) fn circles(&self) -> Vec<BTreeSet<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.uses.keys().map(|room| (room.as_str(), self.reached_from(room))).collect();
        let mut circles = BTreeSet::new();
        for (room, all) in &reached {
            let circle: BTreeSet<&str> = all
                .iter()
                .filter(|other| reached.get(*other).is_some_and(|back| back.contains(room)))
                .copied()
                .collect();
            if !circle.is_empty() {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    fn reached_from<'a>(&'a self, room: &str) -> BTreeSet<&'a str> {
        let (mut reached, mut left) = (BTreeSet::new(), vec![room]);
        while let Some(room) = left.pop() {
            for next in self.uses.get(room).into_iter().flatten() {
                if reached.insert(next.as_str()) {
                    left.push(next);
                }
            }
        }
        reached
    }

    /// A line for each room, and one for each circle.
    pub(super) fn lines(&self) -> Vec<String> {
        let list = |rooms: &mut dyn Iterator<Item = &str>| rooms.collect::<Vec<_>>().join(", ");
        let mut lines: Vec<String> = self
            .uses
            .iter()
            .map(|(room, used)| format!("{room} -> {}", list(&mut used.iter().map(String::as_str))))
            .collect();
        for circle in self.circles() {
            lines.push(format!("circle: {}", list(&mut circle.into_iter())));
        }
        lines
    }
}

/// Whether the root of a crate declares or re-exports something of this name, other than a file.
fn is_item(root: &str, name: &str) -> bool {
    let declared = ["fn ", "mod "].iter().any(|kind| {
        root.match_indices(&format!("{kind}{name}")).any(|(at, found)| {
            let rest = &root[at + found.len()..];
            rest.starts_with(['(', '<']) || rest.starts_with(" {")
        })
    });
    let re_exported = |line: &str| {
        let words = |text: &str| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
        };
        line.trim_start().starts_with("pub") && line.contains("use ") && words(line)
    };
    declared || statements(root).any(|(_, line)| re_exported(&line))
}

/// The module of a file: `["checks", "inode", "slots"]`.
fn module_of(path: &str) -> Vec<&str> {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" || path == "main" { Vec::new() } else { path.split('/').collect() }
}

/// The room of a module or of an item in it.
fn room_of(module: &[&str], parents: &[&str]) -> String {
    match module {
        [] => String::new(),
        [first, second, ..] if parents.contains(first) => format!("{first}/{second}"),
        [first, ..] => (*first).to_owned(),
    }
}

/// The paths inside the crate that code names, with the number of the line.
fn paths<'a>(text: &'a str, module: &[&'a str]) -> Vec<(usize, Vec<String>)> {
    let owned = |path: &[&str]| path.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let mut found = Vec::new();
    for (line, code) in statements(text) {
        for (at, _) in code.match_indices("crate::") {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c)) {
                continue;
            }
            let named = targets(&code[at + "crate::".len()..]);
            found.extend(named.map(|target| (line, owned(&target))));
        }
        for (at, _) in code.match_indices("super::") {
            if code[..at].ends_with("super::") || code[..at].ends_with("crate::") {
                continue;
            }
            let mut rest = &code[at..];
            let mut above = module;
            while let Some(after) = rest.strip_prefix("super::") {
                rest = after;
                above = &above[..above.len().saturating_sub(1)];
            }
            found.extend(targets(rest).map(|target| (line, owned(&[above, &target[..]].concat()))));
        }
    }
    found
}

/// Lines of code; a list in braces after `::` that spans several lines is one.
fn statements(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut lines = code(text);
    std::iter::from_fn(move || {
        let (line, first) = lines.next()?;
        let mut all = first.to_owned();
        while all.rsplit_once("::{").is_some_and(|(_, list)| !list.contains('}')) {
            let Some((_, next)) = lines.next() else { break };
            all.push_str(next.trim());
        }
        Some((line, all))
    })
}

/// Paths that begin a text: one, or those of a list. Names of items are cut off: they begin with a
/// capital, or are what a path ends with.
fn targets(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let list = text.strip_prefix('{').map(|list| list.split('}').next().unwrap_or(list));
    let all: Vec<&str> = list.map_or_else(|| vec![text], |list| list.split(',').collect());
    all.into_iter().map(str::trim).filter(|path| !path.is_empty()).map(|path| {
        let end = path.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let path = &path[..end.unwrap_or(path.len())];
        path.split("::").filter(|segment| !segment.is_empty()).collect()
    })
}

/// Folders of all crates, such as `crates/check`.
pub(super) fn crates(tree: &Tree) -> BTreeSet<&str> {
    tree.rust().filter_map(|(path, _)| Some(path.split_once("/src/")?.0)).collect()
}

/// Inside a crate, rooms make no circles; in those with [`RULES`] a room uses only those that it may.
pub(super) fn rooms(tree: &Tree) -> Vec<String> {
    crates(tree).into_iter().flat_map(|folder| rooms_of(tree, folder)).collect()
}

fn rooms_of(tree: &Tree, folder: &str) -> Vec<String> {
    let rooms = Rooms::of(tree, folder);
    let mut faults = rooms.lost.clone();
    for circle in rooms.circles() {
        let circle: Vec<&str> = circle.into_iter().collect();
        faults.push(format!("{folder}/src: a circle of {}", circle.join(", ")));
    }
    let named = folder.strip_prefix("crates/").unwrap_or(folder);
    let Some((_, rules)) = RULES.iter().find(|(name, _)| *name == named) else { return faults };
    let outer = |room: &str| room.split('/').next().unwrap_or_default().to_owned();
    for (room, used) in &rooms.uses {
        let own = outer(room);
        let Some((_, allowed)) = rules.iter().find(|(name, _)| *name == own) else {
            faults.push(format!("{folder}/src/{own} is not in the list of rooms"));
            continue;
        };
        for used in used.iter().map(|used| outer(used)).filter(|used| *used != own) {
            if !allowed.contains(&used.as_str()) {
                faults.push(format!("{folder}/src/{room} must not use {used}"));
            }
        }
    }
    faults
}

/// Canaries.
#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(texts: &[(&str, &str)]) -> Vec<String> {
        rooms(&Tree::of(texts))
    }

    /// Rooms for others to use.
    const ROOMS: [(&str, &str); 6] = [
        ("crates/check/src/passes/inodes.rs", ""),
        ("crates/check/src/evidence/bits.rs", ""),
        ("crates/check/src/problem/mod.rs", ""),
        ("crates/check/src/saved/mod.rs", ""),
        ("crates/check/src/checks/context/inode.rs", ""),
        ("crates/check/src/checks/xattr/mod.rs", ""),
    ];

    fn faults_with(path: &str, text: &str) -> usize {
        let mut texts = ROOMS.to_vec();
        texts.push((path, text));
        faults_of(&texts).len()
    }

    #[test]
    fn canary_rooms() {
        let check = "crates/check/src/checks/inode/sizes.rs";
        assert_eq!(
            faults_with(check, "use crate::evidence::bits;\nuse crate::problem::Problem;\n"),
            0
        );
        for bad in [
            "use crate::passes::inodes;\n",
            "fn f() { crate::passes::inodes::run() }\n",
            "use super::super::super::passes::inodes;\n",
            "use crate::{passes::inodes, problem};\n",
            "use crate::{\n    passes::inodes,\n    problem,\n};\n",
        ] {
            assert_eq!(faults_with(check, bad), 1, "{bad}");
        }
        assert_eq!(
            faults_with(check, "#[cfg(test)]\nmod tests { use crate::passes::inodes; }\n"),
            0
        );
        assert_eq!(faults_with(check, "// crate::passes::inodes calls it\n"), 0);
    }

    #[test]
    fn canary_evidence_names_no_check() {
        let evidence = "crates/check/src/evidence/claims.rs";
        assert_eq!(faults_with(evidence, "use super::bits;\nuse crate::saved::Saved;\n"), 0);
        assert_eq!(faults_with(evidence, "use crate::checks::xattr::Uses;\n"), 1);
        assert_eq!(
            faults_with("crates/check/src/problem/table.rs", "use crate::evidence::bits;\n"),
            1
        );
    }

    #[test]
    fn canary_circles_between_checks() {
        let (one, other) =
            ("crates/check/src/checks/inode/a.rs", "crates/check/src/checks/mapping/b.rs");
        let uses = (one, "use crate::checks::mapping::b;\n");
        assert_eq!(faults_of(&[uses, (other, "")]), Vec::<String>::new());
        let faults = faults_of(&[uses, (other, "use crate::checks::inode::a;\n")]);
        assert_eq!(faults, ["crates/check/src: a circle of checks/inode, checks/mapping"]);
    }

    #[test]
    fn canary_rooms_of_repair_and_cli() {
        let stage = ("crates/repair/src/stage/mod.rs", "use crate::fixes::maps;\n");
        let fixes = ("crates/repair/src/fixes/maps.rs", "use crate::stage::Stage;\n");
        assert_eq!(faults_of(&[(stage.0, ""), fixes]), Vec::<String>::new());
        assert_eq!(
            faults_of(&[stage, (fixes.0, "")]),
            ["crates/repair/src/stage must not use fixes"]
        );
        assert_eq!(faults_of(&[stage, fixes])[0], "crates/repair/src: a circle of fixes, stage");
        let input = ("crates/cli/src/input/device.rs", "use crate::run::check;\n");
        let run = ("crates/cli/src/run/check.rs", "use crate::Cli;\nuse crate::input::device;\n");
        assert_eq!(faults_of(&[(input.0, ""), run]), Vec::<String>::new());
        assert_eq!(faults_of(&[input, (run.0, "")]), ["crates/cli/src/input must not use run"]);
    }

    #[test]
    fn canary_circles_in_any_crate() {
        for folder in ["crates/disk", "tools/vm"] {
            let (one, other) =
                (format!("{folder}/src/ops/a.rs"), format!("{folder}/src/volume.rs"));
            let uses = (&*one, "use crate::volume::Volume;\n");
            assert_eq!(faults_of(&[uses, (&other, "")]), Vec::<String>::new());
            let faults = faults_of(&[uses, (&other, "use super::ops::a;\n")]);
            assert_eq!(faults, [format!("{folder}/src: a circle of ops, volume")]);
            let hidden = "use crate::{\n    ops,\n    volume,\n};\n";
            assert_eq!(faults_of(&[uses, (&other, hidden)]).len(), 1);
        }
    }

    #[test]
    fn canary_unknown_rooms() {
        assert_eq!(faults_with("crates/check/src/attic/old.rs", ""), 1);
        assert_eq!(faults_with("crates/check/src/passes/a.rs", "use crate::attic::old;\n"), 1);
    }

    #[test]
    fn graphs_are_printed_with_their_circles() {
        let tree = Tree::of(&[
            ("crates/repair/src/lib.rs", "pub use plan::plan;"),
            ("crates/repair/src/plan.rs", "use crate::fixes::maps;\n"),
            ("crates/repair/src/fixes/maps.rs", "use super::super::plan::Plan;\n"),
            ("crates/repair/src/undo.rs", "use crate::plan::Plan;\n"),
        ]);
        let lines = Rooms::of(&tree, "crates/repair").lines();
        assert_eq!(
            lines,
            ["fixes -> plan", "plan -> fixes", "undo -> plan", "circle: fixes, plan"]
        );
    }
}
