use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn tree() -> Tree {
    Tree::new(Attributes::root())
}

fn names(tree: &Tree, directory: NodeId) -> Vec<String> {
    let text = |child: Child<'_>| String::from_utf8_lossy(child.name).into_owned();
    tree.children(directory).into_iter().map(text).collect()
}

#[test]
fn bad_names_are_refused() {
    let mut tree = tree();
    let root = tree.root();
    let mut add = |name: &[u8]| tree.insert(root, name, Attributes::file(0), Body::Fifo);
    let long = [b'x'; 256];
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &long] {
        assert_eq!(add(name), Err(TreeError::BadName));
    }
    let longest = add(&long[..255]).unwrap();
    assert_eq!(add(&long[..255]), Err(TreeError::Exists(longest)));
    let inside = tree.insert(longest, b"x", Attributes::file(0), Body::Fifo);
    assert_eq!(inside, Err(TreeError::NotADirectory));
    assert_eq!((tree.len(), tree.bound()), (2, 2));
}

#[test]
fn directories_have_one_name_and_are_removed_whole() {
    let mut tree = tree();
    let root = tree.root();
    let mut at = root;
    // Deeper than the call stack allows.
    for _ in 0..100_000 {
        at = tree.insert(at, b"d", Attributes::directory(0o700), Body::Directory).unwrap();
        tree.insert(at, b"f", Attributes::file(0), Body::empty_file()).unwrap();
    }
    let top = tree.look_up(root, b"d").unwrap();
    assert_eq!(tree.link_at(root, b"e", top), Err(TreeError::DirectoryLink));
    assert_eq!(tree.unlink(root, b"d"), Err(TreeError::NotEmpty));
    assert_eq!(tree.path(at).len(), 200_000);
    assert_eq!(tree.ordered().len(), 200_001);
    tree.remove(root, b"d").unwrap();
    assert_eq!(tree.remove(root, b"d"), Err(TreeError::NotFound));
    assert!(tree.is_empty());
    assert_eq!(tree.ordered(), [root]);
}

/// A directory with many names, removed in the worst order for linear lists; with linear searches
/// this test would take hours.
#[test]
fn many_names_take_linear_time() {
    const COUNT: u32 = 300_000;
    let mut tree = tree();
    let root = tree.root();
    let first = tree.insert(root, b"first", Attributes::file(0), Body::empty_file()).unwrap();
    for at in 0..COUNT {
        tree.link_at(root, at.to_string().as_bytes(), first).unwrap();
    }
    assert_eq!(tree.node(first).link_count(), COUNT + 1);
    for at in 0..COUNT {
        assert_eq!(tree.unlink(root, at.to_string().as_bytes()), Ok(first));
    }
    assert_eq!((tree.node(first).link_count(), tree.node(root).child_count()), (1, 1));
    assert_eq!(tree.path(first), b"/first");
}

#[test]
fn the_order_is_that_of_names() {
    let build = |order: &[&str]| {
        let mut tree = tree();
        let mut paths = Vec::new();
        for path in order {
            let (parent, name) = path.rsplit_once('/').unwrap();
            let parent = tree.look_up_path(parent.as_bytes()).unwrap();
            let body = if name < "m" { Body::Directory } else { Body::Socket };
            tree.insert(parent, name.as_bytes(), Attributes::file(0o600), body).unwrap();
        }
        for node in tree.ordered() {
            paths.push(String::from_utf8(tree.path(node)).unwrap());
        }
        paths
    };
    let one = build(&["/b", "/a", "/a/z", "/a/c", "/a/c/x", "/b/y", "/n"]);
    let other = build(&["/n", "/a", "/b", "/b/y", "/a/c", "/a/c/x", "/a/z"]);
    assert_eq!(one, other);
    assert_eq!(one, ["/", "/a", "/b", "/n", "/a/c", "/a/z", "/a/c/x", "/b/y"]);
}

#[test]
fn attributes_are_replaced() {
    let mut tree = tree();
    let root = tree.root();
    let target = Body::Symlink(b"target".as_slice().into());
    let link = tree.insert(root, b"s", Attributes::file(0o777), target).unwrap();
    assert_eq!(tree.node(link).mode(), 0o120_777);
    assert_eq!(tree.node(link).size(), 6);
    let xattrs = tree.keep_xattrs(vec![Xattr::new(&b"user.a"[..], &b"1"[..])]);
    let time = Timestamp { seconds: -5, nanoseconds: 7 };
    let attributes = Attributes { uid: 70_000, xattrs, ..Attributes::file(0o17_4755) }.at(time);
    tree.set_attributes(link, attributes);
    assert_eq!(tree.node(link).attributes(), Attributes { mode: 0o4755, ..attributes });
    assert_eq!(tree.xattrs(tree.xattrs_of(link)).len(), 1);
    assert_eq!(tree.look_up_path(b"//s/./"), Some(link));
    assert_eq!(tree.look_up_path(b"/../s"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A tree of two directories behaves like two maps from names to files.
    #[test]
    fn a_tree_is_what_was_done_to_it(
        steps in proptest::collection::vec((0u8..4, 0u8..2, 0u8..12, 0u8..12), 0..200),
    ) {
        let mut tree = tree();
        let root = tree.root();
        let other = tree.insert(root, b"dir", Attributes::directory(0), Body::Directory).unwrap();
        let places = [root, other];
        let mut model: [BTreeMap<String, NodeId>; 2] = Default::default();
        model[0].insert("dir".into(), other);
        for (step, place, name, from) in steps {
            let place = usize::from(place);
            let (name, from) = (format!("n{name}"), format!("n{from}"));
            let known = model[place].get(&name).copied();
            match step {
                0 => match tree.insert(places[place], name.as_bytes(), Attributes::file(0), Body::Fifo) {
                    Ok(id) => prop_assert!(model[place].insert(name, id).is_none()),
                    Err(error) => prop_assert_eq!(Some(error), known.map(TreeError::Exists)),
                },
                1 => {
                    let Some(&node) = model[1 - place].get(&from) else { continue };
                    match tree.link_at(places[place], name.as_bytes(), node) {
                        Ok(()) => prop_assert!(model[place].insert(name, node).is_none()),
                        Err(error) => prop_assert_eq!(Some(error), known.map(TreeError::Exists)),
                    }
                }
                _ => {
                    let done = tree.unlink(places[place], name.as_bytes());
                    prop_assert_eq!(done.ok(), model[place].remove(&name));
                }
            }
        }
        for (place, names_there) in places.into_iter().zip(&model) {
            prop_assert_eq!(names(&tree, place), names_there.keys().cloned().collect::<Vec<_>>());
            for (name, node) in names_there {
                prop_assert_eq!(tree.look_up(place, name.as_bytes()), Some(*node));
                let links = model.iter().flat_map(BTreeMap::values).filter(|n| *n == node).count();
                prop_assert_eq!(tree.node(*node).link_count() as usize, links);
                prop_assert_eq!(tree.links_of(*node).count(), links);
            }
        }
        let nodes: std::collections::BTreeSet<_> = model.iter().flat_map(BTreeMap::values).collect();
        prop_assert_eq!(tree.len(), nodes.len() + 1);
        prop_assert_eq!(tree.ordered().len(), tree.len());
    }
}
