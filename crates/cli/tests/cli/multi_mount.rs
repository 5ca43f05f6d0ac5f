//! Another machine has a file system on a shared disk mounted: no command of ours writes to it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use floe_format::ext::mmp::Mmp;
use floe_format::ext::superblock::Superblock;

use super::{floe, image};

#[test]
fn no_writer_touches_what_another_machine_has_mounted() {
    let Some(image) = image("mmp") else { return };
    let path = image.path().to_str().unwrap().to_owned();
    // Damage that every repair would mend.
    let bytes = image.to_vec().unwrap();
    let mut raw: [u8; 1024] = bytes[1024..2048].try_into().unwrap();
    let mut superblock = Superblock::decode(&raw);
    let (seed, at) = (superblock.seed(), superblock.mmp_block << (10 + superblock.log_block_size));
    superblock.free_inodes_count = 7;
    superblock.encode_with_checksum(&mut raw);
    image.write(1024, &raw).unwrap();
    let mut damaged = image.to_vec().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let mut mmp = Mmp::decode(bytes[at as usize..][..1024].try_into().unwrap());
            for seq in 1.. {
                let mut bytes = [0; 1024];
                mmp.seq = seq;
                mmp.encode_into(&mut bytes);
                mmp.checksum = Mmp::compute_checksum(seed, &bytes);
                mmp.encode_into(&mut bytes);
                file.write_all_at(&bytes, at).unwrap();
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(300));
            }
        });
        thread::sleep(Duration::from_secs(1));
        for line in [
            &["repair", "-y"][..],
            &["repair", "-y", "-b", "2049"],
            &["fsck", "-fy"],
            &["mkfs", "-F"],
        ] {
            let ran = floe(&[line, &[path.as_str()]].concat());
            let said = format!("{line:?}: {}{}", ran.out, ran.err);
            if ran.code != 8
                || !ran.err.contains("waiting 11 seconds")
                || !ran.err.contains("mmp-in-use")
            {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
                panic!("{said}");
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let mut now = image.to_vec().unwrap();
    for bytes in [&mut damaged, &mut now] {
        bytes[at as usize..][..1024].fill(0);
    }
    assert!(now == damaged, "something else was written");
}
