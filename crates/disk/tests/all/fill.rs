//! File systems filled from trees in memory, checked by e2fsck and the kernel.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{MemDevice, WritableFile};
use floe_disk::mkfs::tree::{
    Attributes, Body, ContentId, Contents, Extent, NodeId, Timestamp, Tree, Xattr,
};
use floe_disk::mkfs::{FillOptions, Fresh, FsType, Options, Params, PlanError, TreePlan, fill};
use floe_disk::ops::{Caller, NewInode, OpError};
use floe_disk::volume::Volume;
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_testkit::profile::Profile;
use floe_testkit::{Image, kernel, oracle, tool, tree as read_back};

/// Bytes determined by a content's number and the offset alone.
struct MadeUp;

fn byte_at(content: ContentId, offset: u64) -> u8 {
    let mixed = ((content.0 << 32) ^ (offset / 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 | 1
}

impl Contents for MadeUp {
    fn read_at(&self, content: ContentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if content == ContentId(666) {
            return Err(io::Error::other("a file that cannot be read"));
        }
        for (at, byte) in (offset..).zip(into) {
            *byte = byte_at(content, at);
        }
        Ok(())
    }
}

fn params(profile: Profile, edits: &[(char, &str)], blocks: Option<u64>) -> Result<Params> {
    let mut options = Options::of_type(FsType::Ext2);
    for pair in profile.mke2fs_args().chunks(2) {
        let letter = pair[0].chars().nth(1).context("a letter")?;
        options.set(letter, pair[1])?;
    }
    for (letter, value) in edits {
        options.set(*letter, value)?;
    }
    let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
    let mut params = options.params(profile.size_mib() << 20, None, &fresh)?;
    params.blocks = blocks.unwrap_or(params.blocks);
    Ok(params)
}

fn attributes(seed: u32, mode: u16) -> Attributes {
    let time = |add: u32| Timestamp {
        seconds: i64::from(1_600_000_000 + seed * 7 + add),
        nanoseconds: seed * 1000 + add,
    };
    Attributes {
        mode,
        uid: seed % 3 * 70_000,
        gid: seed % 5,
        mtime: time(1),
        atime: time(2),
        ctime: time(3),
        ..Attributes::default()
    }
}

/// A tree with one of everything.
fn everything(profile: Profile, attributes_too: bool) -> Result<Tree> {
    let mut tree = Tree::new(attributes(1, 0o755));
    let root = tree.root();
    let dir = |tree: &mut Tree, parent: NodeId, name: &str, seed: u32| {
        tree.insert(parent, name.as_bytes(), attributes(seed, 0o2750), Body::Directory)
    };
    let etc = dir(&mut tree, root, "etc", 2)?;
    let many = dir(&mut tree, etc, "many names", 3)?;
    for at in 0..400u32 {
        let name = format!("file-{at}-{}", "x".repeat(at as usize % 40));
        let body = Body::file(u64::from(at % 90) * 13, ContentId(u64::from(at)), u64::from(at));
        tree.insert(many, name.as_bytes(), attributes(at, 0o644), body)?;
    }
    let mut deep = etc;
    for at in 0..12 {
        deep = dir(&mut tree, deep, &format!("d{at}"), at)?;
    }
    let big = Body::file(310_007, ContentId(1000), 5);
    let big = tree.insert(deep, b"big", attributes(4, 0o600), big)?;
    tree.link_at(root, b"hard link", big)?;
    tree.link_at(many, b"another", big)?;
    let part = |at: u64| Extent { at: at * 9000 + 17, len: 3000, content: ContentId(1), from: at };
    let holes = Body::sparse(500_000, (3..27).map(part).collect());
    tree.insert(root, b"holes", attributes(5, 0o640), holes)?;
    tree.insert(root, b"all hole", attributes(5, 0o640), Body::sparse(70_000, Vec::new()))?;
    tree.insert(root, b"empty", attributes(6, 0o4755), Body::empty_file())?;
    for len in [1, 59, 60, 900] {
        let name = format!("symlink {len}");
        let target = Body::Symlink(vec![b'/'; len].into());
        tree.insert(root, name.as_bytes(), attributes(len as u32, 0o777), target)?;
    }
    let devices = [
        ("small", Body::CharDevice { major: 4, minor: 64 }),
        ("large", Body::BlockDevice { major: 259, minor: 70_000 }),
        ("fifo", Body::Fifo),
        ("socket", Body::Socket),
    ];
    for (name, body) in devices {
        tree.insert(root, name.as_bytes(), attributes(8, 0o660), body)?;
    }
    tree.insert(root, &[0xff; 255], attributes(9, 0o644), Body::file(5, ContentId(3), 0))?;
    if attributes_too {
        add_xattrs(&mut tree, root, etc, profile)?;
    }
    Ok(tree)
}

fn add_xattrs(tree: &mut Tree, root: NodeId, etc: NodeId, profile: Profile) -> Result<()> {
    let xattr = |name: &str, value: &[u8]| Xattr::new(name.as_bytes(), value);
    let acl: &[u8] = &[
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 112, 17, 1, 0, 4, 0, 5, 0, 255,
        255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    let large = vec![b'v'; if profile.block_size() < 4096 { 700 } else { 2000 }];
    let sets = [
        vec![xattr("user.a", b"1")],
        vec![xattr("user.a", b"1"), xattr("user.large", &large), xattr("security.other", b"label")],
        vec![xattr("system.posix_acl_access", acl)],
        vec![xattr("trusted.empty", b""), xattr("user.zz", b"zz"), xattr("user.b", &[5; 90])],
    ];
    for (at, set) in sets.into_iter().enumerate() {
        let xattrs = tree.keep_xattrs(set);
        let own = Attributes { xattrs, ..attributes(at as u32, 0o644) };
        let body = Body::file(10, ContentId(at as u64), 0);
        tree.insert(root, format!("xattr {at}").as_bytes(), own, body)?;
        if at == 2 {
            // With a default ACL as well.
            let set = vec![xattr("system.posix_acl_default", acl), xattr("user.on dir", b"x")];
            let xattrs = tree.keep_xattrs(set);
            tree.set_attributes(etc, Attributes { xattrs, ..attributes(2, 0o2750) });
        }
    }
    Ok(())
}

fn write(plan: &TreePlan<'_>, folder: &Path, threads: usize) -> Result<Image> {
    let path = folder.join(format!("image-{threads}"));
    let bytes = plan.plan().bytes();
    let device = WritableFile::create(&path, bytes)?;
    fill(plan, &MadeUp, &device, FillOptions { threads, ..FillOptions::default() })?;
    Image::open(&path)
}

/// Writes with one thread and with three, compares the bytes, and runs e2fsck.
fn made(params: &Params, tree: &Tree, folder: &Path) -> Result<Image> {
    let plan = TreePlan::new(params, tree)?;
    let (one, three) = (write(&plan, folder, 1)?, write(&plan, folder, 3)?);
    ensure!(
        std::fs::read(one.path())? == std::fs::read(three.path())?,
        "one thread and three gave different bytes"
    );
    let judged = oracle::run(one.path(), &["-fn"])?;
    ensure!(judged.exit == Some(0), "e2fsck {:?}: {}", judged.exit, judged.text);
    Ok(one)
}

/// Compares the file system, as testkit's reader sees it, with the tree.
fn compare_stored(image: &Image, tree: &Tree) -> Result<()> {
    let found = read_back::stored(image)?;
    for node in tree.ordered() {
        let (wanted, path) = (tree.node(node), tree.path(node));
        let text = String::from_utf8_lossy(&path).into_owned();
        let one = found.get(&path).with_context(|| format!("{text} is missing"))?;
        let own = wanted.attributes();
        ensure!(one.kind == Some(wanted.file_type()), "{text}: {:?}", one.kind);
        ensure!((one.uid, one.gid) == (own.uid, own.gid), "{text}: {} {}", one.uid, one.gid);
        ensure!(one.permissions == own.mode, "{text}: {:o}", one.permissions);
        ensure!(wanted.is_directory() || one.size_bytes == wanted.size(), "{text}: its size");
        let xattrs = tree.xattrs(own.xattrs);
        ensure!(one.xattrs.len() == xattrs.len(), "{text}: {:?}", one.xattrs.keys());
        for name in tree.links_of(node) {
            let mut path = tree.path(name.parent);
            path.extend_from_slice(if path == b"/" { b"" } else { b"/" });
            path.extend_from_slice(name.name);
            ensure!(found.get(&path).map(|one| one.inode) == Some(one.inode), "{text}: a link");
        }
    }
    let names: usize = tree.ordered().iter().map(|node| tree.children(*node).len()).sum();
    // Root, lost+found.
    ensure!(found.len() == names + 2, "{} paths, {} wanted", found.len(), names + 2);
    Ok(())
}

#[test]
fn trees_of_every_profile_are_whole() {
    if tool::missing() {
        return;
    }
    let mut faults = Vec::new();
    let only = std::env::var("FLOE_PROFILE").ok();
    for &profile in Profile::ALL {
        if only.as_deref().is_some_and(|only| only != profile.name()) {
            continue;
        }
        let done = || -> Result<()> {
            let folder = tool::scratch("floe-fill-")?;
            let tree = everything(profile, profile != Profile::Ext2Rev0)?;
            // No quota counts the inode of the orphan file.
            let more = ('O', if profile == Profile::Quota { "orphan_file" } else { "" });
            let image = made(&params(profile, &[more], None)?, &tree, folder.path())?;
            if let Ok(keep) = std::env::var("FLOE_KEEP") {
                std::fs::copy(image.path(), format!("{keep}/filled"))?;
            }
            compare_stored(&image, &tree)
        };
        if let Err(error) = done() {
            faults.push(format!("{profile}: {error:#}"));
        }
    }
    assert!(faults.is_empty(), "{} profiles\n{}", faults.len(), faults.join("\n"));
}

/// Compares a mount with the tree, including contents and times.
fn compare_mounted(folder: &Path, tree: &Tree) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    for node in tree.ordered() {
        let (wanted, path) = (tree.node(node), tree.path(node));
        let path = folder.join(std::ffi::OsStr::from_bytes(&path[1..]));
        let text = path.display().to_string();
        let found = path.symlink_metadata().with_context(|| text.clone())?;
        let own = wanted.attributes();
        let times = |seconds: i64, nanos: i64| Timestamp { seconds, nanoseconds: nanos as u32 };
        ensure!(found.mode() as u16 == wanted.mode(), "{text}: {:o}", found.mode());
        ensure!(times(found.mtime(), found.mtime_nsec()) == own.mtime, "{text}: mtime");
        ensure!(times(found.ctime(), found.ctime_nsec()) == own.ctime, "{text}: ctime");
        if !wanted.is_directory() && !found.file_type().is_symlink() {
            ensure!(found.nlink() == u64::from(wanted.link_count()), "{text}: links");
        }
        match wanted.body() {
            Body::File { size, data } => {
                let bytes = std::fs::read(&path).with_context(|| text.clone())?;
                ensure!(bytes.len() as u64 == *size, "{text}: {} bytes", bytes.len());
                let mut expected = vec![0; bytes.len()];
                match data {
                    floe_disk::mkfs::tree::Data::Whole { content, from } => {
                        MadeUp.read_at(*content, *from, &mut expected)?;
                    }
                    floe_disk::mkfs::tree::Data::Sparse(extents) => {
                        for part in extents {
                            let range = part.at as usize..(part.at + part.len) as usize;
                            MadeUp.read_at(part.content, part.from, &mut expected[range])?;
                        }
                    }
                }
                ensure!(bytes == expected, "{text}: other content");
            }
            Body::Symlink(target) => {
                let found = std::fs::read_link(&path)?;
                ensure!(found.as_os_str().as_bytes() == &target[..], "{text}: other target");
            }
            Body::CharDevice { major, minor } | Body::BlockDevice { major, minor } => {
                let rdev = found.rdev();
                let numbers = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
                ensure!(numbers == (*major, *minor), "{text}: {numbers:?}");
                let is_block = matches!(wanted.body(), Body::BlockDevice { .. });
                ensure!(found.file_type().is_block_device() == is_block, "{text}: kind");
            }
            Body::Directory | Body::Fifo | Body::Socket => {}
        }
    }
    Ok(())
}

#[test]
fn linux_sees_the_tree() {
    if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let profiles =
        [Profile::Ext4, Profile::Ext4K1, Profile::Ext3, Profile::Bigalloc, Profile::InlineData];
    for profile in profiles {
        let folder = tool::scratch("floe-fill-").expect("a folder");
        let tree = everything(profile, true).expect("a tree");
        let params = params(profile, &[], None).expect("parameters");
        let image = made(&params, &tree, folder.path()).expect("an image");
        let mount = kernel::Mounted::new(image.path(), "").expect("Linux mounts it read-write");
        let seen = compare_mounted(mount.path(), &tree);
        let acl = read_back::mounted(mount.path()).expect("a walk");
        let names = |path: &[u8]| acl[path].xattrs.len();
        assert_eq!((names(b"/xattr 1"), names(b"/xattr 2"), names(b"/xattr 3")), (3, 1, 3));
        std::fs::write(mount.path().join("new"), "written by Linux").expect("a new file");
        mount.unmount().expect("the mount is not in use");
        seen.unwrap_or_else(|error| panic!("{profile}: {error:#}"));
        let judged = oracle::run(image.path(), &["-fn"]).expect("a verdict");
        assert_eq!(judged.exit, Some(0), "{profile}: {}", judged.text);
    }
}

/// Files of all sizes around the limit of inline data, and directories of all numbers of names,
/// with and without attributes that compete for the space.
fn small_things() -> Result<Tree> {
    let mut tree = Tree::new(attributes(1, 0o755));
    let root = tree.root();
    let mut set = |bytes: usize| {
        tree.keep_xattrs(match bytes {
            0 => Vec::new(),
            bytes => vec![Xattr::new(*b"user.a", vec![1; bytes])],
        })
    };
    // None, some, and so many that a value, or even its entry, has no space.
    let sets = [set(0), set(8), set(60), set(64), set(400)];
    for (kind, xattrs) in sets.into_iter().enumerate() {
        for size in 0..=140u32 {
            let own = Attributes { xattrs, ..attributes(size, 0o644) };
            let body = Body::file(u64::from(size), ContentId(u64::from(size)), 3);
            tree.insert(root, format!("file {kind} {size}").as_bytes(), own, body)?;
        }
        for names in 0..=10 {
            let own = Attributes { xattrs, ..attributes(names, 0o755) };
            let name = format!("dir {kind} {names}");
            let dir = tree.insert(root, name.as_bytes(), own, Body::Directory)?;
            for at in 0..names {
                let name =
                    "n".repeat(1 + (at as usize * 5 + names as usize) % 11) + &at.to_string();
                let body = if at % 4 == 1 { Body::Directory } else { Body::empty_file() };
                tree.insert(dir, name.as_bytes(), attributes(at, 0o700), body)?;
            }
        }
    }
    Ok(tree)
}

#[test]
fn small_files_and_directories_lie_in_their_inodes() {
    if tool::missing() {
        return;
    }
    for inode_size in ["256", "512"] {
        let tree = small_things().expect("a tree");
        let with = |features| {
            let edits = [('I', inode_size), ('O', features), ('N', "3000")];
            params(Profile::Ext4, &edits, Some(32_000)).expect("parameters")
        };
        let used = |params: &Params| {
            let plan = TreePlan::new(params, &tree).expect("a plan");
            let superblock = plan.plan().superblock().clone();
            superblock.blocks_count() - superblock.free_blocks_count()
        };
        let saved = used(&with("^inline_data")) - used(&with("inline_data"));
        // An inode of 256 bytes has 96 for attributes, of which a value can take 68 beside the 60
        // in `i_block`. So all files of up to 128 bytes without attributes are inline, and so on.
        assert!(saved > if inode_size == "256" { 400 } else { 700 }, "{inode_size}: {saved}");
        let folder = tool::scratch("floe-fill-").expect("a folder");
        let image = made(&with("inline_data"), &tree, folder.path()).expect("an image");
        compare_stored(&image, &tree).expect("the tree");
        if let Err(reason) = kernel::mount_available() {
            eprintln!("not mounted: {reason}");
            continue;
        }
        let mount = kernel::Mounted::new(image.path(), "").expect("Linux mounts it");
        let seen = compare_mounted(mount.path(), &tree);
        // All inline files and directories grow out of their inodes.
        for node in tree.ordered() {
            use std::os::unix::ffi::OsStrExt;
            let path = tree.path(node);
            let path = mount.path().join(std::ffi::OsStr::from_bytes(&path[1..]));
            let grown = match tree.node(node).is_directory() {
                true => {
                    (0..9).try_for_each(|at| std::fs::write(path.join(format!("more {at}")), ""))
                }
                false => std::fs::write(path, [6; 700]),
            };
            grown.expect("Linux writes it");
        }
        mount.unmount().expect("the mount is not in use");
        seen.unwrap_or_else(|error| panic!("{inode_size}: {error:#}"));
        let judged = oracle::run(image.path(), &["-fn"]).expect("a verdict");
        assert_eq!(judged.exit, Some(0), "{}", judged.text);
    }
}

/// Inserting the same tree in another order gives the same bytes.
#[test]
fn the_order_of_the_source_does_not_matter() {
    let make = |backwards: bool| -> Result<Vec<u8>> {
        let mut tree = Tree::new(attributes(0, 0o755));
        let root = tree.root();
        let mut numbers: Vec<u32> = (0..2000).collect();
        if backwards {
            numbers.reverse();
        }
        for at in numbers {
            let body = Body::file(u64::from(at % 700), ContentId(u64::from(at) + 1000), 0);
            tree.insert(root, format!("n{at}").as_bytes(), attributes(at, 0o644), body)?;
        }
        let folder = tempfile::tempdir()?;
        let params = params(Profile::Ext4, &[('N', "4000")], None)?;
        let image = write(&TreePlan::new(&params, &tree)?, folder.path(), 2)?;
        Ok(std::fs::read(image.path())?)
    };
    assert!(make(false).expect("an image") == make(true).expect("an image"));
}

/// One byte says how long a name is, and Linux lists none of more than 255 bytes with its prefix.
#[test]
fn long_names_of_attributes_are_refused() {
    for (len, fits) in [(250, true), (251, false), (256, false), (300, false)] {
        let mut tree = Tree::new(attributes(0, 0o755));
        let name = [&b"user."[..], &vec![b'n'; len]].concat();
        let xattrs = tree.keep_xattrs(vec![Xattr::new(name, *b"v")]);
        let own = Attributes { xattrs, ..attributes(0, 0o644) };
        tree.insert(tree.root(), b"one", own, Body::empty_file()).expect("a new name");
        let params = params(Profile::Ext4, &[], None).expect("parameters");
        match TreePlan::new(&params, &tree) {
            Ok(_) => assert!(fits, "{len}"),
            Err(PlanError::File { path, .. }) => assert!(!fits && path == "/one", "{len}"),
            Err(error) => panic!("{len}: {error}"),
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let with = |body: Body, edits: &[(char, &str)]| -> PlanError {
        let mut tree = Tree::new(attributes(0, 0o755));
        tree.insert(tree.root(), b"one", attributes(0, 0o644), body).expect("a new name");
        let params = params(Profile::Ext4, edits, None).expect("parameters");
        TreePlan::new(&params, &tree).expect_err("it cannot fit")
    };
    assert!(matches!(with(Body::file(40 << 20, ContentId(0), 0), &[]), PlanError::Full { .. }));
    assert!(matches!(
        with(Body::sparse(1 << 60, Vec::new()), &[]),
        PlanError::File { path, .. } if path == "/one"
    ));
    let mut tree = Tree::new(attributes(0, 0o755));
    for at in 0..2000 {
        let name = format!("{at}");
        tree.insert(tree.root(), name.as_bytes(), attributes(0, 0), Body::Fifo).expect("a name");
    }
    let params = params(Profile::Ext4, &[], None).expect("parameters");
    let error = TreePlan::new(&params, &tree).expect_err("too many");
    assert!(matches!(error, PlanError::NoInodes { wanted: 2000, .. }), "{error:?}");
}

/// A file that cannot be read leaves no file system behind.
#[test]
fn a_source_that_fails_leaves_no_superblock() {
    let mut tree = Tree::new(attributes(0, 0o755));
    let body = Body::file(5000, ContentId(666), 0);
    tree.insert(tree.root(), b"bad", attributes(0, 0o644), body).expect("a name");
    let params = params(Profile::Ext4, &[], None).expect("parameters");
    let plan = TreePlan::new(&params, &tree).expect("a plan");
    let folder = tempfile::tempdir().expect("a folder");
    let error = write(&plan, folder.path(), 2).expect_err("it cannot be read");
    assert!(error.to_string().contains("cannot read /bad"), "{error}");
    let bytes = std::fs::read(folder.path().join("image-2")).expect("a file");
    assert_eq!(bytes[1024..2048], [0; 1024]);
}

#[test]
fn a_fitted_file_system_has_no_room_left() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4, Profile::Ext4K1, Profile::Ext2K4, Profile::Bigalloc] {
        let folder = tool::scratch("floe-fill-").expect("a folder");
        let tree = everything(profile, true).expect("a tree");
        let mut params = params(profile, &[], None).expect("parameters");
        params.inodes = floe_disk::mkfs::InodeCount::Ratio(16384);
        let fitted = TreePlan::fitted(&params, &tree, 0).expect("a plan");
        let blocks = fitted.plan().geometry().blocks_count;
        let free = fitted.plan().superblock().free_blocks_count();
        let image = write(&fitted, folder.path(), 2).expect("an image");
        let judged = oracle::run(image.path(), &["-fn"]).expect("a verdict");
        assert_eq!(judged.exit, Some(0), "{profile}: {}", judged.text);
        assert!(free * 50 <= blocks, "{profile}: {free} of {blocks} blocks are free");
        let roomy = TreePlan::fitted(&params, &tree, 50).expect("a plan");
        let more = roomy.plan().geometry().blocks_count;
        assert!(more * 10 >= blocks * 14, "{profile}: {more} after {blocks}");
    }
}

/// A table's inodes are rounded down to a multiple of 8, in each group.
#[test]
fn a_fitted_file_system_has_inodes_for_any_number_of_names() {
    for (block_size, inode_size, most) in
        [(1024, 256, 2_000), (1024, 1024, 3_000), (2048, 512, 1_000), (4096, 4096, 1_000)]
    {
        let mut tree = Tree::new(attributes(0, 0o755));
        let mut params = params(Profile::Ext4K1, &[], None).expect("parameters");
        params.inodes = floe_disk::mkfs::InodeCount::Ratio(16384);
        (params.block_size, params.cluster_size) = (block_size, block_size);
        (params.inode_size, params.blocks_per_group) = (inode_size, None);
        for at in 0..most {
            let name = format!("{at}");
            tree.insert(tree.root(), name.as_bytes(), attributes(at, 0), Body::Fifo)
                .expect("a name");
            if at % 1000 < 992 {
                continue;
            }
            let plan = TreePlan::fitted(&params, &tree, 0);
            let plan = plan.unwrap_or_else(|why| panic!("{block_size}/{inode_size}, {at}: {why}"));
            assert!(plan.plan().superblock().free_inodes_count < 200);
        }
    }
}

/// Many files without data: the inode tables take nearly the whole file system.
#[test]
fn a_tree_of_names_alone_fits() {
    let mut tree = Tree::new(attributes(0, 0o755));
    for at in 0..20_000 {
        let name = format!("name of a file {at}");
        tree.insert(tree.root(), name.as_bytes(), attributes(at, 0), Body::Fifo).expect("a name");
    }
    let mut params = params(Profile::Ext4, &[], None).expect("parameters");
    params.inodes = floe_disk::mkfs::InodeCount::Ratio(16384);
    params.blocks_per_group = None;
    let plan = TreePlan::fitted(&params, &tree, 0).expect("a plan");
    let (geometry, superblock) = (plan.plan().geometry(), plan.plan().superblock());
    assert!(superblock.free_blocks_count() * 50 <= geometry.blocks_count);
    assert!(superblock.free_inodes_count < 200, "{}", superblock.free_inodes_count);
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-fill-").expect("a folder");
    let image = write(&plan, folder.path(), 2).expect("an image");
    let judged = oracle::run(image.path(), &["-fn"]).expect("a verdict");
    assert_eq!(judged.exit, Some(0), "{}", judged.text);
}

/// A directory `dir` of this many subdirectories, beside another one.
fn crowded(count: u32) -> (Tree, NodeId) {
    let mut tree = Tree::new(attributes(1, 0o755));
    let root = tree.root();
    let [dir, _] = [&b"dir"[..], b"other"]
        .map(|name| tree.insert(root, name, attributes(2, 0o755), Body::Directory).unwrap());
    for at in 0..count {
        tree.insert(dir, at.to_string().as_bytes(), attributes(3, 0o755), Body::Directory).unwrap();
    }
    (tree, dir)
}

/// Its link count has two more than a directory has subdirectories, and at most 65,000; with dir_nlink it is 1 for more,
/// which only a directory with an index can have in Linux.
#[test]
fn subdirectories_are_counted_as_far_as_links_go() {
    if tool::missing() {
        return;
    }
    for (features, count, links) in [
        ("dir_nlink", 64_998, Some(65_000)),
        ("dir_nlink", 64_999, Some(1)),
        ("^dir_nlink", 64_998, Some(65_000)),
        ("^dir_nlink", 64_999, None),
        ("dir_nlink,^dir_index", 64_999, None),
    ] {
        let (tree, dir) = crowded(count);
        let edits = [('O', features), ('N', "66000")];
        let params = params(Profile::Ext4K1, &edits, Some(150_000)).unwrap();
        let plan = TreePlan::new(&params, &tree);
        let Some(links) = links else {
            let refused = plan.unwrap_err().to_string();
            assert!(refused.contains("/dir: more than 64998 subdirectories"), "{refused}");
            continue;
        };
        let plan = plan.unwrap();
        let folder = tool::scratch("floe-fill-").unwrap();
        let image = write(&plan, folder.path(), 2).unwrap();
        let judged = oracle::run(image.path(), &["-fn"]).unwrap();
        assert_eq!(judged.exit, Some(0), "{features} {count}: {}", judged.text);
        let checked = floe_check::check(&image, &floe_check::CheckOptions::default()).unwrap();
        assert!(checked.found.is_empty(), "{features} {count}: {:?}", checked.found);
        refuse_one_more(&image, plan.inode_of(dir).unwrap(), links, features == "dir_nlink");
    }
}

/// Makes and moves a directory in one that has as many subdirectories as links can count.
fn refuse_one_more(image: &Image, dir: InodeNr, links: u16, takes_more: bool) {
    let device = MemDevice::new(image.to_vec().unwrap());
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let time = Timestamp { seconds: 1, nanoseconds: 0 };
    let caller = Caller { uid: 0, gid: 0, time, may_use_reserve: true };
    volume.begin_writing(&mut tx, time).unwrap();
    assert_eq!(volume.inode(&mut tx, dir).unwrap().base.links_count, links);
    let made = volume.create(&mut tx, &caller, dir, b"new", &NewInode::directory(0o755));
    assert_eq!(made.is_ok(), takes_more);
    assert!(takes_more || matches!(made, Err(OpError::TooManyLinks)), "{made:?}");
    let (from, to) = ((InodeNr::ROOT, &b"other"[..]), (dir, &b"other"[..]));
    let moved = volume.rename(&mut tx, &caller, from, to, Default::default());
    assert!(takes_more || matches!(moved, Err(OpError::TooManyLinks)), "{:?}", moved.err());
    assert_eq!(moved.is_ok(), takes_more);
}
