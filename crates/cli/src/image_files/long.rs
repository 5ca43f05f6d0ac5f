//! The long format of `floe ls -l`.

use floe_ext4::files::{Node, Timestamp};
use floe_format::ext::inode::FileType;
use floe_report::calendar::date;

/// Mode, links, owner, group, size (or device number) and time of an inode, in columns.
pub(crate) fn line(node: &Node) -> String {
    let size = match node.device_number() {
        Some((major, minor)) => format!("{major}, {minor}"),
        None => node.size_bytes().to_string(),
    };
    format!(
        "{} {:>3} {:>5} {:>5} {:>10} {}",
        mode(node.file_type(), node.permissions()),
        node.links(),
        node.uid(),
        node.gid(),
        size,
        time(node.mtime())
    )
}

/// Type and permissions in ten characters, like ls(1).
fn mode(kind: Option<FileType>, permissions: u16) -> String {
    let kind = match kind {
        Some(FileType::Regular) => '-',
        Some(FileType::Directory) => 'd',
        Some(FileType::CharDevice) => 'c',
        Some(FileType::BlockDevice) => 'b',
        Some(FileType::Fifo) => 'p',
        Some(FileType::Socket) => 's',
        Some(FileType::Symlink) => 'l',
        None => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, set, unset) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = permissions >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (permissions & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A time in UTC, to the second.
fn time(time: Timestamp) -> String {
    const DAY_SECONDS: i64 = 86_400;
    let (year, month, day) = date(time.seconds.div_euclid(DAY_SECONDS));
    let second = time.seconds.rem_euclid(DAY_SECONDS);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_ls() {
        let cases = [
            (FileType::Regular, 0o644, "-rw-r--r--"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Directory, 0o2770, "drwxrws---"),
            (FileType::Regular, 0o6711, "-rws--s--x"),
            (FileType::Regular, 0o7000, "---S--S--T"),
            (FileType::Symlink, 0o777, "lrwxrwxrwx"),
        ];
        for (kind, permissions, text) in cases {
            assert_eq!(mode(Some(kind), permissions), text);
        }
    }

    #[test]
    fn times_are_in_utc() {
        let at = |seconds| time(Timestamp { seconds, nanoseconds: 5 });
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(-1), "1969-12-31 23:59:59");
        assert_eq!(at(11_016 * 86_400 + 3661), "2000-02-29 01:01:01");
    }
}
