//! The kernel's functions for system calls, which fentry and kprobe programs are put on.
//!
//! For each system call the kernel makes wrappers that take the caller's registers: one for its own callers, and one for
//! callers of 32 bits where it serves them. Their names and their one argument have been the same since Linux 4.17
//! (x86-64), 4.19 (arm64) and 6.6 (riscv). They are looked for in the running kernel's type information and compared
//! with the prototype that the programs rely on, before anything is put on them.

use std::collections::BTreeMap;

use super::hooks::{SYSCALLS, Syscall};
use super::rung::Why;
use crate::evidence::btf::LayoutError;
use crate::evidence::btf::Types;
use crate::evidence::btf::functions::{Function, Prototype};

/// `long wrapper(const struct pt_regs *regs)`. <arch/x86/include/asm/syscall_wrapper.h>
const WRAPPER: Prototype = Prototype { parameters: &["pt_regs"], returns: 8 };

/// What the wrapper for the kernel's own callers is called, before the name of the call.
#[cfg(target_arch = "x86_64")]
const PREFIX: &str = "__x64_sys_";
/// What those for callers of 32 bits are called. The first that there is serves them: some calls have one of their own,
/// whose name may carry another prefix, and the others have the common one.
#[cfg(target_arch = "x86_64")]
const PREFIXES_32: &[&str] = &["__ia32_compat_sys_ia32_", "__ia32_compat_sys_", "__ia32_sys_"];
/// Calls of their own that callers of 32 bits have, by the hook's name: `umount(2)` without flags.
#[cfg(target_arch = "x86_64")]
const OWN_32: &[(&str, &str)] = &[("umount", "oldumount")];

/// What the wrapper for the kernel's own callers is called, before the name of the call.
#[cfg(target_arch = "aarch64")]
const PREFIX: &str = "__arm64_sys_";
/// What those for callers of 32 bits are called; most calls have none of their own there.
#[cfg(target_arch = "aarch64")]
const PREFIXES_32: &[&str] = &["__arm64_compat_sys_"];
/// Calls of their own that callers of 32 bits have, by the hook's name: `umount(2)` without flags.
#[cfg(target_arch = "aarch64")]
const OWN_32: &[(&str, &str)] = &[("umount", "oldumount")];

/// What the wrapper for the kernel's own callers is called, before the name of the call.
#[cfg(target_arch = "riscv64")]
const PREFIX: &str = "__riscv_sys_";
/// What those for callers of 32 bits are called.
#[cfg(target_arch = "riscv64")]
const PREFIXES_32: &[&str] = &["__riscv_compat_sys_"];
/// Calls of their own that callers of 32 bits have, by the hook's name.
#[cfg(target_arch = "riscv64")]
const OWN_32: &[(&str, &str)] = &[];

/// One function to put programs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Its name.
    pub(super) function: String,
    /// Its number in the kernel's type information.
    pub(super) number: u32,
    /// The end of the names of the programs for it: the call's name, with `32_` before it for callers of 32 bits.
    pub(super) program: String,
}

/// Where to put programs for one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Targets {
    /// On these.
    Functions(Vec<Target>),
    /// Nowhere: this kernel has no such call.
    NoSuchCall(String),
}

/// The wrappers that this kernel has, of the calls listened to.
#[derive(Clone, Debug)]
pub(super) struct Wrappers(BTreeMap<String, Function>);

impl Wrappers {
    /// Looks for them.
    ///
    /// # Errors
    /// The type information is malformed.
    pub(super) fn look(bytes: &[u8]) -> Result<Self, LayoutError> {
        let types = Types::index(bytes, &[])?;
        let calls = SYSCALLS.iter().map(|call| call.name).chain(OWN_32.iter().map(|&(_, own)| own));
        let prefixes = || std::iter::once(PREFIX).chain(PREFIXES_32.iter().copied());
        let names: Vec<String> =
            calls.flat_map(|call| prefixes().map(move |prefix| format!("{prefix}{call}"))).collect();
        let found = types.functions(&names, WRAPPER)?;
        Ok(Self(found.into_iter().map(|(name, function)| (name.to_owned(), function)).collect()))
    }

    /// Where to put the programs of a call, on all of which they have to be.
    ///
    /// # Errors
    /// There is no such function, or one is not what the programs take it for.
    pub(super) fn of(&self, call: &Syscall) -> Result<Targets, Why> {
        let own = format!("{PREFIX}{}", call.name);
        let Some(number) = self.number(&own)? else {
            if call.may_be_absent && self.0.contains_key(&format!("{PREFIX}mount")) {
                return Ok(Targets::NoSuchCall(format!("this kernel has no such system call: no function {own}")));
            }
            return Err(Why::Absent(format!("the kernel's type information has no function {own}")));
        };
        let mut targets = vec![Target { function: own, number, program: call.name.to_owned() }];
        let others = OWN_32.iter().filter(|(hook, _)| *hook == call.name).map(|&(_, own)| own);
        for name in std::iter::once(call.name).chain(others) {
            for prefix in PREFIXES_32 {
                let function = format!("{prefix}{name}");
                if let Some(number) = self.number(&function)? {
                    targets.push(Target { function, number, program: format!("32_{name}") });
                    break;
                }
            }
        }
        Ok(Targets::Functions(targets))
    }

    /// The number of some wrapper, to try with what the kernel permits.
    pub(super) fn any(&self) -> Option<u32> {
        self.0.values().find_map(|function| match function {
            Function::Fits(number) => Some(*number),
            Function::Differs(_) => None,
        })
    }

    fn number(&self, name: &str) -> Result<Option<u32>, Why> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Function::Fits(number)) => Ok(Some(*number)),
            Some(Function::Differs(how)) => {
                Err(Why::Refused(format!("{name} is not what the programs rely on: {how}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrappers(functions: &[(&str, Function)]) -> Wrappers {
        Wrappers(functions.iter().map(|(name, function)| ((*name).to_owned(), function.clone())).collect())
    }

    fn call(name: &str) -> &'static Syscall {
        SYSCALLS.iter().find(|call| call.name == name).expect("a call")
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn callers_of_32_bits_are_met_where_they_come_by() {
        let found = wrappers(&[
            ("__x64_sys_clone", Function::Fits(1)),
            ("__ia32_sys_clone", Function::Fits(2)),
            ("__ia32_compat_sys_ia32_clone", Function::Fits(3)),
            ("__x64_sys_umount", Function::Fits(4)),
            ("__ia32_sys_umount", Function::Fits(5)),
            ("__ia32_sys_oldumount", Function::Fits(6)),
        ]);
        let programs = |name| match found.of(call(name)) {
            Ok(Targets::Functions(targets)) => {
                targets.into_iter().map(|target| (target.number, target.program)).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(programs("clone"), [(1, "clone".to_owned()), (3, "32_clone".to_owned())]);
        let umount = [(4, "umount".to_owned()), (5, "32_umount".to_owned()), (6, "32_oldumount".to_owned())];
        assert_eq!(programs("umount"), umount);
    }

    #[test]
    fn a_function_that_is_missing_or_different_is_not_used_and_named() {
        let differs = Function::Differs("it takes 2 arguments and not 1".to_owned());
        let mount = format!("{PREFIX}mount");
        let why = wrappers(&[(&mount, differs)]).of(call("mount")).expect_err("it differs");
        assert!(why.to_string().contains("it takes 2 arguments") && why.to_string().contains(&mount), "{why}");
        assert!(matches!(wrappers(&[]).of(call("mount")), Err(Why::Absent(_))));
        // Only where the others are there does it mean that the call is not.
        assert!(matches!(wrappers(&[]).of(call("open_tree_attr")), Err(Why::Absent(_))));
        let with = wrappers(&[(&mount, Function::Fits(1))]).of(call("open_tree_attr"));
        assert!(matches!(with, Ok(Targets::NoSuchCall(_))), "{with:?}");
    }

    #[test]
    fn this_kernel_has_the_wrappers() {
        let bytes = crate::evidence::btf::vmlinux().expect("this kernel shows its types");
        let wrappers = Wrappers::look(&bytes).expect("they are understood");
        for call in SYSCALLS.iter().filter(|call| !call.may_be_absent) {
            assert!(matches!(wrappers.of(call), Ok(Targets::Functions(_))), "{}", call.name);
        }
    }
}
