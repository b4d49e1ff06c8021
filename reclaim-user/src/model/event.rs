//! Records of the BPF programs, decoded from bytes.
//!
//! A record is taken apart field by field and its tag converted with a check: bytes that the programs of this version
//! never send are an error value, which counts as a lost record.

use std::fmt;

use reclaim_ebpf::abi::{self, EVENT_SIZE, IN_FLIGHT_SIZE};
use thiserror::Error;

/// Where in the kernel something was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// `mount(2)`.
    Mount,
    /// `umount2(2)`.
    Umount,
    /// `move_mount(2)`.
    MoveMount,
    /// `open_tree(2)` or `open_tree_attr(2)`.
    OpenTree,
    /// `fsmount(2)`.
    Fsmount,
    /// `fsconfig(2)`.
    Fsconfig,
    /// `pivot_root(2)`.
    PivotRoot,
    /// `setns(2)`: the thread is in the event's namespace from here on.
    Setns,
    /// `unshare(2)` with `CLONE_NEWNS`: the event's namespace was made.
    Unshare,
    /// A task was made in a mount namespace of its own, by `clone(2)` or `clone3(2)`; the event's thread and namespace
    /// are the made task's.
    Clone,
    /// `clone3(2)` as a call in flight; its event is [`Hook::Clone`].
    Clone3,
    /// The last task that used the namespace by one proxy exits; the namespace may be about to die.
    Exit,
    /// `mount_setattr(2)`: propagation and flags.
    MountSetattr,
    /// The thread left the event's namespace, which may have died by that.
    Depart,
}

impl Hook {
    /// Every hook.
    pub const ALL: [Self; 14] = [
        Self::Mount,
        Self::Umount,
        Self::MoveMount,
        Self::OpenTree,
        Self::Fsmount,
        Self::Fsconfig,
        Self::PivotRoot,
        Self::Setns,
        Self::Unshare,
        Self::Clone,
        Self::Clone3,
        Self::Exit,
        Self::MountSetattr,
        Self::Depart,
    ];

    /// The tag on the wire.
    #[must_use]
    pub const fn tag(self) -> u32 {
        match self {
            Self::Mount => abi::HOOK_MOUNT,
            Self::Umount => abi::HOOK_UMOUNT,
            Self::MoveMount => abi::HOOK_MOVE_MOUNT,
            Self::OpenTree => abi::HOOK_OPEN_TREE,
            Self::Fsmount => abi::HOOK_FSMOUNT,
            Self::Fsconfig => abi::HOOK_FSCONFIG,
            Self::PivotRoot => abi::HOOK_PIVOT_ROOT,
            Self::Setns => abi::HOOK_SETNS,
            Self::Unshare => abi::HOOK_UNSHARE,
            Self::Clone => abi::HOOK_CLONE,
            Self::Clone3 => abi::HOOK_CLONE3,
            Self::Exit => abi::HOOK_EXIT,
            Self::MountSetattr => abi::HOOK_MOUNT_SETATTR,
            Self::Depart => abi::HOOK_DEPART,
        }
    }

    /// Whether a call that looked up an entry's path before the entry was renamed can still make a pin on it, or hides one
    /// from who confirms by tables for as long as its record has not come.
    ///
    /// - umount2 takes mounts off and makes none (`path_umount`, `do_umount` in fs/namespace.c); the one that lay over what
    ///   goes comes to lie where that lay, in one step. Until its record comes, tables show more pins than there are.
    /// - setns and mount_setattr pin nothing either (`mntns_install`, `do_mount_setattr`). But tables may not show the namespace
    ///   that is entered, nor a peer group that is made, until the record has come: the live set needs them.
    #[must_use]
    pub const fn may_pin(self) -> bool {
        !matches!(self, Self::Umount)
    }

    /// The name that messages use: the system call, or what happens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Umount => "umount",
            Self::MoveMount => "move_mount",
            Self::OpenTree => "open_tree",
            Self::Fsmount => "fsmount",
            Self::Fsconfig => "fsconfig",
            Self::PivotRoot => "pivot_root",
            Self::Setns => "setns",
            Self::Unshare => "unshare",
            Self::Clone => "clone",
            Self::Clone3 => "clone3",
            Self::Exit => "exit",
            Self::MountSetattr => "mount_setattr",
            Self::Depart => "depart",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl TryFrom<u32> for Hook {
    type Error = DecodeError;

    fn try_from(tag: u32) -> Result<Self, DecodeError> {
        Self::ALL.into_iter().find(|hook| hook.tag() == tag).ok_or(DecodeError::UnknownHook { tag })
    }
}

/// One thing that happened to a mount namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Sequence number, from 1; a number that never comes is a lost record.
    pub sequence: u64,
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What the call returned.
    pub result: i64,
    /// Inode number of the mount namespace concerned; none where the kernel side could not read it. Then any namespace
    /// may have changed.
    pub namespace: Option<u32>,
    /// What happened.
    pub hook: Hook,
    /// Thread group id, in the first pid namespace.
    pub process: u32,
    /// Thread id, in the first pid namespace.
    pub thread: u32,
}

impl Event {
    /// Decodes one record.
    ///
    /// # Errors
    /// The record has another size than the programs of this version send, or an unknown tag.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let record: &[u8; EVENT_SIZE] =
            bytes.try_into().map_err(|_| DecodeError::Size { expected: EVENT_SIZE, found: bytes.len() })?;
        let namespace = word(record, 24);
        Ok(Self {
            sequence: long(record, 0),
            time_ns: long(record, 8),
            result: long(record, 16).cast_signed(),
            namespace: (namespace != 0).then_some(namespace),
            hook: word(record, 28).try_into()?,
            process: word(record, 32),
            thread: word(record, 36),
        })
    }
}

/// A mount-class call that is inside the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightCall {
    /// Its number among all such calls.
    pub number: u64,
    /// When it entered, in nanoseconds of CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// Thread id, in the first pid namespace.
    pub thread: u32,
    /// Thread group id, in the first pid namespace.
    pub process: u32,
    /// Which call.
    pub hook: Hook,
    /// The generation of the mount clock that it entered under.
    pub generation: u32,
}

impl InFlightCall {
    /// Decodes one entry of the map of calls in flight.
    ///
    /// # Errors
    /// The tag is unknown.
    pub fn decode(thread: u32, bytes: &[u8; IN_FLIGHT_SIZE]) -> Result<Self, DecodeError> {
        Ok(Self {
            number: long(bytes, 0),
            since_ns: long(bytes, 8),
            thread,
            process: word(bytes, 16),
            hook: word(bytes, 20).try_into()?,
            generation: word(bytes, 24),
        })
    }
}

/// A mount-class call that is inside the kernel and that the mount clock did not count in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UncountedCall {
    /// Thread id, as /proc has it.
    pub thread: u32,
    /// Thread group id, as /proc has it.
    pub process: u32,
    /// Which call.
    pub hook: Hook,
}

impl fmt::Display for UncountedCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, process, hook } = self;
        write!(formatter, "{hook} by thread {thread} of process {process} (it entered before the mount clock counted)")
    }
}

impl fmt::Display for InFlightCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} by thread {} of process {}", self.hook, self.thread, self.process)
    }
}

/// Bytes that are no record of the programs of this version.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Another number of bytes.
    #[error("kernel record has {found} bytes instead of {expected}")]
    Size {
        /// What a record has.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// A tag that stands for no hook.
    #[error("kernel record has unknown tag {tag}")]
    UnknownHook {
        /// The tag.
        tag: u32,
    },
}

/// Four bytes of a record as an integer, in the byte order of this machine, which is the kernel's.
fn word<const SIZE: usize>(record: &[u8; SIZE], offset: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&record[offset..offset + 4]);
    u32::from_ne_bytes(bytes)
}

/// Eight bytes of a record as an integer.
fn long<const SIZE: usize>(record: &[u8; SIZE], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&record[offset..offset + 8]);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes that the kernel side puts into the ring: its structure's fields in order.
    fn encode(event: &Event) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(event.sequence.to_ne_bytes());
        bytes.extend(event.time_ns.to_ne_bytes());
        bytes.extend(event.result.to_ne_bytes());
        bytes.extend(event.namespace.unwrap_or(0).to_ne_bytes());
        bytes.extend(event.hook.tag().to_ne_bytes());
        bytes.extend(event.process.to_ne_bytes());
        bytes.extend(event.thread.to_ne_bytes());
        bytes
    }

    prop_compose! {
        fn events()(
            sequence in any::<u64>(),
            time_ns in any::<u64>(),
            result in any::<i64>(),
            namespace in proptest::option::of(1..=u32::MAX),
            hook in proptest::sample::select(Hook::ALL.to_vec()),
            process in any::<u32>(),
            thread in any::<u32>(),
        ) -> Event {
            Event { sequence, time_ns, result, namespace, hook, process, thread }
        }
    }

    proptest! {
        #[test]
        fn every_event_survives_the_wire(event in events()) {
            prop_assert_eq!(Event::decode(&encode(&event)), Ok(event));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            if let Ok(event) = Event::decode(&bytes) {
                prop_assert_eq!(encode(&event), bytes);
            }
        }

        #[test]
        fn another_size_is_refused(event in events(), cut in 1..EVENT_SIZE, more in 1..64usize) {
            let mut bytes = encode(&event);
            let short = &bytes[..EVENT_SIZE - cut];
            prop_assert_eq!(
                Event::decode(short),
                Err(DecodeError::Size { expected: EVENT_SIZE, found: EVENT_SIZE - cut })
            );
            bytes.extend(std::iter::repeat_n(0, more));
            prop_assert!(Event::decode(&bytes).is_err());
        }
    }

    #[test]
    fn offsets_are_those_of_the_shared_structure() {
        assert_eq!(std::mem::offset_of!(abi::Event, sequence), 0);
        assert_eq!(std::mem::offset_of!(abi::Event, time_ns), 8);
        assert_eq!(std::mem::offset_of!(abi::Event, result), 16);
        assert_eq!(std::mem::offset_of!(abi::Event, namespace), 24);
        assert_eq!(std::mem::offset_of!(abi::Event, hook), 28);
        assert_eq!(std::mem::offset_of!(abi::Event, process), 32);
        assert_eq!(std::mem::offset_of!(abi::Event, thread), 36);
        assert_eq!(std::mem::offset_of!(abi::InFlight, number), 0);
        assert_eq!(std::mem::offset_of!(abi::InFlight, time_ns), 8);
        assert_eq!(std::mem::offset_of!(abi::InFlight, process), 16);
        assert_eq!(std::mem::offset_of!(abi::InFlight, hook), 20);
        assert_eq!(std::mem::offset_of!(abi::InFlight, generation), 24);
    }

    #[test]
    fn unknown_tags_are_refused() {
        for tag in [0, 15, 1000, u32::MAX] {
            assert_eq!(Hook::try_from(tag), Err(DecodeError::UnknownHook { tag }));
        }
    }

    #[test]
    fn namespace_zero_is_not_a_namespace() {
        let event =
            Event { sequence: 1, time_ns: 2, result: 0, namespace: None, hook: Hook::Mount, process: 3, thread: 4 };
        assert_eq!(Event::decode(&encode(&event)).expect("decodes").namespace, None);
    }
}
