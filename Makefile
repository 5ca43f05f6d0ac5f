# The two commands a newcomer needs. Everything else: `cargo xtask --help`.

.PHONY: demo test fuzz tools clean

# Builds Floe, makes a real ext4 image, damages copies of it, checks, previews, repairs, has e2fsck
# confirm it, and undoes.
demo:
	@xtask/tools.sh
	@echo "Building Floe (release) ..."
	@cargo build --quiet --release --locked --package floe
	@xtask/demo.sh

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

clean:
	cargo clean
