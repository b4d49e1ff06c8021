//! Options of union file systems: which directories they name. Takes bytes, opens nothing.
//!
//! Kernels differ in what they show. Before 6.5 and from 6.7 on, `lowerdir` is what the mounter wrote, in which overlay
//! reads `\:` as a colon; 6.5 and 6.6 show names with colon and backslash as octal escapes and nothing else. A name that
//! can be read in two ways is given in both.

use super::mount::Trace;
use super::mountinfo::{unescape, unescape_first};

/// One directory that an option names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WrittenLayer {
    /// The path as the mounter most likely meant it; empty where the options name a layer that they do not show.
    pub written: Box<[u8]>,
    /// Other paths that the same text can mean.
    pub otherwise: Vec<Box<[u8]>>,
    /// What else tells of it.
    pub trace: Trace,
    /// Only another reading of options that are already given: when it leads nowhere, nothing is missing.
    pub doubtful: bool,
}

impl WrittenLayer {
    /// A layer that is known to be there, and nothing more.
    #[must_use]
    pub fn unknown() -> Self {
        Self { written: Box::default(), otherwise: vec![], trace: Trace::Nothing, doubtful: false }
    }
}

/// Whether file systems of this type are made of directories that their mounts do not show.
#[must_use]
pub fn is_union(fs_type: &[u8]) -> bool {
    matches!(fs_type, b"overlay" | b"overlayfs" | b"aufs" | b"unionfs" | b"ecryptfs")
}

/// The directories that a mounted union file system is made of.
///
/// `options` are the escaped options of the super block and `source` the escaped source; none where the kernel did not
/// give them, which yields a layer that may be anywhere. Only for types that [`is_union`] names.
#[must_use]
pub fn layers(fs_type: &[u8], source: Option<&[u8]>, options: Option<&[u8]>) -> Vec<WrittenLayer> {
    match (fs_type, source, options) {
        (b"overlay", _, Some(options)) => overlay(options),
        (b"ecryptfs", Some(source), _) if !source.is_empty() => vec![plain(source, Trace::Nothing)],
        _ => vec![WrittenLayer::unknown()],
    }
}

fn overlay(options: &[u8]) -> Vec<WrittenLayer> {
    let mut found = Vec::new();
    // A comma inside a name is always shown as an escape, so commas separate.
    for option in options.split(|byte| *byte == b',') {
        let Some(equals) = option.iter().position(|byte| *byte == b'=') else { continue };
        let value = &option[equals + 1..];
        match &option[..equals] {
            b"lowerdir" => lower(value, &mut found),
            b"lowerdir+" | b"datadir+" | b"upperdir" => found.push(plain(value, Trace::Mounted)),
            b"workdir" => found.push(plain(value, Trace::Filled)),
            _ => {}
        }
    }
    if found.is_empty() { vec![WrittenLayer::unknown()] } else { found }
}

/// A path that may or may not carry overlay's own backslashes.
fn plain(value: &[u8], trace: Trace) -> WrittenLayer {
    let literal = unescape(value);
    let mut stripped = Vec::with_capacity(literal.len());
    let mut bytes = literal.iter();
    while let Some(byte) = bytes.next() {
        stripped.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    let otherwise = if *stripped == *literal { vec![] } else { vec![stripped.into_boxed_slice()] };
    WrittenLayer { written: literal, otherwise, trace, doubtful: false }
}

/// `lowerdir`: directories separated by colons; `::` starts those that hold data only.
fn lower(value: &[u8], found: &mut Vec<WrittenLayer>) {
    let as_written = split(value, true);
    let as_shown = split(value, false);
    let doubtful: Vec<_> = as_shown.into_iter().filter(|path| !as_written.contains(path)).collect();
    let layer = |doubtful| move |written| WrittenLayer { written, otherwise: vec![], trace: Trace::Mounted, doubtful };
    found.extend(as_written.into_iter().map(layer(false)));
    found.extend(doubtful.into_iter().map(layer(true)));
}

fn split(value: &[u8], backslash_escapes: bool) -> Vec<Box<[u8]>> {
    let mut paths = Vec::new();
    let mut path = Vec::new();
    let mut rest = value;
    while let Some((byte, escaped, taken)) = unescape_first(rest) {
        rest = &rest[taken..];
        if byte == b':' && !escaped {
            paths.push(std::mem::take(&mut path));
        } else if byte == b'\\'
            && backslash_escapes
            && let Some((next, _, taken)) = unescape_first(rest)
        {
            rest = &rest[taken..];
            path.push(next);
        } else {
            path.push(byte);
        }
    }
    paths.push(path);
    paths.into_iter().filter(|path| !path.is_empty()).map(Vec::into_boxed_slice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(options: &[u8]) -> Vec<Vec<u8>> {
        layers(b"overlay", None, Some(options)).iter().filter(|l| !l.doubtful).map(|l| l.written.to_vec()).collect()
    }

    #[test]
    fn every_layer_of_a_mount_is_found() {
        let options = b"rw,relatime,lowerdir=/l1:rel/l2::/data,upperdir=/u,workdir=/w,uuid=on";
        assert_eq!(written(options), [&b"/l1"[..], b"rel/l2", b"/data", b"/u", b"/w"]);
        assert_eq!(written(b"ro,lowerdir+=/a:b,lowerdir+=/c,datadir+=/d"), [&b"/a:b"[..], b"/c", b"/d"]);
    }

    #[test]
    fn escapes_of_overlay_and_of_mountinfo_are_both_undone() {
        // What a kernel of 6.18 shows for lowerdir=l\:2:c\,d.
        assert_eq!(written(b"rw,lowerdir=l\\134:2:c\\134\\054d"), [&b"l:2"[..], b"c,d"]);
        // What a kernel of 6.6 shows for a layer called l:2, and one called sp ace.
        assert_eq!(written(b"rw,lowerdir=l\\0722:sp\\040ace"), [&b"l:2"[..], b"sp ace"]);
    }

    #[test]
    fn a_backslash_that_may_be_a_name_is_read_both_ways() {
        let found = layers(b"overlay", None, Some(b"lowerdir=/a\\134b,upperdir=/u\\134v"));
        assert_eq!(&*found[0].written, b"/ab");
        assert_eq!((&*found[1].written, found[1].doubtful), (&b"/a\\b"[..], true));
        assert_eq!((&*found[2].written, &*found[2].otherwise[0]), (&b"/u\\v"[..], &b"/uv"[..]));
    }

    #[test]
    fn what_is_not_shown_may_be_anywhere() {
        let unknown = vec![WrittenLayer::unknown()];
        assert_eq!(layers(b"aufs", Some(b"none"), Some(b"rw,si=1234")), unknown);
        assert_eq!(layers(b"overlay", None, None), unknown);
        assert_eq!(layers(b"overlay", None, Some(b"rw")), unknown);
        assert_eq!(&*layers(b"ecryptfs", Some(b"/lo\\040wer"), None)[0].written, b"/lo wer");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(options in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut text = b"lowerdir=".to_vec();
            text.extend_from_slice(&options);
            let _ = layers(b"overlay", Some(&options), Some(&text));
        }
    }
}
