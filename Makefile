# The two commands a newcomer needs. Everything else: `cargo xtask --help`.

.PHONY: demo test fuzz static build install install-fsck deb tools clean

# Builds Floe, makes a real ext4 image, damages copies of it, checks, previews, repairs, has e2fsck
# confirm it, and undoes; then fills an image from a folder, mounts it, kills the server, and recovers.
demo:
	@xtask/tools.sh
	@echo "Building Floe (release) ..."
	@cargo build --quiet --release --locked --package floe
	@xtask/demo.sh

# What building and testing needs: installed where that can be done, named where not.
tools:
	@xtask/tools.sh

# The whole test suite.
test:
	@xtask/tools.sh
	@cargo xtask ci

# A quarter of an hour for each fuzz target (docs/fuzzing.md).
fuzz:
	@xtask/tools.sh
	cargo xtask fuzz decode
	cargo xtask fuzz check_image
	cargo xtask fuzz repair_image
	cargo xtask fuzz mount_image

PREFIX ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# One program without any library: for an initramfs, containers and old systems. With musl, a third of the size
# of what glibc links in. It is built twice, the second time tuned by what the first one ran
# (tools/bench/src/tuned.rs): 7 minutes with two cores. `make static TUNE=--plain` builds it once, in 2.
STATIC_TARGET ?= $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p' | sed 's/-gnu$$/-musl/')
STATIC := target/static/floe
PAGES := target/pages
TUNE ?=

static:
	@test -d "$$(rustc --print target-libdir --target $(STATIC_TARGET) 2>/dev/null)" || \
	    rustup target add $(STATIC_TARGET) || \
	    { echo "Missing: Rust, or its library for $(or $(STATIC_TARGET),programs without any other). Get it with rustup: https://rustup.rs" >&2; exit 1; }
	cargo xtask tuned --target $(STATIC_TARGET) --output $(STATIC) $(TUNE)

# Man pages and completions.
$(PAGES): $(wildcard crates/cli/src/*.rs crates/cli/src/*/*.rs) $(wildcard crates/cli/src/*/*/*.rs)
	cargo run --quiet --locked --package floe --features generate -- generate $(PAGES)

# What `make install` installs.
build: $(PAGES)
	cargo build --release --locked --package floe

# The program, its man pages and completions. root often has no Rust: then what somebody else built.
install:
	@if command -v cargo >/dev/null; then $(MAKE) --no-print-directory build; \
	elif ! [ -x target/release/floe ] || ! [ -d $(PAGES) ]; then \
	    echo "Nothing is built, and here is no cargo: run 'make build' as the user who has Rust" >&2; exit 1; fi
	packaging/install.sh target/release/floe $(PAGES) "$(DESTDIR)" $(PREFIX)

# Links that make the program the fsck.ext4 of the system, where no other is there.
install-fsck:
	packaging/fsck-links.sh "$(DESTDIR)" /sbin $(PREFIX)/bin/floe

# Debian packages in target/debian: floe, and floe-fsck, which diverts fsck.ext4. Tested in a root of
# their own.
deb: static $(PAGES)
	packaging/debian.sh $(STATIC) $(PAGES) $(VERSION) target/debian
	@if [ "$$(id -u)" = 0 ]; then packaging/test.sh target/debian; \
	else echo "Made, but not tried: sudo packaging/test.sh target/debian"; fi

clean:
	cargo clean
