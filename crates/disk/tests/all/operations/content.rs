//! The model's changes to the content of files.

use floe_disk::ops::{OpError, RangeMode, Step};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};

use super::model::Model;

impl Model<'_> {
    pub(super) fn write(&mut self) {
        let Some(file) = self.pick(|one| one.kind == FileType::Regular) else { return };
        let size = self.objects[&file].bytes.len() as u64;
        let at = match self.rng.below(4) {
            0 => size,
            1 => self.rng.below(self.most_file),
            _ => self.rng.below(size + 1),
        };
        let most = if self.rng.chance(3) { 20_000 } else { 300 };
        let len = 1 + self.rng.below(most);
        let mut bytes = vec![0; len as usize];
        self.rng.fill(&mut bytes);
        let caller = self.caller();
        match self.volume.write(&mut self.tx, self.device, &caller, file, at, &bytes) {
            Ok(()) => {
                let content = &mut self.at(file).bytes;
                let end = (at + len) as usize;
                content.resize(content.len().max(end), 0);
                content[at as usize..end].copy_from_slice(&bytes);
            }
            Err(OpError::NoSpace) => {
                // Bytes that were there may be overwritten.
                let inode = self.volume.inode(&mut self.tx, file).unwrap();
                let mut content = vec![0; size as usize];
                let volume = &self.volume;
                volume.read(&mut self.tx, self.device, &inode, 0, &mut content).unwrap();
                self.at(file).bytes = content;
            }
            Err(error) => panic!("write: {error:?}"),
        }
    }

    pub(super) fn finish(&mut self, inode: InodeNr) {
        let caller = self.caller();
        while self.volume.finish_orphan(&mut self.tx, self.device, &caller, inode).unwrap()
            == Step::More
        {
            self.commit();
        }
    }

    pub(super) fn truncate(&mut self) {
        let Some(file) = self.pick(|one| one.kind == FileType::Regular) else { return };
        let size = self.rng.below(self.most_file);
        let caller = self.caller();
        while self.volume.truncate(&mut self.tx, self.device, &caller, file, size).unwrap()
            == Step::More
        {
            self.commit();
        }
        self.at(file).bytes.resize(size as usize, 0);
        if self.objects[&file].links == 0 {
            // Cutting a file without names may not forget that it is an orphan.
            assert!(self.volume.orphans().contains(&file));
        }
    }

    pub(super) fn range(&mut self) {
        let Some(file) = self.pick(|one| one.kind == FileType::Regular) else { return };
        let unit =
            u64::from(self.volume.geometry().block_size) << self.volume.geometry().cluster_bits;
        let keep_size = self.rng.chance(2);
        let mode = match self.rng.below(5) {
            0 => RangeMode::Reserve { keep_size },
            1 => RangeMode::Zero { keep_size },
            2 => RangeMode::Punch,
            3 => RangeMode::Collapse,
            _ => RangeMode::Insert,
        };
        let (mut start, mut len) = (self.rng.below(self.most_file), 1 + self.rng.below(30_000));
        if matches!(mode, RangeMode::Collapse | RangeMode::Insert) {
            (start, len) = (start / unit / 3 * unit, (len / unit / 2).max(1) * unit);
        }
        let caller = self.caller();
        loop {
            let range = start..start + len;
            match self.volume.change_range(&mut self.tx, self.device, &caller, file, mode, range) {
                Ok(Step::Done) => break,
                Ok(Step::More) => self.commit(),
                Err(OpError::Invalid(_)) => {
                    let size = self.objects[&file].bytes.len() as u64;
                    let end = if mode == RangeMode::Insert { start } else { start + len };
                    return assert!(end >= size, "{mode:?} {start} {len} {size}");
                }
                Err(OpError::Unsupported(_)) => {
                    let inode = self.volume.inode(&mut self.tx, file).unwrap();
                    return assert!(!inode.flags().contains(InodeFlags::EXTENTS));
                }
                // Steps before may have done a part, which is known again by reading it.
                Err(OpError::NoSpace) => {
                    let inode = self.volume.inode(&mut self.tx, file).unwrap();
                    let mut bytes = vec![0; inode.size_bytes() as usize];
                    let volume = &self.volume;
                    volume.read(&mut self.tx, self.device, &inode, 0, &mut bytes).unwrap();
                    self.at(file).bytes = bytes;
                    return;
                }
                Err(error) => panic!("{mode:?}: {error:?}"),
            }
        }
        let bytes = &mut self.at(file).bytes;
        let (from, to, size) = (start as usize, (start + len) as usize, bytes.len());
        match mode {
            RangeMode::Collapse => drop(bytes.drain(from..to)),
            RangeMode::Insert => drop(bytes.splice(from..from, vec![0; len as usize])),
            _ => {
                let grows = !keep_size && mode != RangeMode::Punch;
                if !matches!(mode, RangeMode::Reserve { .. }) && from < size {
                    bytes[from..to.min(size)].fill(0);
                }
                if grows && to > size {
                    bytes.resize(to, 0);
                }
            }
        }
    }
}
