//! Base images that Floe makes: a native file system and rext3, with some files. Shared by the targets that know how to repair or to mount
//! them.

use floe_blockdev::MemDevice;
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::{Volume, seal};
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::inode::Timestamp;
use floe_testkit::Contents;
use floe_testkit::damage::script::{Maker, Stage};
use floe_testkit::{Image, tool};

const NOW: Timestamp = Timestamp { seconds: tool::NOW as i64, nanoseconds: 0 };
const SIZE_BYTES: u64 = 24 << 20;
/// Bytes that are copied at once, unless all are zero.
const CHUNK: usize = 4096;

/// The stage of a maker.
#[allow(clippy::expect_used, reason = "a test needs its base image")]
pub(crate) fn stage(maker: Maker) -> Stage {
    let made = match maker {
        Maker::Mke2fs(profile) => Stage::new(profile),
        Maker::Native => Stage::of(contents(FsType::Native, "lot_size=8m,region_size=256k")),
        Maker::Rext3 => Stage::of(contents(FsType::Rext3, "")),
    };
    made.expect("the base image is built")
}

#[allow(clippy::expect_used, reason = "a test needs its base image")]
fn contents(kind: FsType, extended: &str) -> Contents {
    let mut options = Options::of_type(kind);
    options.set('N', "600").expect("a number of inodes");
    if kind == FsType::Rext3 {
        options.set('b', "1024").expect("a size of blocks");
        options.set('J', "size=2").expect("a size of the journal");
    } else {
        options.set('E', extended).expect("extended options");
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let params = options.params(SIZE_BYTES, None, &fresh).expect("what fits");
    let device = MemDevice::new(vec![0; SIZE_BYTES as usize]);
    mkfs::write(&Plan::new(&params).expect("a plan"), &device).expect("it is written");
    let opened = match kind {
        FsType::Rext3 => Volume::open_rext3(&device),
        _ => Volume::open(&device),
    };
    fill(&mut opened.expect("it opens"), &device);
    if kind == FsType::Native {
        seal(&device).expect("it is sealed");
    }
    let image = Image::empty(SIZE_BYTES).expect("an image");
    for (at, chunk) in (0..).step_by(CHUNK).zip(device.to_vec().chunks(CHUNK)) {
        if chunk.iter().any(|byte| *byte != 0) {
            image.write(at, chunk).expect("it is copied");
        }
    }
    Contents::read(image.path()).expect("it is read")
}

#[allow(clippy::expect_used, reason = "a test needs its base image")]
fn fill(volume: &mut Volume, device: &MemDevice) {
    let mut tx = DirectTx::new(device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).expect("it is writable");
    for at in 0u8..4 {
        let (name, new) = (format!("dir{at}"), NewInode::directory(0o755));
        let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new);
        let dir = dir.expect("a directory");
        for file in 0u8..8 {
            let name = format!("{file}{}", "n".repeat(60));
            let new = NewInode::regular(0o644);
            let file_nr = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new);
            let bytes = vec![at + 1; 3000 << (file % 6)];
            let file_nr = file_nr.expect("a file");
            let written = volume.write(&mut tx, device, &caller, file_nr, 0, &bytes);
            written.expect("its content");
        }
    }
    volume.end_writing(&mut tx, NOW).expect("it ends");
    tx.commit().expect("all is written");
}
