#!/bin/sh
# install.sh BINARY PAGES ROOT PREFIX: puts the program, its man pages and completions under ROOT/PREFIX.
# BINARY: a release build of floe. PAGES: the folder that `floe generate` wrote.
set -eu

binary=$1 pages=$2 root=$3 prefix=$4
target=$root$prefix
install -D -m 755 "$binary" "$target/bin/floe"
for section in 1 8; do
    for page in "$pages/man$section"/*; do
        install -D -m 644 "$page" "$target/share/man/man$section/$(basename "$page")"
    done
done
for file in "$pages"/bash/*; do
    install -D -m 644 "$file" "$target/share/bash-completion/completions/$(basename "$file")"
done
for file in "$pages"/zsh/*; do
    install -D -m 644 "$file" "$target/share/zsh/site-functions/$(basename "$file")"
done
for file in "$pages"/fish/*; do
    install -D -m 644 "$file" "$target/share/fish/vendor_completions.d/$(basename "$file")"
done
