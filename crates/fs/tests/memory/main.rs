//! The file system in memory against a sequential model, whatever is flushed when: answers, what the disk has, and what `fsync`
//! promises.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

mod acts;

use std::collections::BTreeSet;

use floe_format::InodeNr;
use floe_fs::{FsError, Limits, MemFs, NullDisk, Store};
use proptest::prelude::*;

use acts::{Act, act, consistent, find, run, same, tree};

fn outcome(result: &Result<(), FsError>) -> String {
    format!("{:?}", result.as_ref().map_err(ToString::to_string))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Any calls, with little that may wait: programs see what they would see without a memory in between; the disk is
    /// consistent after every call, has what was fsynced, never loses it, and has all at the end.
    #[test]
    fn memory_answers_like_the_disk_and_keeps_the_promises(
        acts in prop::collection::vec(act(), 1..60),
        records in prop::sample::select(vec![3usize, 20, 1000]),
        content_bytes in prop::sample::select(vec![4096u64, 1 << 20]),
        clean_inodes in prop::sample::select(vec![0usize, 1000]),
    ) {
        let model = NullDisk::new(1000, 100_000);
        let limits = Limits { records, content_bytes, clean_inodes, clean_names: 1000 };
        let memory = MemFs::new(NullDisk::new(1000, 100_000), limits);
        let mut durable: BTreeSet<InodeNr> = BTreeSet::new();
        for (turn, act) in (0..).zip(&acts) {
            let wanted = run(&model, turn, act);
            let got = run(&memory, turn, act);
            prop_assert_eq!(outcome(&got), outcome(&wanted), "call {}: {:?}", turn, act);
            let (seen, model) = (tree(&memory), tree(&model));
            same(&seen, &model).map_err(|why| TestCaseError::fail(format!("call {turn}: {why}")))?;
            let disk = tree(memory.lower());
            consistent(&disk).map_err(TestCaseError::fail)?;
            let on_disk = |inode| disk.values().find(|seen| seen.inode == inode);
            if let (Act::Fsync(path), Ok(())) = (act, &got) {
                let inode = find(&memory, path).unwrap();
                durable.insert(inode);
                let now = seen.values().find(|seen| seen.inode == inode).unwrap();
                prop_assert_eq!(on_disk(inode), Some(now), "fsync of {}", path);
                let names = |store: &dyn Fn(InodeNr) -> Vec<Box<[u8]>>| store(inode);
                if now.state.starts_with("Directory") {
                    let list = |store: &dyn Store| -> Vec<Box<[u8]>> {
                        let names = store.directory(inode).unwrap();
                        names.behind(0).map(|(_, entry)| entry.name.clone()).collect()
                    };
                    prop_assert_eq!(
                        names(&|_| list(memory.lower())), names(&|_| list(&memory)), "fsync of {}", path
                    );
                }
            }
            durable.retain(|inode| seen.values().any(|seen| seen.inode == *inode));
            for inode in &durable {
                prop_assert!(on_disk(*inode).is_some(), "call {} lost {}", turn, inode);
            }
        }
        memory.sync().unwrap();
        prop_assert_eq!(memory.waiting_records(), 0);
        let wanted = tree(&model);
        same(&tree(memory.lower()), &wanted).map_err(TestCaseError::fail)?;
        let disk = memory.finish().unwrap();
        same(&tree(&disk), &wanted).map_err(TestCaseError::fail)?;
    }
}
