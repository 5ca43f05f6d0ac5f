//! Requests over a carrier in memory, as the kernel sends them.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use floe_check::{CheckOptions, view};
use floe_fs::{FileSystem, Image};
use floe_fuse::abi::Opcode;
use floe_fuse::{MemoryCarrier, ServeOptions, serve};
use floe_testkit::{Profile, build, tool};
use rustix::io::Errno;

/// A request about an inode.
fn request(opcode: Opcode, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(40 + body.len()).unwrap();
    let mut bytes = Vec::new();
    bytes.extend(len.to_le_bytes());
    bytes.extend((opcode as u32).to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(node.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}

/// An answer: the error, which request it belongs to, and what follows.
fn answer(carrier: &MemoryCarrier) -> (i32, u64, Vec<u8>) {
    let bytes = carrier.answer();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(0) as usize, bytes.len());
    let unique = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    (word(4).cast_signed(), unique, bytes[16..].to_vec())
}

/// Serves the image of a profile to `kernel`, after the negotiation.
fn with_server(profile: Profile, kernel: impl FnOnce(&MemoryCarrier)) {
    let image = build::base(profile).unwrap();
    let carrier = MemoryCarrier::default();
    let options = ServeOptions { threads: 2, ..ServeOptions::default() };
    view(&image, &CheckOptions::default(), |files, _| {
        let fs = FileSystem::new(Image::new(files));
        let log = |_: &str| {};
        floe_sync::thread::scope(|scope| {
            let server = scope.spawn(|| serve(&carrier, &fs, &options, &log, || {}));
            let offer: Vec<u8> = [7, 45, 131_072, u32::MAX]
                .iter()
                .flat_map(|word: &u32| word.to_le_bytes())
                .collect();
            carrier.ask(request(Opcode::Init, 1, 0, &[&offer[..], &[0xff; 48]].concat()));
            let (error, unique, taken) = answer(&carrier);
            assert_eq!((error, unique, taken.len()), (0, 1, 64));
            kernel(&carrier);
            carrier.unmount();
            server.join().unwrap().unwrap();
        });
    })
    .unwrap();
}

/// Arguments of a read: a handle, an offset, a size, and what does not matter.
fn range(offset: u64, size: u32) -> Vec<u8> {
    [&[0; 8][..], &offset.to_le_bytes(), &size.to_le_bytes(), &[0; 20]].concat()
}

#[test]
fn a_file_is_found_and_read() {
    if tool::missing() {
        return;
    }
    with_server(Profile::Ext4, |kernel| {
        kernel.ask(request(Opcode::Lookup, 2, 1, b"file\0"));
        let (error, _, entry) = answer(kernel);
        assert_eq!((error, entry.len()), (0, 128));
        let node = u64::from_le_bytes(entry[..8].try_into().unwrap());
        kernel.ask(request(Opcode::Read, 3, node, &range(1498, 4096)));
        let (error, unique, bytes) = answer(kernel);
        assert_eq!((error, unique, bytes.len()), (0, 3, 2), "the end of 1500 bytes");
        kernel.ask(request(Opcode::Lookup, 4, 1, b"no such name\0"));
        let (error, _, entry) = answer(kernel);
        assert_eq!((error, &entry[..8]), (0, &[0; 8][..]), "an absence, which the kernel keeps");
    });
}

#[test]
fn changes_and_nonsense_are_refused_and_the_server_goes_on() {
    if tool::missing() {
        return;
    }
    let error = |errno: Errno| -errno.raw_os_error();
    with_server(Profile::Ext4, |kernel| {
        kernel.ask(request(Opcode::Mkdir, 2, 1, b"\0\0\0\0\0\0\0\0new\0"));
        assert_eq!(answer(kernel).0, error(Errno::ROFS));
        kernel.ask(request(Opcode::Lookup, 3, 1, b"no end"));
        assert_eq!(answer(kernel).0, error(Errno::INVAL));
        kernel.ask(request(Opcode::Getattr, 4, u64::MAX, &[0; 16]));
        assert_eq!(answer(kernel).0, error(Errno::STALE));
        // Nobody to answer.
        kernel.ask(vec![1, 2, 3]);
        let mut unknown = request(Opcode::Getattr, 5, 1, &[0; 16]);
        unknown[4] = 200;
        kernel.ask(unknown);
        assert_eq!(answer(kernel).0, error(Errno::NOSYS));
        kernel.ask(request(Opcode::Getattr, 6, 1, &[0; 16]));
        assert_eq!(answer(kernel).0, 0);
    });
}

#[test]
fn a_directory_is_read_on_from_every_cookie() {
    if tool::missing() {
        return;
    }
    with_server(Profile::Ext4, |kernel| {
        let (mut cookie, mut names) = (0, Vec::new());
        loop {
            // Room for one or two names.
            kernel.ask(request(Opcode::Readdir, 2, 1, &range(cookie, 64)));
            let (error, _, mut bytes) = answer(kernel);
            assert_eq!(error, 0);
            if bytes.is_empty() {
                break;
            }
            while !bytes.is_empty() {
                cookie = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                let len = u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
                names.push(bytes[24..24 + len].to_vec());
                bytes.drain(..(24 + len).next_multiple_of(8));
            }
        }
        assert_eq!(names[..2], [b".".to_vec(), b"..".to_vec()]);
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.contains(&b"lost+found".to_vec()));
    });
}
