//! Builds the BPF programs from source, for the binary to embed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use object::build::elf::{Builder, SectionData};

#[path = "../xtask/src/toolchain.rs"]
mod toolchain;

use toolchain::{BPF_TARGET, DESCRIPTION, Toolchain, directory};

fn main() -> ExitCode {
    match build() {
        Ok(object) => {
            println!("cargo::rustc-env=RECLAIM_BPF_OBJECT={}", object.display());
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            println!("cargo::error={sentence}");
            ExitCode::SUCCESS
        }
    }
}

/// Path of the object, or one sentence that says what to do.
fn build() -> Result<PathBuf, String> {
    let variable = |name: &str| {
        env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("cargo did not set {name} for the build script."))
    };
    let manifest_directory = variable("CARGO_MANIFEST_DIR")?;
    let out_directory = variable("OUT_DIR")?;
    let workspace = manifest_directory.parent().unwrap_or(Path::new("/"));

    for input in ["reclaim-ebpf/src", "reclaim-ebpf/Cargo.toml", "Cargo.lock", "xtask/src/toolchain.rs"] {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    for name in ["RECLAIM_TOOLCHAIN_DIR", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let missing = "The BPF toolchain is not set up: run `cargo xtask setup`.";
    let folder = directory()
        .ok_or("The BPF toolchain has no place: set RECLAIM_TOOLCHAIN_DIR or HOME and run `cargo xtask setup`.")?;
    println!("cargo::rerun-if-changed={}", folder.join(DESCRIPTION).display());
    let toolchain = Toolchain::read(&folder)
        .map_err(|error| {
            format!(
                "The description of the BPF toolchain in {} cannot be read ({error}): run `cargo xtask setup`.",
                folder.display()
            )
        })?
        .ok_or(missing)?;

    // Beside the outer cargo's profiles (OUT_DIR is <target>/<profile>/build/<package>/out), so that all of them share
    // one build; not inside, for the outer cargo holds the lock there while this script runs.
    let target_directory = out_directory.ancestors().nth(4).unwrap_or(&out_directory).join("bpf");
    let output = toolchain
        .command("build", &target_directory)
        .args(["--package", "reclaim-ebpf", "--bin", "reclaim-ebpf", "--locked"])
        .current_dir(workspace)
        .output()
        .map_err(|error| format!("{} does not start ({error}): run `cargo xtask setup`.", toolchain.cargo.display()))?;
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        return Err(format!(
            "The BPF programs do not build ({}): see what {} said.",
            output.status,
            toolchain.cargo.display()
        ));
    }
    let built = target_directory.join(BPF_TARGET).join("release/reclaim-ebpf");
    let object = out_directory.join("reclaim-ebpf");
    let bytes = fs::read(&built).map_err(|error| format!("{} cannot be read ({error}).", built.display()))?;
    let bytes = without_debug_sections(&bytes)
        .map_err(|error| format!("The debug sections of {} cannot be left out ({error}).", built.display()))?;
    fs::write(&object, bytes).map_err(|error| format!("{} cannot be written ({error}).", object.display()))?;
    Ok(object)
}

/// The object without DWARF, which is most of it, and which the loader would read each time. The types that the kernel
/// wants to know are in sections of their own, made from it.
fn without_debug_sections(object: &[u8]) -> Result<Vec<u8>, object::build::Error> {
    let mut builder = Builder::read(object)?;
    let is_debug = |name: &[u8]| name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    for section in builder.sections.iter_mut().filter(|section| is_debug(&section.name)) {
        section.delete = true;
    }
    builder.delete_orphans();
    // LLVM keeps the names of sections among those of symbols, which the builder does not.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.data = SectionData::SectionString;
    let mut written = Vec::new();
    builder.write(&mut written)?;
    Ok(written)
}
