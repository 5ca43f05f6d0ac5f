# cargo: a crate without dependencies is built, tested and built again.
cargo new -q --lib --vcs none small
cd small
for i in $(seq 60); do
    echo "pub fn f$i(x: u64) -> u64 { x.wrapping_mul($i) }" >>src/lib.rs
    echo "#[test] fn t$i() { assert_eq!(f$i(2), 2 * $i); }" >>src/lib.rs
done
export CARGO_TARGET_DIR=target
cargo test -q --offline
touch src/lib.rs
cargo build -q --offline
cargo build --offline 2>&1 | grep -q Finished
