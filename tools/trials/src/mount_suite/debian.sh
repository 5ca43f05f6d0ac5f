# A Debian system: debootstrap, then apt inside installs and removes a package. Needs a network.
debootstrap --variant=minbase bookworm root >"$SCRATCH/log" 2>&1 || { tail "$SCRATCH/log"; exit 1; }
cp /etc/resolv.conf root/etc/
chroot root apt-get -q -o APT::Sandbox::User=root update
chroot root apt-get -q -y --no-install-recommends install less
chroot root dpkg --verify
chroot root apt-get -q -y purge less
chroot root dpkg --audit
