# tar: a tree of many small files, packed from the mount and unpacked to it again.
from=/usr/include/linux
test -d "$from" || from=/usr/include
tar -C "$from" -cf - . | tar -xf - --one-top-level=tree
diff -r --no-dereference "$from" tree
tar -cf packed.tar tree
tar -df packed.tar
rm -r tree
tar -xf packed.tar
diff -r --no-dereference "$from" tree
