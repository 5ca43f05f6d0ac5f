# Runs in the guest after it booted, and says what it sees; `scenes.rs` has the rest. A line "tried ..." is
# something that was seen to be so; "failed" ends the scene.
set -u
say() { echo "floe-guest: $*" >/dev/console; }
tried() { say "tried $*"; }
failed() {
    systemctl --failed --no-legend >/dev/console
    say "failed $*"
    end
}
end() {
    journalctl --sync
    say done
    systemctl poweroff --force
    sleep infinity
}
property() { systemctl show --value --property "$2" "$1"; } # UNIT PROPERTY
# The verdict, or whatever else a unit of ours said last in this boot.
verdict() { journalctl --boot --output cat --unit "$1" --identifier floe | grep -E '^(CLEAN|DAMAGED|REPAIRED|floe:)' | tail -n 1; }
seconds() { # SECONDS COMMAND ...: waits until the command succeeds
    local left=$1
    shift
    until "$@"; do
        [ $((left -= 1)) -gt 0 ] || return 1
        sleep 1
    done
}
mounted() { findmnt --noheadings "$1" >/dev/null; }

data='systemd-fsck@dev-disk-by\x2dlabel-data.service'
vault='floe-repair@dev-disk-by\x2dlabel-vault.service'

mended() {
    systemctl is-active --quiet multi-user.target || failed "the system is not up"
    for unit in systemd-fsck-root.service "$data" "$vault"; do
        [ "$(property "$unit" Result)" = success ] || failed "$unit: $(property "$unit" Result)"
        tried "$unit: exit code $(property "$unit" ExecMainStatus), $(property "$unit" ActiveState)"
    done
    for folder in /data /vault; do
        mounted $folder && [ -s $folder/letter ] || failed "$folder is not mounted"
        tried "$folder is mounted"
    done
}

initramfs() {
    [ -s /run/initramfs/fsck.log ] || failed "the initramfs did not check the root"
    [ -e /run/initramfs/fsck-root ] || failed "the initramfs does not say that it checked the root"
    grep -e '^root: ' -e '^fsck exited' /run/initramfs/fsck.log | sed 's/^/floe-guest: tried initramfs: /' >/dev/console
    [ "$(property systemd-fsck-root.service ConditionResult)" = no ] || failed "systemd checked the root, too"
    tried "systemd-fsck-root was left out: the root had been checked"
}

repair-refused() {
    systemctl is-active --quiet multi-user.target || failed "the system is not up"
    # Bit 4: damage is left; 1 besides: what costs nothing was repaired.
    local code
    code=$(property "$vault" ExecMainStatus)
    [ $((code & 4)) = 4 ] || failed "$vault: $code"
    ! mounted /vault || failed "/vault is mounted"
    tried "$vault: $(property "$vault" Result), exit code $code; /vault is not mounted, and the rest is up"
}

emergency() {
    systemctl is-active --quiet emergency.target || failed "this is no emergency"
    [ "$(property "$data" ActiveState)" = failed ] || failed "$data: $(property "$data" ActiveState)"
    ! mounted /data || failed "/data is mounted"
    tried "$data: failed; /data is not mounted; emergency.target is reached"
    # What docs/guide.md tells who sits before it.
    systemctl status 'systemd-fsck*' 2>&1 | grep 'data: THIS NEEDS A PERSON' >/dev/null || failed "systemctl status does not say why"
    floe repair --dry-run /dev/disk/by-label/data >/run/said || [ $? = 1 ] || failed "floe repair: $(tail -n 1 /run/said)"
    tried "systemctl status says why; floe repair --dry-run: $(tail -n 1 /run/said)"
}

units() {
    mkdir -p /srv
    local disk=/dev/vdd
    [ -b $disk ] || disk=/dev/ubdd
    vgcreate --yes vg $disk >/dev/null &&
        lvcreate --yes --size 96M --name srv vg >/dev/null &&
        mke2fs -q -t ext4 /dev/vg/srv && mount /dev/vg/srv /srv && cp -a /etc /srv || failed "no /srv on LVM"

    systemctl start floe-check@srv.service || failed "floe-check@srv: $(verdict floe-check@srv.service)"
    tried "systemctl start floe-check@srv.service: $(verdict floe-check@srv.service)"
    record clean /srv
    grep -q '^floe_check_clean{device="/srv"} 1$' /var/lib/floe/floe-srv.prom || failed "no metrics"
    tried "/var/lib/floe/floe-srv.prom: $(grep '^floe_check_clean' /var/lib/floe/floe-srv.prom)"

    # The timer, whose last time is long ago: it makes up for it at once, but for the random delay.
    rm /var/lib/floe/floe-srv.prom
    mkdir -p /etc/systemd/system/floe-check@.timer.d
    printf '[Timer]\nRandomizedDelaySec=0\n' >/etc/systemd/system/floe-check@.timer.d/now.conf
    mkdir -p /var/lib/systemd/timers
    touch --date '60 days ago' /var/lib/systemd/timers/stamp-floe-check@srv.timer
    systemctl daemon-reload
    systemctl enable --now floe-check@srv.timer || failed "the timer cannot be enabled"
    seconds 60 test -s /var/lib/floe/floe-srv.prom || failed "the timer did not start a check"
    tried "floe-check@srv.timer started a check; next: $(property floe-check@srv.timer NextElapseUSecRealtime)"
    systemctl disable --now floe-check@srv.timer
    seconds 60 eval '[ "$(property floe-check@srv.service ActiveState)" = inactive ]' || failed "the check goes on"

    # A device that is not mounted; then damaged: both units fail.
    umount /srv
    systemctl start floe-check-device@vg-srv.service || failed "floe-check-device@ does not start"
    seconds 60 eval '[ "$(property floe-check-device@vg-srv.service ActiveState)" = inactive ]' ||
        failed "floe-check-device@: $(verdict floe-check-device@vg-srv.service)"
    record clean /dev/vg/srv
    tried "systemctl start floe-check-device@vg-srv.service: $(verdict floe-check-device@vg-srv.service)"
    debugfs -w -R 'clri etc/hostname' /dev/vg/srv 2>/dev/null
    systemctl start floe-check-device@vg-srv.service
    seconds 60 systemctl --quiet is-failed floe-check-device@vg-srv.service || failed "damage: floe-check-device@ did not fail"
    record damaged /dev/vg/srv
    mount /dev/vg/srv /srv
    ! systemctl start floe-check@srv.service || failed "damage: floe-check@ did not fail"
    [ "$(property floe-check@srv.service ExecMainStatus)" = 4 ] || failed "damage: floe-check@: $(property floe-check@srv.service ExecMainStatus)"
    record damaged /srv
    grep -q '^floe_check_clean{device="/srv"} 0$' /var/lib/floe/floe-srv.prom || failed "metrics: damaged is not 0"
    [ -z "$(lvs --noheadings --select 'lv_name=~floe')" ] || failed "a snapshot is left"
    tried "damage: both units fail with exit code 4; no snapshot is left"
    removed
}

# From a system that runs, with a timer and with a file system that floe-repair@ let be mounted.
removed() {
    systemctl enable --now floe-check@srv.timer 2>/dev/null
    sed -i 's/^update_initramfs=.*/update_initramfs=no/' /etc/initramfs-tools/update-initramfs.conf
    dpkg --purge floe-fsck floe >/run/said 2>&1 || failed "purge: $(cat /run/said)"
    grep '^floe: /etc/fstab names floe-repair@' /run/said >/dev/null || failed "purge: no word of /etc/fstab"
    ! systemctl is-active --quiet floe-check@srv.timer || failed "purge: the timer goes on"
    [ -z "$(find /etc/systemd -name 'floe-check@*.timer')" ] || failed "purge: the timer is still enabled"
    [ ! -e /var/lib/floe/floe-srv.prom ] || failed "purge: metrics are left"
    mounted /vault || failed "purge: /vault is not mounted any more"
    fsck.ext4 -V 2>&1 | grep '^e2fsck ' >/dev/null || failed "purge: fsck.ext4 is not e2fsck"
    tried "purge: the timer is stopped and gone; fsck.ext4 is e2fsck; /vault stays mounted, with a word of /etc/fstab"
    dpkg --install /var/tmp/floe.deb /var/tmp/floe-fsck.deb >/run/said 2>&1 || failed "install: $(cat /run/said)"
    fsck.ext4 -V 2>&1 | grep Floe >/dev/null || failed "install: fsck.ext4 is not Floe"
    tried "installed again"
}

# A record of the last check in the journal: VERDICT DEVICE
record() {
    journalctl --sync
    local found
    found=$(journalctl --boot --lines 1 --output json --output-fields=FLOE_VERDICT,FLOE_DEVICE,FLOE_EXIT_CODE,FLOE_SECONDS,MESSAGE \
        MESSAGE_ID=6d3f0b7c5d3e4a5f9b1e2f8c47a09d61 FLOE_DEVICE="$2" FLOE_VERDICT="$1")
    [ -n "$found" ] || failed "no record in the journal: $1 $2"
    tried "journal: $(journalctl --boot --lines 1 --output cat MESSAGE_ID=6d3f0b7c5d3e4a5f9b1e2f8c47a09d61 \
        FLOE_DEVICE="$2" FLOE_VERDICT="$1")"
}

scene=$(sed -n 's/.*floe\.scene=\([a-z-]*\).*/\1/p' /proc/cmdline)
$scene
end
