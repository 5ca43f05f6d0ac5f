//! Rebuilds structures in real images and runs e2fsck: files keep their contents, and e2fsck finds
//! no problem.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use floe_ext4::make::journal_superblock::{EmptyJournal, default_size};
use floe_ext4::make::quota_file::{self, Limits, Usage};
use floe_ext4::map::block_map::{self, MappedRun};
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_ext4::map::mapping::Built;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::ext::quota::{self, BLOCK_SIZE, QuotaKind};
use floe_format::{BlockNr, BlockRun, InodeNr};
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, build, kernel, oracle, tool};

/// Rebuilds the map of a file in the blocks of the old map.
fn rebuilt(volume: &Volume<'_>, inode: InodeNr) -> Result<Built> {
    let bytes = volume.inode_bytes(inode)?;
    let decoded = Inode::decode(&bytes).context("an inode")?;
    let map = volume.map(inode)?;
    let nodes: Vec<BlockNr> = map.nodes.iter().map(|node| node.block).collect();
    let block_size = volume.geometry.block_size;
    Ok(if decoded.flags().contains(InodeFlags::EXTENTS) {
        let seed = volume.geometry.features.metadata_csum().then(|| volume.superblock.seed());
        let form = NodeForm::of(block_size, seed, inode, decoded.base.generation);
        let one =
            |(&logical, &block)| Extent { logical, run: BlockRun::new(block, 1), unwritten: false };
        let extents: Vec<Extent> = map.data.iter().map(one).collect();
        assert!(extent_tree::nodes_needed(&extents, block_size)? <= nodes.len());
        extent_tree::build(&extents, form, &nodes)?
    } else {
        let one = |(&logical, &block)| MappedRun { logical, run: BlockRun::new(block, 1) };
        let runs: Vec<MappedRun> = map.data.iter().map(one).collect();
        let form = volume.geometry.indirect();
        assert_eq!(block_map::nodes_needed(&runs, form), Ok(nodes.len()));
        block_map::build(&runs, form, inode, &nodes)?
    })
}

#[test]
fn files_with_rebuilt_maps_are_whole() {
    if tool::missing() {
        return;
    }
    let profiles = [
        Profile::Ext2K1,
        Profile::Ext3,
        Profile::Ext4,
        Profile::Ext4K1,
        Profile::NoCsum,
        Profile::NoExtents,
        Profile::Bigalloc,
    ];
    for profile in profiles {
        let image = build::base(profile).unwrap();
        let volume = Volume::open(&image).unwrap();
        let mut with_nodes = 0;
        for path in ["/fragmented", "/blocks", "/big"] {
            let inode = volume.lookup(path).unwrap();
            let before = volume.map(inode).unwrap();
            let built = rebuilt(&volume, inode).unwrap();
            // Clear the old nodes, so that a node that is not rewritten does not go unnoticed.
            for node in &before.nodes {
                volume.put_block(node.block, &vec![0xa5; volume.block_bytes()]).unwrap();
            }
            let mut bytes = volume.inode_bytes(inode).unwrap();
            bytes[0x28..0x28 + 60].copy_from_slice(&built.root);
            volume.put_inode(inode, &bytes).unwrap();
            volume.fix_inode(inode).unwrap();
            for (block, contents) in &built.blocks {
                volume.put_block(*block, contents).unwrap();
            }
            let after = volume.map(inode).unwrap();
            assert_eq!(after.data, before.data, "{profile} {path}");
            with_nodes += usize::from(!built.blocks.is_empty());
            // A shallower tree would leave blocks unused, which e2fsck would report.
            assert_eq!(after.nodes.len(), before.nodes.len(), "{profile} {path}");
        }
        assert!(with_nodes > 0, "{profile}: no map has a block of its own");
        let verdict = oracle::e2fsck(&image).unwrap();
        assert!(verdict.clean(), "{profile}: {}", verdict.text);
    }
}

/// All bytes of a file without holes.
fn contents(volume: &Volume<'_>, inode: InodeNr) -> Result<Vec<u8>> {
    let bytes = volume.inode_bytes(inode)?;
    let size_bytes = Inode::decode(&bytes).context("an inode")?.size_bytes();
    let mut file = Vec::new();
    for &block in volume.map(inode)?.data.values() {
        file.extend(volume.block(block)?);
    }
    file.truncate(usize::try_from(size_bytes)?);
    Ok(file)
}

/// The usage recorded in a valid quota file.
fn usage_in(file: &[u8]) -> Result<BTreeMap<u32, Usage>> {
    let mut usage = BTreeMap::new();
    let read = |at: u64, into: &mut [u8; BLOCK_SIZE]| -> Result<()> {
        let at = usize::try_from(at)?;
        into.copy_from_slice(file.get(at..at + BLOCK_SIZE).context("a block of the file")?);
        Ok(())
    };
    let add = |entry: quota::Dquot| {
        let used = Usage { space_bytes: entry.space_bytes, inodes: entry.inodes };
        usage.insert(entry.id, used);
    };
    let blocks = u32::try_from(file.len() / BLOCK_SIZE)?;
    let mut faults = Vec::new();
    quota::walk(blocks, read, add, |fault| faults.push(fault))?;
    anyhow::ensure!(faults.is_empty(), "{faults:?}");
    Ok(usage)
}

#[test]
fn rebuilt_quota_files_are_read_by_others() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Quota).unwrap();
    let volume = Volume::open(&image).unwrap();
    let kinds = [(QuotaKind::User, 3, "user"), (QuotaKind::Group, 4, "group")];
    for (kind, number, name) in kinds {
        let inode = InodeNr(number);
        let old = contents(&volume, inode).unwrap();
        let usage = usage_in(&old).unwrap();
        assert!(usage.len() > 1, "{kind:?}: {usage:?}");
        let mut limits = Limits::of(kind, &old);
        // Limits of an id with usage, and of the next id, which has none.
        let known = *usage.keys().next_back().unwrap();
        let new_id = known ^ 1;
        assert!(!usage.contains_key(&new_id));
        for id in [known, new_id] {
            let mut entry = quota::Dquot::decode(&[0; quota::Dquot::SIZE]);
            (entry.id, entry.block_hard_limit_kib, entry.inode_soft_limit) = (id, 123_456, 789);
            limits.entries.insert(id, entry);
        }
        let new = quota_file::build(kind, &limits, &usage).unwrap();
        assert_eq!(Limits::of(kind, &new), limits);
        assert_eq!(new.len(), old.len(), "as many blocks as mke2fs and debugfs need");
        let blocks = volume.map(inode).unwrap().data.into_values();
        for (block, bytes) in blocks.zip(new.chunks(volume.block_bytes())) {
            volume.put_block(block, bytes).unwrap();
        }
        let request = format!("get_quota {name} {new_id}");
        let told = debugfs(&image, &request).unwrap();
        assert!(told.contains("123456") && told.contains("789"), "{told}");
        let told = debugfs(&image, &format!("list_quota {name}")).unwrap();
        for id in usage.keys() {
            let line =
                told.lines().find(|line| line.split_whitespace().next() == Some(&id.to_string()));
            let line = line.with_context(|| format!("no {name} {id} in {told}")).unwrap();
            let used = usage[id];
            assert!(line.contains(&used.space_bytes.to_string()), "{line}: {used:?}");
        }
    }
    let verdict = oracle::e2fsck(&image).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
    // The kernel reads the quota files when it mounts for writing, and refuses invalid ones.
    let mounts = |image: &Image| {
        kernel::Mounted::new(image.copy()?.path(), "").and_then(kernel::Mounted::unmount)
    };
    match mounts(&build::base(Profile::Quota).unwrap()) {
        Ok(()) => mounts(&image).unwrap(),
        Err(reason) => eprintln!("skipped the kernel, which mounts no quota: {reason:#}"),
    }
}

/// The answer of debugfs.
fn debugfs(image: &Image, request: &str) -> Result<String> {
    let mut command = tool::command("debugfs");
    command.args(["-R", request]).arg(image.path());
    Ok(tool::run(&command, 60)?.text)
}

/// An image of `blocks` blocks of 1 KiB with a journal made by mke2fs, which does not zero it.
fn made(blocks: u64, features: &str) -> Result<Image> {
    let image = Image::empty(blocks * 1024)?;
    let late = "lazy_journal_init=1,lazy_itable_init=1,nodiscard";
    let features = format!("^resize_inode,{features}");
    let options = ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "16", "-E", late, "-O", &features];
    let mut command = tool::command("mke2fs");
    command.args(options).arg(image.path());
    tool::run(&command, 60)?.expect("mke2fs", &[0])?;
    Ok(image)
}

#[test]
fn new_journals_are_those_of_mke2fs() {
    if tool::missing() {
        return;
    }
    let steps = [2048, 32_768, 262_144, 524_288, 4_194_304, 8_388_608, 16_777_216, 33_554_432];
    let cases = steps
        .iter()
        .flat_map(|&step: &u64| [(step - 1, "has_journal"), (step, "has_journal")])
        .chain([(8192, "fast_commit"), (40_000, "fast_commit")]);
    for (blocks, features) in cases {
        let size = default_size(blocks, features == "fast_commit");
        if blocks < 2048 {
            // mke2fs makes the file system, and says that it is too small for a journal.
            assert_eq!(size, None);
            continue;
        }
        let image = made(blocks, features).unwrap();
        let volume = Volume::open(&image).unwrap();
        let map = volume.map(InodeNr::JOURNAL).unwrap();
        let size = size.unwrap();
        assert_eq!(map.data.len(), size.blocks as usize, "{blocks} {features}");
        let uuid = Some(volume.superblock.uuid);
        let ours = EmptyJournal { block_size: 1024, size, sequence: 1, uuid }.superblock();
        let first = map.data.values().next().unwrap();
        assert_eq!(volume.block(*first).unwrap(), ours, "{blocks} {features}");
    }
}
