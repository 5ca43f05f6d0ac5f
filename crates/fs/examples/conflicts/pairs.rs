//! Pairs of calls that commute: in either order both have the same results and lead to the same state.

use std::collections::{HashMap, HashSet};

use crate::model::{Call, Model, Name, Outcome, PAGES};

/// Calls that lead to a state, and a pair of calls that commutes there.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) before: Vec<Call>,
    pub(crate) calls: [Call; 2],
    pub(crate) outcomes: [Outcome; 2],
}

/// All calls, the ones that write with this value.
fn calls(value: u8) -> Vec<Call> {
    let names = || (0..2).flat_map(|directory| (0..3).map(move |name| Name { directory, name }));
    let mut all = vec![Call::Sync];
    for name in names() {
        all.extend([Call::Open(name), Call::Create(name), Call::Unlink(name)]);
        all.extend([Call::Mkdir(name), Call::Rmdir(name)]);
        all.extend((0..2).map(|handle| Call::Link(handle, name)));
        all.extend(names().map(|to| Call::Rename(name, to)));
    }
    for one in 0..2 {
        all.extend([Call::Stat(one), Call::StatDirectory(one), Call::List(one)]);
        all.extend([Call::Fsync(one), Call::FsyncDirectory(one)]);
        for page in 0..PAGES as u8 {
            all.extend([
                Call::Read(one, page),
                Call::Write(one, page, value),
                Call::Seek(one, page),
            ]);
            all.extend([Call::GetAttribute(one, page), Call::RemoveAttribute(one, page)]);
            all.push(Call::SetAttribute(one, page, value));
        }
        all.extend((0..=PAGES as u8).map(|pages| Call::Truncate(one, pages)));
    }
    all
}

fn fits(state: &Model, call: Call) -> bool {
    match call {
        Call::Link(handle, _) => state.has_name(handle),
        Call::Create(_) | Call::Mkdir(_) => state.has_room(),
        _ => true,
    }
}

/// All states that so many calls lead to, each with the calls of a shortest way.
fn states(depth: usize) -> Vec<(Model, Vec<Call>)> {
    let mut all = vec![(Model::start(), Vec::new())];
    let mut seen: HashSet<Model> = all.iter().map(|(state, _)| *state).collect();
    let mut from = 0;
    for _ in 0..depth {
        let end = all.len();
        for at in from..end {
            let (state, way) = all[at].clone();
            for call in calls(3) {
                let mut next = state;
                if !fits(&state, call) {
                    continue;
                }
                next.call(call);
                let next = next.settled().canonical();
                if seen.insert(next) {
                    all.push((next, [way.as_slice(), &[call]].concat()));
                }
            }
        }
        from = end;
    }
    all
}

/// The distinguishing marks of a pair: the calls, which arguments are the same, where names lead, and the results.
fn signature(state: &Model, calls: [Call; 2], outcomes: [Outcome; 2]) -> String {
    let mut first_seen: HashMap<(char, u8), u8> = HashMap::new();
    let mut order = |kind: char, value: u8| {
        let next = first_seen.keys().filter(|(other, _)| *other == kind).count() as u8;
        *first_seen.entry((kind, value)).or_insert(next)
    };
    let mut text = String::new();
    for call in calls {
        let mut add = |part: String| text.push_str(&part);
        let name = |order: &mut dyn FnMut(char, u8) -> u8, name: Name| {
            let directory = order('d', name.directory);
            let of_name = order('n', name.directory * 8 + name.name);
            match state.found(name) {
                None => format!(" {directory}/{of_name}-"),
                Some((3, inode)) => format!(" {directory}/{of_name}D{}", order('i', inode)),
                Some((_, inode)) => format!(" {directory}/{of_name}F{}", order('i', inode)),
            }
        };
        add(format!(" {}", kind(call)));
        match call {
            Call::Open(at)
            | Call::Create(at)
            | Call::Unlink(at)
            | Call::Mkdir(at)
            | Call::Rmdir(at) => add(name(&mut order, at)),
            Call::Link(handle, at) => {
                add(format!(" {}", order('i', handle)));
                add(name(&mut order, at));
            }
            Call::Rename(from, to) => {
                add(name(&mut order, from));
                add(name(&mut order, to));
            }
            Call::Stat(handle) | Call::Fsync(handle) => add(format!(" {}", order('i', handle))),
            Call::StatDirectory(directory)
            | Call::List(directory)
            | Call::FsyncDirectory(directory) => add(format!(" {}", order('d', directory))),
            Call::Read(handle, part)
            | Call::Seek(handle, part)
            | Call::Write(handle, part, _)
            | Call::Truncate(handle, part) => {
                add(format!(" {} {part}", order('i', handle)));
            }
            Call::GetAttribute(handle, part)
            | Call::RemoveAttribute(handle, part)
            | Call::SetAttribute(handle, part, _) => {
                let (handle, part) = (order('i', handle), order('x', part));
                add(format!(" {handle} {part}"));
            }
            Call::Sync => {}
        }
    }
    format!("{text} {:?}", outcomes.map(class))
}

/// A result without what is beside the point.
fn class(outcome: Outcome) -> String {
    match outcome {
        Outcome::Names(_) | Outcome::Value(_) | Outcome::Status { .. } | Outcome::At(_) => {
            "ok".to_owned()
        }
        Outcome::Bytes(bytes) => format!("{}", bytes.is_some()),
        other => format!("{other:?}"),
    }
}

/// The call without its arguments.
pub(crate) fn kind(call: Call) -> &'static str {
    match call {
        Call::Open(_) => "open",
        Call::Create(_) => "create",
        Call::Link(..) => "link",
        Call::Unlink(_) => "unlink",
        Call::Rename(..) => "rename",
        Call::Mkdir(_) => "mkdir",
        Call::Rmdir(_) => "rmdir",
        Call::Stat(_) | Call::StatDirectory(_) => "stat",
        Call::Read(..) => "read",
        Call::Write(..) => "write",
        Call::Truncate(..) => "truncate",
        Call::Seek(..) => "lseek",
        Call::List(_) => "readdir",
        Call::GetAttribute(..) => "getxattr",
        Call::SetAttribute(..) => "setxattr",
        Call::RemoveAttribute(..) => "rmxattr",
        Call::Fsync(_) | Call::FsyncDirectory(_) => "fsync",
        Call::Sync => "sync",
    }
}

fn both(mut state: Model, one: Call, other: Call) -> (Outcome, Outcome, Model) {
    let first = state.call(one);
    let second = state.call(other);
    (first, second, state.canonical())
}

/// One pair for each signature among all that commute in a state that so many calls lead to.
pub(crate) fn pairs(depth: usize) -> Vec<Pair> {
    let mut all = Vec::new();
    let mut seen = HashSet::new();
    let (ones, others) = (calls(1), calls(2));
    for (state, before) in states(depth) {
        for (at, &one) in ones.iter().enumerate() {
            if !fits(&state, one) {
                continue;
            }
            for &other in &others[at..] {
                if !fits(&state, other) {
                    continue;
                }
                let (first, second, end) = both(state, one, other);
                // A link in the other order may find its file without a name.
                let unnamed = |call| matches!(call, Call::Link(handle, _) if !end.has_name(handle));
                if unnamed(one) || unnamed(other) {
                    continue;
                }
                let (other_first, other_second, other_end) = both(state, other, one);
                let same = (first, second, end) == (other_second, other_first, other_end);
                let outcomes = [first, second];
                if same && seen.insert(signature(&state, [one, other], outcomes)) {
                    all.push(Pair { before: before.clone(), calls: [one, other], outcomes });
                }
            }
        }
    }
    all
}
