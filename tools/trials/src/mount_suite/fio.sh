# fio: random reads and writes of many sizes, each block verified by its checksum.
fio --name=v --directory=. --size=32m --rw=randrw --bs=4k-64k --verify=crc32c --verify_fatal=1 \
    --numjobs=2 --ioengine=psync --fsync=64
fio --name=direct --directory=. --size=32m --rw=randwrite --bs=4k --verify=crc32c --verify_fatal=1 \
    --direct=1 --ioengine=psync
fio --name=mapped --directory=. --size=16m --rw=randwrite --bs=4k --verify=crc32c --verify_fatal=1 \
    --ioengine=mmap
