//! The `reclaim` program. Everything is in the library; this hands over the arguments and hands back the exit code.

fn main() -> std::process::ExitCode {
    reclaim_user::cli::main()
}
