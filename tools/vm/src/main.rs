//! Trials of Floe with Linux in a guest; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe_vm::main()
}
