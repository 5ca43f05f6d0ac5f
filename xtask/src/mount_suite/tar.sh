# tar: a tree of many small files, packed from the mount and unpacked to it again.
tar -C /usr/include -cf - . | tar -xf - --one-top-level=tree
diff -r --no-dereference /usr/include tree
tar -cf packed.tar tree
tar -df packed.tar
rm -r tree
tar -xf packed.tar
diff -r --no-dereference /usr/include tree
