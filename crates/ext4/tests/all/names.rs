//! Inserts and removes names in directories of real images, checked by e2fsck: linear blocks, new
//! indexes, splits of leaves and nodes, and roots that gain a level.

use std::collections::BTreeMap;

use floe_ext4::dir::Entry;
use floe_ext4::dir::edit::DirEditor;
use floe_ext4::fs::FileSystem;
use floe_ext4::tx::DirectTx;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_testkit::{Image, Profile, Rng, Volume, build, oracle, tool};

fn clean(image: &Image, what: &str) {
    let verdict = oracle::e2fsck(image).unwrap();
    assert!(verdict.clean(), "{what}: {}", verdict.text);
}

/// Changes the names in `/dir/sub`, all links to `/file`, until they are exactly `wanted`.
fn settle(image: &Image, there: &BTreeMap<Vec<u8>, bool>) -> (u64, bool) {
    let volume = Volume::open(image).unwrap();
    let (parent, number) = (volume.lookup("/dir").unwrap(), volume.lookup("/dir/sub").unwrap());
    let file = volume.lookup("/file").unwrap();
    let mut fs = FileSystem::open(image).unwrap();
    let mut tx = DirectTx::new(image, fs.geometry().clone());
    let mut target = fs.inode(&mut tx, file).unwrap();
    let mut inode = fs.inode(&mut tx, number).unwrap();
    let mut editor = DirEditor::open(&mut tx, &mut fs, &mut inode, parent).unwrap();
    for (name, &wanted) in there {
        if wanted {
            let entry = Entry::new(file, name.clone(), FileType::Regular as u8);
            editor.insert(&entry).unwrap();
            target.base.links_count += 1;
        } else {
            assert_eq!(editor.remove(name).unwrap(), Some(file));
            target.base.links_count -= 1;
        }
    }
    fs.put_inode(&mut tx, &mut inode).unwrap();
    fs.put_inode(&mut tx, &mut target).unwrap();
    fs.finish(&mut tx).unwrap();
    tx.commit().unwrap();
    (inode.size_bytes(), inode.flags().contains(InodeFlags::INDEX))
}

fn names(count: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
    let name = |at| format!("{at:05}-{}", "n".repeat(rng.below(60) as usize)).into_bytes();
    (0..count).map(name).collect()
}

#[test]
fn directories_grow_and_shrink_in_every_form() {
    if tool::missing() {
        return;
    }
    // With blocks of 1 KiB, the root of an index is full at 123 leaves.
    let cases = [
        (Profile::Ext4K1, 6000),
        (Profile::Ext4, 1500),
        (Profile::NoCsum, 1500),
        (Profile::Bigalloc, 1500),
    ];
    for (profile, count) in cases {
        let image = build::base(profile).unwrap();
        let mut rng = Rng::new(7);
        let names = names(count, &mut rng);
        let some = |from: usize, to: usize, wanted: bool| -> BTreeMap<Vec<u8>, bool> {
            names[from..to].iter().map(|name| (name.clone(), wanted)).collect()
        };
        let (size, indexed) = settle(&image, &some(0, 3, true));
        assert!(!indexed, "{profile}: {size} bytes");
        clean(&image, &format!("{profile}, a few"));
        let (size, indexed) = settle(&image, &some(3, count, true));
        assert!(indexed, "{profile}: {size} bytes");
        // More leaves than a root can name: a level was added.
        assert!(profile != Profile::Ext4K1 || size > 200 * 1024, "{profile}: {size} bytes");
        clean(&image, &format!("{profile}, all"));
        settle(&image, &some(0, count / 20, false));
        clean(&image, &format!("{profile}, some less"));
        // The space of removed names is reused.
        let (again, _) = settle(&image, &some(0, count / 20, true));
        assert!(again <= size + 8 * 4096, "{profile}: {size}, then {again} bytes");
        clean(&image, &format!("{profile}, all again"));
        let volume = Volume::open(&image).unwrap();
        let file = volume.lookup("/file").unwrap();
        for name in names.iter().step_by(97) {
            let path = format!("/dir/sub/{}", String::from_utf8_lossy(name));
            assert_eq!(volume.lookup(&path).unwrap(), file, "{profile}");
        }
    }
}
