#!/usr/bin/env bash
# Looks for what building and testing Floe needs; installs what is missing where it can (root on
# Debian or Ubuntu), and says what is missing where it cannot.
set -euo pipefail
cd "$(dirname "$0")/.."
# e2fsprogs lives in sbin, rustup's programs in the home folder.
PATH="$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin"

minimum=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

has() { command -v "$1" >/dev/null 2>&1; }

# Whether the cargo in use is at least as new as Cargo.toml asks for.
rust_is_new_enough() {
    has cargo || return 1
    local have
    have=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$minimum" "${have%%-*}" | sort -V | head -n 1)" = "$minimum" ]
}

packages=()
{ has mke2fs && has debugfs && has e2fsck; } || packages+=(e2fsprogs)
# Rust links its programs with the C compiler.
has cc || packages+=(gcc libc6-dev)

if [ ${#packages[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && has apt-get; then
        echo "Installing ${packages[*]} ..."
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${packages[@]}" >/dev/null
    else
        echo "Missing: ${packages[*]}. As root: apt-get install ${packages[*]}" >&2
        exit 1
    fi
fi

# Tests that compare with these say that they are skipped where there are none.
optional=()
{ has qemu-img && has qemu-io; } || optional+=(qemu-utils)
{ has setfacl && has setfattr; } || optional+=(acl attr)
has zstd || optional+=(zstd)
has mkfs.xfs || optional+=(xfsprogs)
has mkfs.btrfs || optional+=(btrfs-progs)
has ddrescue || optional+=(gddrescue)
# The engines of one check by many machines (docs/fleet.md). PySpark comes from PyPI: see .ci/run.
{ has slurmctld && has slurmd && has sbatch; } || optional+=(slurm-wlm)
has munged || optional+=(munge)
has java || optional+=(default-jre-headless)
python3 -c 'import ensurepip' 2>/dev/null || optional+=(python3-venv)
if [ ${#optional[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && has apt-get; then
    echo "Installing ${optional[*]} for some of the tests ..."
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "${optional[@]}" >/dev/null; } ||
        echo "Cannot be installed here: ${optional[*]}; their tests will be skipped."
fi

if ! rust_is_new_enough && [ "$(id -u)" = 0 ] && has apt-get; then
    # The newest Rust that the distribution has: 'cargo', or on Debian 'rustup', which fetches it.
    offered=$(apt-cache policy cargo 2>/dev/null | sed -n 's/ *Candidate: \([0-9.]*\).*/\1/p')
    if [ -n "$offered" ] &&
        [ "$(printf '%s\n%s\n' "$minimum" "$offered" | sort -V | head -n 1)" = "$minimum" ]; then
        echo "Installing cargo and rustc $offered ..."
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq cargo rustc >/dev/null
    elif apt-cache policy rustup 2>/dev/null | grep -q 'Candidate: [0-9]'; then
        echo "Installing rustup, and with it Rust ..."
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq rustup >/dev/null
        rustup default stable
    fi
fi

if ! rust_is_new_enough; then
    echo "Missing: Rust $minimum or newer (have: $(cargo --version 2>/dev/null || echo none))." >&2
    echo "Get it with rustup: https://rustup.rs" >&2
    exit 1
fi
