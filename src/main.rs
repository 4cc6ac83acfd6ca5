//! The operator's tool for the machines that come with the crate: `foldlog --help`.

fn main() -> std::process::ExitCode {
    foldlog::cli::main()
}
