#!/bin/sh
# install.sh BINARY PAGES ROOT PREFIX: puts the program, its man pages and completions under ROOT/PREFIX, and
# prints what it put there. BINARY: a release build of floe. PAGES: the folder that `floe generate` wrote.
set -eu

binary=$1 pages=$2 root=$3 prefix=$4
target=$root$prefix

put() { # MODE FILE TARGET
    install -D -m "$1" "$2" "$3"
    echo "$3"
}

put 755 "$binary" "$target/bin/floe"
for section in 1 8; do
    for page in "$pages/man$section"/*; do
        put 644 "$page" "$target/share/man/man$section/${page##*/}"
    done
done
for file in "$pages"/bash/*; do
    put 644 "$file" "$target/share/bash-completion/completions/${file##*/}"
done
for file in "$pages"/zsh/*; do
    put 644 "$file" "$target/share/zsh/site-functions/${file##*/}"
done
for file in "$pages"/fish/*; do
    put 644 "$file" "$target/share/fish/vendor_completions.d/${file##*/}"
done
