"""The same random calls on two mounts: prints each call that they answer differently, and trees that differ.

Arguments: the two folders, the first seed, seeds, calls for each. Exits with 1 if anything differs.
"""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import stat
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
GET_FLAGS, SET_FLAGS = 0x80086601, 0x40086602
AT_CWD, AT_SYMLINK_FOLLOW = -100, 0x400
NAMES = ["a", "b", "d1", "d2", "d1/x", "d1/y", "d2/x", "d2/s", "d1/s/z", "d1/s", "ln"]
ODD_NAMES = ["d2/" + "n" * 255, "d2/" + "n" * 256, "d1/.", "d1/..", "a/x", "nope/x", "", "d2/x/"]
ATTRIBUTES = ["user.a", "user.b", "user." + "q" * 250, "trusted.t", "security.s", "foo.x"]
ACLS = ["system.posix_acl_access", "system.posix_acl_default"]
OFFSETS = [0, 1, 511, 4095, 4096, 5000, 65536, 100000, 1 << 20, 1 << 31, (1 << 32) + 5]
LENGTHS = [0, 1, 10, 4096, 5000, 70000]
# With FUSE, whether a file is immutable is asked last, by ext4 first. An access list that is not there may be removed from it.
# This process may lack CAP_SYS_RESOURCE.
REFUSED_AS_WELL = {"EACCES", "EISDIR", "ENOTDIR", "EINVAL", "ENOTSUP"}


def are_alike(what, answers):
    """Whether both mounts answer the same, but for the order in which they look."""
    theirs, ours = answers
    if theirs == "EPERM":
        return ours == theirs or ours in REFUSED_AS_WELL or (what, ours) == ("remove", None)
    return ours == theirs


def checked(result):
    """The result of a call of the C library, or its error."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


class Opened:
    """A file that is closed again."""

    def __init__(self, path, flags, mode=0o644):
        self.number = os.open(path, flags | os.O_NONBLOCK, mode)

    def __enter__(self):
        return self.number

    def __exit__(self, *_):
        os.close(self.number)


def access_list(rand):
    entries = [(1, 7, -1), (2, rand.randrange(8), rand.choice([0, 1000, 1001]))]
    entries += [(tag, rand.randrange(8), -1) for tag in (4, 16, 32)]
    if rand.random() < 0.2:
        entries.pop(rand.randrange(len(entries)))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def file_call(what, path, rand, at, size):
    flags = {"read": os.O_RDONLY, "append": os.O_WRONLY | os.O_APPEND}.get(what, os.O_RDWR)
    content = bytes([1 + rand.randrange(255)]) * size
    with Opened(path, flags | (os.O_DIRECT if what == "direct" else 0)) as file:
        if what == "write":
            return os.pwrite(file, content, at)
        if what == "append":
            return os.write(file, content)
        if what == "read":
            return hashlib.md5(os.pread(file, 70000, at)).hexdigest()
        if what == "allocate":
            mode = rand.choice([0, 1, 2, 3, 3, 0x10, 0x11, 0x40, 4, 0x12])
            at = ctypes.c_longlong(min(at, 1 << 31))
            checked(LIBC.fallocate(file, mode, at, ctypes.c_longlong(size)))
            return os.fstat(file).st_size
        if what == "seek":
            # Positions in directories are each file system's own.
            if stat.S_ISREG(os.fstat(file).st_mode):
                return os.lseek(file, at, rand.choice([os.SEEK_DATA, os.SEEK_HOLE]))
        if what == "direct":
            memory = mmap.mmap(-1, 8192)
            memory[:] = bytes([1 + rand.randrange(255)]) * 8192
            call = rand.choice([os.pwritev, os.preadv])
            return call(file, [memory], min(at, 1 << 31) & ~4095)
        if what == "map":
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode) and 0 < found.st_size < 200000:
                with mmap.mmap(file, found.st_size) as memory:
                    memory[found.st_size // 2] = rand.randrange(256)
        return None


def name_call(what, path, other, rand):
    if what == "mkdir":
        os.mkdir(path, rand.choice([0o755, 0o2775, 0o1777, 0o700]))
    elif what == "unlink":
        os.unlink(path)
    elif what == "rmdir":
        os.rmdir(path)
    elif what == "rename":
        flags = rand.choice([0, 0, 1, 2, 4, 5, 3, 6, 8])
        checked(LIBC.renameat2(AT_CWD, path, AT_CWD, other, flags))
    elif what == "link":
        flags = rand.choice([0, AT_SYMLINK_FOLLOW])
        checked(LIBC.linkat(AT_CWD, path, AT_CWD, other, flags))
    elif what == "symlink":
        os.symlink(os.path.basename(other) * rand.choice([1, 10, 100]) or b"x", path)
    elif what == "mknod":
        kinds = [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFREG, 0]
        os.mknod(path, rand.choice(kinds) | 0o644, os.makedev(rand.choice([1, 300, 4000]), 70000))
    elif what == "create":
        ways = [os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC, 0, os.O_DIRECTORY]
        flags = rand.choice(ways) | rand.choice([os.O_RDWR, os.O_WRONLY, os.O_RDONLY])
        with Opened(path, flags, rand.choice([0o644, 0o4755, 0o2755, 0o600, 0])):
            pass
    elif what == "tmpfile":
        flags = os.O_TMPFILE | rand.choice([os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_EXCL])
        with Opened(path, flags, 0o640) as file:
            os.write(file, b"temporary")
            place = b"/proc/self/fd/%d" % file
            checked(LIBC.linkat(AT_CWD, place, AT_CWD, other, AT_SYMLINK_FOLLOW))


def attribute_call(what, path, rand, at, size):
    follows = rand.random() < 0.7
    if what == "truncate":
        os.truncate(path, at)
    elif what == "chmod":
        os.chmod(path, rand.choice([0o644, 0o4755, 0o2755, 0o6777, 0o1777, 0o2644, 0]))
    elif what == "chown":
        ids = [rand.choice([0, 1000, -1]) for _ in range(2)]
        os.chown(path, *ids, follow_symlinks=follows)
    elif what == "times":
        both = [(0, 0), (1, 10**18 + 999999999), (-1, -(2**31) * 10**9), (5, 2**31 * 10**9)]
        os.utime(path, ns=rand.choice(both), follow_symlinks=follows)
    elif what == "set":
        name = rand.choice(ATTRIBUTES + ACLS)
        value = access_list(rand) if name in ACLS else b"v" * rand.choice([0, 1, 500, 3000, size])
        os.setxattr(path, name, value, rand.choice([0, 0, 1, 2]), follow_symlinks=follows)
    elif what == "remove":
        os.removexattr(path, rand.choice(ATTRIBUTES + ACLS), follow_symlinks=follows)
    elif what == "list":
        return sorted(os.listxattr(path))
    elif what == "stat":
        found = os.stat(path, follow_symlinks=follows)
        size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
        return (found.st_mode, found.st_uid, found.st_gid, found.st_nlink, size, found.st_rdev)
    elif what == "access":
        return os.access(path, rand.choice([0, 1, 2, 4, 7]))
    elif what == "names":
        return sorted(os.listdir(path))
    elif what == "flags":
        with Opened(path, os.O_RDONLY) as file:
            flags = struct.unpack("I", fcntl.ioctl(file, GET_FLAGS, bytes(4)))[0]
            if rand.random() < 0.5:
                all_flags = [0, 0, 0, 0x10, 0x20, 0x40, 0x80, 8, 0x20000, 0x10000, 0x800000]
                wanted = rand.choice(all_flags)
                fcntl.ioctl(file, SET_FLAGS, struct.pack("I", flags & 0x80000 | wanted))
    return None


FILE_CALLS = ["write", "write", "append", "read", "allocate", "allocate", "seek", "direct", "map"]
NAME_CALLS = ["create", "create", "mkdir", "unlink", "rmdir", "rename", "rename", "rename", "link"]
NAME_CALLS += ["symlink", "mknod", "tmpfile"]
ATTRIBUTE_CALLS = ["truncate", "chmod", "chmod", "chown", "times", "set", "set", "remove", "list"]
ATTRIBUTE_CALLS += ["stat", "stat", "access", "names", "flags"]


def answer(root, what, names, seed, at, size, user):
    """The answer of one call, with the same random choices on each mount."""
    rand = random.Random(seed)
    path, other = (os.path.join(root, name.encode()) for name in names)
    os.setegid(user)
    os.seteuid(user)
    try:
        if what in FILE_CALLS:
            return file_call(what, path, rand, at, size)
        if what in NAME_CALLS:
            return name_call(what, path, other, rand)
        return attribute_call(what, path, rand, at, size)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    finally:
        os.seteuid(0)
        os.setegid(0)


def tree(root):
    """All that programs see below a folder, but for times."""
    seen = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files + [b""]:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            size, content = found.st_size, None
            if stat.S_ISDIR(found.st_mode):
                size = 0
            elif stat.S_ISLNK(found.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(found.st_mode) and size < 3 << 20:
                with open(path, "rb") as file:
                    content = hashlib.md5(file.read()).hexdigest()
            keys = sorted(os.listxattr(path, follow_symlinks=False))
            values = [(key, os.getxattr(path, key, follow_symlinks=False)) for key in keys]
            owner = (found.st_mode, found.st_uid, found.st_gid, found.st_nlink, found.st_rdev)
            seen[os.path.relpath(path, root)] = (owner, size, content, values)
    return seen


def differences(roots, seed, calls):
    rand = random.Random(seed)
    for number in range(calls):
        what = rand.choice(FILE_CALLS + NAME_CALLS + ATTRIBUTE_CALLS)
        names = [rand.choice(NAMES if rand.random() < 0.9 else ODD_NAMES) for _ in range(2)]
        rest = (rand.randrange(1 << 30), rand.choice(OFFSETS), rand.choice(LENGTHS))
        user = rand.choice([0, 1000])
        answers = [answer(root, what, names, *rest, user) for root in roots]
        if not are_alike(what, answers):
            yield f"seed {seed}, call {number}: {what} {names} {rest} by {user}: {answers}"
    trees = [tree(root) for root in roots]
    for path in sorted(set(trees[0]) | set(trees[1])):
        both = [each.get(path) for each in trees]
        if both[0] != both[1]:
            yield f"seed {seed}: {path}: {both}"


def main():
    os.umask(0o022)
    folders, (first, seeds, calls) = sys.argv[1:3], map(int, sys.argv[3:6])
    differ = False
    for seed in range(first, first + seeds):
        roots = [os.fsencode(os.path.join(folder, f"seed{seed}")) for folder in folders]
        for root in roots:
            os.mkdir(root)
            os.chmod(root, 0o777)
        for line in differences(roots, seed, calls):
            print(line)
            differ = True
    sys.exit(differ)


main()
