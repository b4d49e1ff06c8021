//! Offsets of kernel structure members, from the running kernel's own type information.
//!
//! The programs are compiled without knowing the kernel they will run on. This reads the few structures they look
//! into from BTF: one pass over the type section that notes where each type begins, then look-ups. What is not found
//! is an error that names it; there is no default offset.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reclaim_ebpf::abi::Layout;
use thiserror::Error;

use super::lacking::{self, lacks};
use crate::sys::kernel_types::{KernelTypes, VMLINUX};

pub(super) mod functions;

/// Where the registers of a system call keep its number and its first argument.
/// Last, the first argument of a caller of 32 bits. <arch/x86/include/asm/syscall_wrapper.h>
#[cfg(target_arch = "x86_64")]
const REGS: [&str; 3] = ["orig_ax", "di", "bx"];
/// Where the registers of a system call keep its number and its first argument.
#[cfg(target_arch = "aarch64")]
const REGS: [&str; 3] = ["syscallno", "orig_x0", "orig_x0"];
/// Where the registers of a system call keep its number and its first argument.
#[cfg(target_arch = "riscv64")]
const REGS: [&str; 3] = ["a7", "orig_a0", "orig_a0"];

/// Why the offsets are not to be had.
#[derive(Clone, Debug, Error)]
pub enum LayoutError {
    /// The file cannot be read.
    #[error(
        "cannot read kernel type information from {path}; the kernel needs CONFIG_DEBUG_INFO_BTF and a mounted sysfs"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The bytes are not what the format says.
    #[error("kernel type information is malformed at byte {offset}: {what}")]
    Malformed {
        /// Where.
        offset: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// No structure of that name.
    #[error("kernel type information has no struct {structure}")]
    MissingStruct {
        /// The structure.
        structure: &'static str,
    },
    /// Members of the structure lie too far from its start.
    #[error("struct {structure} of this kernel is larger than is read of it at once")]
    TooLarge {
        /// The structure.
        structure: &'static str,
    },
    /// The structure has no such member.
    #[error("struct {structure} of this kernel has no member {member}")]
    MissingMember {
        /// The structure.
        structure: &'static str,
        /// The member, with those it is nested in.
        member: String,
    },
    /// Several structures of that name disagree.
    #[error("kernel type information has several structs {structure} that disagree about {member}")]
    Ambiguous {
        /// The structure.
        structure: &'static str,
        /// The member, with those it is nested in.
        member: String,
    },
    /// The member does not begin on a byte.
    #[error("member {member} of struct {structure} is a bit field, which the programs cannot read")]
    BitField {
        /// The structure.
        structure: &'static str,
        /// The member, with those it is nested in.
        member: String,
    },
}

/// The layout of the running kernel.
///
/// # Errors
/// The type information cannot be read or lacks something that the programs need.
pub fn running_kernel() -> Result<Layout, LayoutError> {
    super::layouts::of_running_kernel()?.probes.clone()
}

/// The layout of the kernel that a file describes.
///
/// # Errors
/// As [`running_kernel`].
pub fn from_file(path: &Path) -> Result<Layout, LayoutError> {
    layout(&opened(path, || std::fs::read(path))?)
}

/// The running kernel's type information.
///
/// # Errors
/// It cannot be read.
pub(super) fn vmlinux() -> Result<KernelTypes, LayoutError> {
    opened(Path::new(VMLINUX), KernelTypes::open)
}

fn opened<T>(path: &Path, open: impl FnOnce() -> io::Result<T>) -> Result<T, LayoutError> {
    let bytes = if lacks("btf") { Err(lacking::answer(io::ErrorKind::NotFound)) } else { open() };
    bytes.map_err(|source| LayoutError::Read { path: path.to_owned(), source: Arc::new(source) })
}

/// The layout of the kernel that BTF bytes describe. Pure.
///
/// # Errors
/// The bytes are malformed or lack something that the programs need.
pub fn layout(bytes: &[u8]) -> Result<Layout, LayoutError> {
    of_types(&Types::index(bytes, &WANTED)?)
}

/// The structures that [`of_types`] looks into.
pub(super) const WANTED: [&str; 6] =
    ["task_struct", "nsproxy", "mnt_namespace", "ns_common", "signal_struct", "pt_regs"];

/// As [`layout`], of types that were found already.
pub(super) fn of_types(types: &Types<'_>) -> Result<Layout, LayoutError> {
    Ok(Layout {
        task_nsproxy: types.offset("task_struct", &["nsproxy"])?,
        nsproxy_count: types.offset("nsproxy", &["count"])?,
        nsproxy_mnt_ns: types.offset("nsproxy", &["mnt_ns"])?,
        mnt_namespace_inum: types.offset("mnt_namespace", &["ns", "inum"])?,
        task_pid: types.offset("task_struct", &["pid"])?,
        task_tgid: types.offset("task_struct", &["tgid"])?,
        task_signal: types.offset("task_struct", &["signal"])?,
        signal_live: types.offset("signal_struct", &["live"])?,
        signal_nr_threads: types.offset("signal_struct", &["nr_threads"])?,
        regs_number: types.offset("pt_regs", &[REGS[0]])?,
        regs_first: types.offset("pt_regs", &[REGS[1]])?,
        regs_first_32: types.offset("pt_regs", &[REGS[2]])?,
        known: 1,
    })
}

/// Where each type of a BTF blob begins, and which of them are the structures asked for.
///
/// Format: <https://docs.kernel.org/bpf/btf.html>, in the byte order of the machine.
pub(super) struct Types<'a> {
    bytes: &'a [u8],
    strings: &'a [u8],
    /// Byte where each type begins; the type numbered n is at n - 1, for 0 means void.
    begins: Vec<u32>,
    /// Numbers of the structures of each wanted name.
    wanted: BTreeMap<&'static str, Vec<u32>>,
}

/// The head of one type.
#[derive(Clone, Copy)]
struct Head {
    name: u32,
    kind: u32,
    members: usize,
    /// Member offsets carry a bit field size in their upper byte.
    bit_fields: bool,
    /// Size in bytes, or the type referred to.
    refers: u32,
}

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
const HEAD: usize = 12;
const MEMBER: usize = 12;

const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_FORWARD: u32 = 7;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_FUNCTION: u32 = 12;
const KIND_TYPE_TAG: u32 = 18;

/// How deep members without a name, and names for types, are followed: far beyond any kernel, and an end for a loop.
const DEPTH: u32 = 32;

impl<'a> Types<'a> {
    pub(super) fn index(bytes: &'a [u8], names: &[&'static str]) -> Result<Self, LayoutError> {
        if half(bytes, 0)? != MAGIC {
            return Err(malformed(0, "not BTF of this machine's byte order"));
        }
        let header = word(bytes, 4)? as usize;
        if header < HEADER {
            return Err(malformed(4, "the header is too short"));
        }
        let section = |place: usize| -> Result<(usize, usize), LayoutError> {
            let begin =
                header.checked_add(word(bytes, place)? as usize).ok_or(malformed(place, "a section begins outside"))?;
            let end = begin
                .checked_add(word(bytes, place + 4)? as usize)
                .filter(|&end| end <= bytes.len())
                .ok_or(malformed(place, "a section ends outside"))?;
            Ok((begin, end))
        };
        let (mut at, end) = section(8)?;
        let (begin, stop) = section(16)?;
        let mut types = Self {
            bytes: &bytes[..end],
            strings: &bytes[begin..stop],
            begins: Vec::with_capacity((end - at) / (2 * HEAD)),
            wanted: BTreeMap::new(),
        };
        while at < end {
            let head = types.head_at(at)?;
            types.begins.push(u32::try_from(at).map_err(|_| malformed(at, "too large"))?);
            if head.kind == KIND_STRUCT
                && head.members > 0
                && let Some(&name) = names.iter().find(|name| types.is_named(head.name, name.as_bytes()))
                && let Ok(number) = u32::try_from(types.begins.len())
            {
                types.wanted.entry(name).or_default().push(number);
            }
            at += HEAD + tail(head).ok_or_else(|| malformed(at, "unknown kind of type"))?;
        }
        if at == end { Ok(types) } else { Err(malformed(at, "the last type ends outside its section")) }
    }

    /// Offset in bytes of a member, given by the names that lead to it.
    pub(super) fn offset(&self, structure: &'static str, path: &[&str]) -> Result<u32, LayoutError> {
        let member = || path.join(".");
        let numbers = self.wanted.get(structure).ok_or(LayoutError::MissingStruct { structure })?;
        let mut found = None;
        for &number in numbers {
            let bits = self.bits(number, path)?;
            let bits = bits.ok_or_else(|| LayoutError::MissingMember { structure, member: member() })?;
            if found.is_some_and(|found| found != bits) {
                return Err(LayoutError::Ambiguous { structure, member: member() });
            }
            found = Some(bits);
        }
        let bits = found.ok_or(LayoutError::MissingStruct { structure })?;
        if bits % 8 != 0 {
            return Err(LayoutError::BitField { structure, member: member() });
        }
        Ok(bits / 8)
    }

    /// The number of a function; none where there is no such function.
    pub(super) fn function(&self, name: &str) -> Result<Option<u32>, LayoutError> {
        for (number, at) in (1..).zip(&self.begins) {
            let head = self.head_at(*at as usize)?;
            if head.kind == KIND_FUNCTION && self.is_named(head.name, name.as_bytes()) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Offset in bits of the member that the names lead to, from the start of a type.
    fn bits(&self, number: u32, path: &[&str]) -> Result<Option<u32>, LayoutError> {
        let mut number = number;
        let mut total = 0u32;
        for name in path {
            let Some((bits, refers)) = self.member(number, name.as_bytes(), DEPTH)? else {
                return Ok(None);
            };
            total = total.checked_add(bits).ok_or(malformed(0, "an offset is too large"))?;
            number = refers;
        }
        Ok(Some(total))
    }

    /// Offset in bits and type of the member of that name, in the type itself or in members of it without a name.
    fn member(&self, number: u32, name: &[u8], depth: u32) -> Result<Option<(u32, u32)>, LayoutError> {
        let Some((at, head)) = self.composite(number)? else {
            return Ok(None);
        };
        let Some(depth) = depth.checked_sub(1) else {
            return Ok(None);
        };
        for index in 0..head.members {
            let place = at + HEAD + index * MEMBER;
            let (label, refers, raw) =
                (word(self.bytes, place)?, word(self.bytes, place + 4)?, word(self.bytes, place + 8)?);
            let bits = if head.bit_fields { raw & 0x00ff_ffff } else { raw };
            if self.is_named(label, name) {
                return Ok(Some((bits, refers)));
            }
            if self.is_named(label, b"")
                && let Some((inner, refers)) = self.member(refers, name, depth)?
            {
                let bits = bits.checked_add(inner).ok_or(malformed(place, "an offset is too large"))?;
                return Ok(Some((bits, refers)));
            }
        }
        Ok(None)
    }

    /// The structure or union that a type is, by whatever name or qualifier.
    fn composite(&self, mut number: u32) -> Result<Option<(usize, Head)>, LayoutError> {
        for _ in 0..DEPTH {
            let place = (number as usize).checked_sub(1).and_then(|index| self.begins.get(index));
            let Some(&at) = place else { return Ok(None) };
            let head = self.head_at(at as usize)?;
            match head.kind {
                KIND_STRUCT | KIND_UNION => return Ok(Some((at as usize, head))),
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_TYPE_TAG => number = head.refers,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    fn head_at(&self, at: usize) -> Result<Head, LayoutError> {
        let info = word(self.bytes, at + 4)?;
        Ok(Head {
            name: word(self.bytes, at)?,
            kind: (info >> 24) & 0x1f,
            members: (info & 0xffff) as usize,
            bit_fields: info >> 31 != 0,
            refers: word(self.bytes, at + 8)?,
        })
    }

    fn is_named(&self, name: u32, wanted: &[u8]) -> bool {
        self.strings
            .get(name as usize..)
            .and_then(|rest| rest.strip_prefix(wanted))
            .is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// BTF in which a function has a given number, and everything before it is a declaration without a name. Only the number
/// counts for whoever loads a program that belongs to the function, and parsing all types of a kernel to find it takes
/// longer than all the rest of loading.
pub(super) fn only(function: &str, number: u32) -> Result<Vec<u8>, LayoutError> {
    let types = number as usize * HEAD;
    let strings = [&b"\0"[..], function.as_bytes(), b"\0"].concat();
    let mut bytes = Vec::with_capacity(HEADER + types + strings.len());
    bytes.extend(MAGIC.to_ne_bytes());
    // Version and flags.
    bytes.extend([1, 0]);
    for word in [HEADER, 0, types, types, strings.len()] {
        bytes.extend(u32::try_from(word).map_err(|_| malformed(0, "too large"))?.to_ne_bytes());
    }
    for each in 1..=number {
        let (name, kind) = if each == number { (1, KIND_FUNCTION) } else { (0, KIND_FORWARD) };
        [name, kind << 24, 0].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    }
    bytes.extend(strings);
    Ok(bytes)
}

/// Bytes that follow the head of a type; none for a kind that the format does not have.
fn tail(head: Head) -> Option<usize> {
    Some(match head.kind {
        // Integer, variable, declaration tag.
        1 | 14 | 17 => 4,
        // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7 | 8 | 9 | 10 | 11 | 12 | 16 | 18 => 0,
        // Array.
        3 => 12,
        // Structure, union, data section, 64 bit enumeration.
        4 | 5 | 15 | 19 => head.members * 12,
        // Enumeration, function prototype.
        6 | 13 => head.members * 8,
        _ => return None,
    })
}

fn malformed(offset: usize, what: &'static str) -> LayoutError {
    LayoutError::Malformed { offset, what }
}

fn word(bytes: &[u8], at: usize) -> Result<u32, LayoutError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|&chunk| u32::from_ne_bytes(chunk))
        .ok_or_else(|| malformed(at, "it ends here"))
}

fn half(bytes: &[u8], at: usize) -> Result<u16, LayoutError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|&chunk| u16::from_ne_bytes(chunk))
        .ok_or_else(|| malformed(at, "it ends here"))
}

#[cfg(test)]
#[path = "btf_tests.rs"]
mod tests;
