//! The text of `/proc/PID/mountinfo` (format: proc_pid_mountinfo(5)). Takes bytes, opens nothing.

use super::id::{Device, MountId};
use super::mount::Mount;
use thiserror::Error;

/// A line that is not what the kernel writes. The table that it stands in must not be used: what it hid is not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line} of the mount table has no valid {field}; read the table again, or report the kernel's version")]
pub struct MountinfoError {
    /// Line number, from 1.
    pub line: usize,
    /// The field that is missing or malformed.
    pub field: &'static str,
}

/// One line, with its strings still escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Mount id as mountinfo has it: small and reused.
    pub id: MountId,
    /// Id of the mount that it is mounted on; its own id for the top of a namespace.
    pub parent: MountId,
    /// The super block.
    pub device: Device,
    /// Root of the mount inside its file system, escaped.
    pub root: &'a [u8],
    /// Mount point, relative to the reader's root, escaped.
    pub point: &'a [u8],
    /// `shared:N`; 0 for none.
    pub peer_group: u64,
    /// `master:N`; 0 for none.
    pub master: u64,
    /// Type of the file system.
    pub fs_type: &'a [u8],
    /// What the mounter called the source, escaped.
    pub source: &'a [u8],
    /// Options of the super block, escaped.
    pub options: &'a [u8],
}

impl Row<'_> {
    /// The line as a mount.
    #[must_use]
    pub fn mount(&self) -> Mount {
        let (root, root_deleted) = split_deleted(unescape(self.root));
        Mount {
            id: self.id,
            parent: self.parent,
            device: self.device,
            root,
            root_deleted,
            point: Some(unescape(self.point)),
            peer_group: self.peer_group,
            master: self.master,
        }
    }
}

/// The lines of a mount table.
pub fn rows(text: &[u8]) -> impl Iterator<Item = Result<Row<'_>, MountinfoError>> {
    text.split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| row(line).map_err(|field| MountinfoError { line: index + 1, field }))
}

fn row(line: &[u8]) -> Result<Row<'_>, &'static str> {
    // Fields may be empty (a source of no characters), so runs of spaces are not one separator.
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = |name| fields.next().ok_or(name);
    let id = MountId(number(next("mount id")?).ok_or("mount id")?);
    let parent = MountId(number(next("parent id")?).ok_or("parent id")?);
    let device = device(next("device")?).ok_or("device")?;
    let root = next("root")?;
    let point = next("mount point")?;
    next("mount options")?;
    let (mut peer_group, mut master) = (0, 0);
    loop {
        let field = next("separator")?;
        if field == b"-" {
            break;
        }
        if let Some(group) = field.strip_prefix(b"shared:") {
            peer_group = number(group).ok_or("peer group")?;
        } else if let Some(group) = field.strip_prefix(b"master:") {
            master = number(group).ok_or("master")?;
        }
    }
    let fs_type = next("file system type")?;
    let source = next("source")?;
    let options = next("super block options")?;
    if root.is_empty() {
        return Err("root");
    }
    if point.is_empty() {
        return Err("mount point");
    }
    Ok(Row { id, parent, device, root, point, peer_group, master, fs_type, source, options })
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

fn device(field: &[u8]) -> Option<Device> {
    let colon = field.iter().position(|byte| *byte == b':')?;
    let part = |digits| number(digits).and_then(|value| u32::try_from(value).ok());
    Some(Device { major: part(&field[..colon])?, minor: part(&field[colon + 1..])? })
}

/// Takes the kernel's mark for a root that was deleted off a path. No file name holds a slash, so `//deleted` is
/// unambiguous.
#[must_use]
pub fn split_deleted(path: Box<[u8]>) -> (Box<[u8]>, bool) {
    match path.strip_suffix(b"//deleted") {
        Some([]) => (b"/"[..].into(), true),
        Some(kept) => (kept.into(), true),
        None => (path, false),
    }
}

/// One byte of an escaped string: the byte, whether it was written as an octal escape, and how many bytes that took.
pub(super) fn unescape_first(text: &[u8]) -> Option<(u8, bool, usize)> {
    let octal = |byte: u8| (b'0'..=b'7').contains(&byte).then(|| u16::from(byte - b'0'));
    match *text {
        [b'\\', a, b, c, ..] => {
            let value = octal(a).zip(octal(b)).zip(octal(c)).map(|((a, b), c)| a * 64 + b * 8 + c);
            match value.and_then(|value| u8::try_from(value).ok()) {
                Some(byte) => Some((byte, true, 4)),
                None => Some((b'\\', false, 1)),
            }
        }
        [byte, ..] => Some((byte, false, 1)),
        [] => None,
    }
}

/// Turns octal escapes (`\040`) back into bytes. A backslash that starts no escape stands for itself.
#[must_use]
pub fn unescape(text: &[u8]) -> Box<[u8]> {
    if !text.contains(&b'\\') {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, _, taken)) = unescape_first(rest) {
        bytes.push(byte);
        rest = &rest[taken..];
    }
    bytes.into_boxed_slice()
}

/// Escapes what mountinfo escapes: space, tab, newline and backslash.
#[must_use]
pub fn escape(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => {
                text.extend([b'\\', b'0' + (byte >> 6), b'0' + (byte >> 3 & 7), b'0' + (byte & 7)]);
            }
            byte => text.push(*byte),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(line: &[u8]) -> Row<'_> {
        rows(line).next().expect("a line was given").expect("the line is valid")
    }

    #[test]
    fn reads_a_shared_slave_line_with_every_optional_field() {
        let row = one(
            b"36 35 98:0 /mnt1 /mnt2 rw,noatime shared:7 master:1 propagate_from:2 unbindable - ext3 /dev/root rw,x",
        );
        assert_eq!((row.id, row.parent), (MountId(36), MountId(35)));
        assert_eq!(row.device, Device { major: 98, minor: 0 });
        assert_eq!((row.root, row.point), (&b"/mnt1"[..], &b"/mnt2"[..]));
        assert_eq!((row.peer_group, row.master), (7, 1));
        assert_eq!((row.fs_type, row.source, row.options), (&b"ext3"[..], &b"/dev/root"[..], &b"rw,x"[..]));
    }

    #[test]
    fn names_are_bytes_and_escapes_are_octal() {
        let mount = one(b"1 2 0:5 /a\\040b\\011c\\012d\\134e#\\134040\xff /m rw - tmpfs t rw").mount();
        assert_eq!(&*mount.root, b"/a b\tc\nd\\e#\\040\xff");
        assert!(!mount.root_deleted);
    }

    #[test]
    fn only_the_kernels_own_mark_means_deleted() {
        let deleted = one(b"1 2 0:5 /a//deleted /m rw - tmpfs t rw").mount();
        assert_eq!((&*deleted.root, deleted.root_deleted), (&b"/a"[..], true));
        let named_so = one(b"1 2 0:5 /a/deleted /m rw - tmpfs t rw").mount();
        assert_eq!((&*named_so.root, named_so.root_deleted), (&b"/a/deleted"[..], false));
        let spaced = one(b"1 2 0:5 /a\\040(deleted) /m rw - tmpfs t rw").mount();
        assert!(!spaced.root_deleted);
    }

    #[test]
    fn an_empty_source_is_a_field() {
        let row = one(b"1 2 0:5 / /m rw - tmpfs  rw,size=1k");
        assert_eq!((row.source, row.options), (&b""[..], &b"rw,size=1k"[..]));
    }

    #[test]
    fn a_line_of_more_than_64_kib_is_one_line() {
        let mut line = b"1 2 0:5 / /m rw - overlay o rw,lowerdir=".to_vec();
        line.extend(std::iter::repeat_n(&b"/very/long/layer:"[..], 8192).flatten());
        assert!(line.len() > 65_536);
        line.extend_from_slice(b"/last\n3 2 0:5 / /n rw - tmpfs t rw\n");
        let parsed: Vec<_> = rows(&line).collect::<Result<_, _>>().expect("both lines are valid");
        assert_eq!(parsed.len(), 2);
        assert!(parsed[0].options.ends_with(b":/last"));
    }

    #[test]
    fn a_broken_line_names_itself() {
        let text = b"1 2 0:5 / /m rw - tmpfs t rw\n1 2 0:5 / /m rw shared:1\n";
        assert_eq!(rows(text).nth(1), Some(Err(MountinfoError { line: 2, field: "separator" })));
        assert!(rows(b"x 2 0:5 / /m rw - t t rw").next().expect("a line").is_err());
        assert!(rows(b"1 2 05 / /m rw - t t rw").next().expect("a line").is_err());
        assert!(rows(b"1 2 0:5 / /m rw - t").next().expect("a line").is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
            for parsed in rows(&text).flatten() {
                let _ = parsed.mount();
            }
        }

        #[test]
        fn a_name_survives_the_way_through_a_line(name in proptest::collection::vec(1_u8.., 1..300), id in 1_u64..1 << 31) {
            let mut root = b"/".to_vec();
            root.extend(name.iter().filter(|byte| **byte != b'/'));
            let mut line = format!("{id} 1 0:5 ").into_bytes();
            line.extend(escape(&root));
            line.extend_from_slice(b" /m rw - tmpfs t rw");
            let mount = one(&line).mount();
            prop_assert_eq!(&*mount.root, &*root);
            prop_assert_eq!(mount.id, MountId(id));
        }
    }
}
