use super::*;
use proptest::prelude::*;

/// Builds BTF, one type after the other.
#[derive(Default)]
struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Builder {
    fn string(&mut self, text: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        at
    }

    fn put(&mut self, words: &[u32]) {
        for word in words {
            self.types.extend(word.to_ne_bytes());
        }
    }

    fn head(&mut self, name: &str, kind: u32, members: u32, flag: bool, refers: u32) -> u32 {
        let name = self.string(name);
        self.put(&[name, (kind << 24) | members | (u32::from(flag) << 31), refers]);
        self.count += 1;
        self.count
    }

    fn integer(&mut self) -> u32 {
        let number = self.head("int", 1, 0, false, 4);
        self.put(&[32]);
        number
    }

    fn composite(&mut self, kind: u32, name: &str, flag: bool, members: &[(&str, u32, u32)]) -> u32 {
        let number = self.head(name, kind, members.len() as u32, flag, 64);
        for &(label, refers, bits) in members {
            let label = self.string(label);
            self.put(&[label, refers, bits]);
        }
        number
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        let types = self.types.len() as u32;
        for word in [HEADER as u32, 0, types, types, self.strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }
}

/// A kernel with its members in unusual places: nested without a name, behind a typedef, in a structure with bit fields.
fn kernel() -> Builder {
    let mut builder = Builder::default();
    let int = builder.integer();
    let inner = builder.composite(KIND_UNION, "", false, &[("pid", int, 0), ("alias", int, 0)]);
    let common = builder.composite(KIND_STRUCT, "ns_common", false, &[("stashed", int, 0), ("inum", int, 96)]);
    let named = builder.head("ns_common_t", KIND_TYPEDEF, 0, false, common);
    let constant = builder.head("", KIND_CONST, 0, false, named);
    builder.composite(KIND_STRUCT, "mnt_namespace", false, &[("root", int, 0), ("ns", constant, 64)]);
    builder.composite(KIND_STRUCT, "nsproxy", false, &[("count", int, 0), ("mnt_ns", int, 192)]);
    builder.composite(
        KIND_STRUCT,
        "task_struct",
        true,
        &[
            ("flag", int, (1 << 24) | 3),
            ("nsproxy", int, 4096),
            ("", inner, 320),
            ("tgid", int, 352),
            ("signal", int, 640),
        ],
    );
    builder.composite(KIND_STRUCT, "signal_struct", false, &[("live", int, 32), ("nr_threads", int, 64)]);
    builder.composite(KIND_STRUCT, "pt_regs", false, &[(REGS[0], int, 960), (REGS[1], int, 896), (REGS[2], int, 320)]);
    builder
}

#[test]
fn a_function_keeps_its_number_where_everything_else_is_left_out() {
    let mut builder = Builder::default();
    builder.integer();
    builder.composite(KIND_STRUCT, "wanted", false, &[("a", 1, 0)]);
    builder.head("other", KIND_FUNCTION, 0, false, 1);
    let number = builder.head("wanted", KIND_FUNCTION, 0, false, 1);
    builder.integer();
    let bytes = builder.bytes();
    let types = Types::index(&bytes, &[]).expect("well-formed");
    let only = only("wanted", number).expect("it is small");
    assert_eq!(types.function("wanted").expect("well-formed"), Some(number));
    assert!(aya::Btf::parse(&only, aya::Endianness::default()).is_ok());
    let read = Types::index(&only, &[]).expect("well-formed");
    assert_eq!(read.begins.len(), number as usize);
    assert_eq!(read.function("wanted").expect("well-formed"), Some(number));
    assert_eq!(types.function("missing").expect("well-formed"), None);
}

#[test]
fn members_are_found_through_names_qualifiers_and_nameless_members() {
    let layout = layout(&kernel().bytes()).expect("complete");
    assert_eq!(
        layout,
        Layout {
            task_nsproxy: 512,
            nsproxy_count: 0,
            nsproxy_mnt_ns: 24,
            mnt_namespace_inum: 8 + 12,
            task_pid: 40,
            task_tgid: 44,
            task_signal: 80,
            signal_live: 4,
            signal_nr_threads: 8,
            regs_number: 120,
            regs_first: 112,
            regs_first_32: 40,
            known: 1,
        }
    );
}

#[test]
fn what_is_missing_is_named() {
    let bytes = kernel().bytes();
    let without = |name: &str, other: &str| {
        let at = bytes.windows(name.len()).position(|window| window == name.as_bytes()).expect("there");
        let mut bytes = bytes.clone();
        bytes[at..at + name.len()].copy_from_slice(other.as_bytes());
        layout(&bytes).expect_err("refused").to_string()
    };
    assert_eq!(without("nr_threads", "nr_threadz"), "struct signal_struct of this kernel has no member nr_threads");
    assert_eq!(without("inum", "inus"), "struct mnt_namespace of this kernel has no member ns.inum");
    assert_eq!(without("nsproxy", "nsproxi"), "kernel type information has no struct nsproxy");
}

#[test]
fn structures_of_one_name_must_agree() {
    let mut builder = kernel();
    builder.composite(KIND_STRUCT, "nsproxy", false, &[("count", 1, 32), ("mnt_ns", 1, 192)]);
    let error = layout(&builder.bytes()).expect_err("refused");
    assert!(matches!(error, LayoutError::Ambiguous { structure: "nsproxy", .. }), "{error}");
}

#[test]
fn a_bit_field_is_refused() {
    let mut builder = Builder::default();
    let int = builder.integer();
    builder.composite(KIND_STRUCT, "task_struct", true, &[("nsproxy", int, (1 << 24) | 3)]);
    let error = layout(&builder.bytes()).expect_err("refused");
    assert!(matches!(error, LayoutError::BitField { .. }), "{error}");
}

#[test]
fn members_that_contain_themselves_end() {
    let mut builder = Builder::default();
    builder.composite(KIND_STRUCT, "task_struct", false, &[("", 1, 0)]);
    builder.head("loop", KIND_TYPEDEF, 0, false, 2);
    builder.composite(KIND_STRUCT, "nsproxy", false, &[("", 2, 0)]);
    let error = layout(&builder.bytes()).expect_err("refused");
    assert!(matches!(error, LayoutError::MissingMember { structure: "task_struct", .. }), "{error}");
}

#[test]
fn truncated_at_any_byte_is_an_error() {
    let bytes = kernel().bytes();
    for length in 0..bytes.len() {
        assert!(layout(&bytes[..length]).is_err(), "{length} of {} bytes were taken for a kernel", bytes.len());
    }
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = kernel().bytes();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let _ = layout(&bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let _ = layout(&bytes);
    }
}

#[test]
fn this_kernel_has_all_that_is_needed() {
    if !Path::new(VMLINUX).exists() {
        eprintln!("no {VMLINUX}: this kernel has no type information to look at");
        return;
    }
    let layout = running_kernel().expect("complete");
    assert!(layout.task_nsproxy > 0 && layout.task_tgid > 0);
}

/// A function `name` of a prototype that returns a type and takes others.
fn function(builder: &mut Builder, name: &str, returns: u32, parameters: &[u32]) -> u32 {
    let prototype = builder.head("", 13, parameters.len() as u32, false, returns);
    for &parameter in parameters {
        builder.put(&[0, parameter]);
    }
    builder.head(name, 12, 0, false, prototype)
}

#[test]
fn functions_are_compared_with_the_prototype_that_is_relied_on() {
    use functions::{Function, Prototype};

    let mut builder = Builder::default();
    let integer = builder.integer();
    let long = builder.head("long int", 1, 0, false, 8);
    builder.put(&[(1 << 24) | 64]);
    let unsigned = builder.head("long unsigned int", 1, 0, false, 8);
    builder.put(&[64]);
    let regs = builder.composite(KIND_STRUCT, "pt_regs", false, &[("di", integer, 0)]);
    let constant = builder.head("", KIND_CONST, 0, false, regs);
    let pointer = builder.head("", 2, 0, false, constant);
    let other = builder.composite(KIND_STRUCT, "other", false, &[("x", integer, 0)]);
    let to_other = builder.head("", 2, 0, false, other);
    let fits = function(&mut builder, "fits", long, &[pointer]);
    function(&mut builder, "two", long, &[pointer, pointer]);
    function(&mut builder, "value", long, &[long]);
    function(&mut builder, "stranger", long, &[to_other]);
    function(&mut builder, "narrow", integer, &[pointer]);
    function(&mut builder, "unsigned", unsigned, &[pointer]);
    function(&mut builder, "void", 0, &[pointer]);
    let twice = function(&mut builder, "twice", long, &[pointer]);
    function(&mut builder, "twice", long, &[pointer]);
    function(&mut builder, "mixed", long, &[pointer]);
    function(&mut builder, "mixed", long, &[]);
    builder.head("odd", 12, 0, false, long);
    let bytes = builder.bytes();
    let types = Types::index(&bytes, &[]).expect("well formed");
    let names = ["fits", "two", "value", "stranger", "narrow", "unsigned", "void", "twice", "mixed", "odd", "none"];
    let names = names.map(str::to_owned);
    let found = types.functions(&names, Prototype { parameters: &["pt_regs"], returns: 8 }).expect("well formed");
    assert_eq!(found.get("fits"), Some(&Function::Fits(fits)));
    assert_eq!(found.get("none"), None);
    let said = |name| match found.get(name) {
        Some(Function::Differs(how)) => how.as_str(),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(said("two"), "it takes 2 arguments and not 1");
    assert_eq!(said("value"), "argument 1 is no pointer to struct pt_regs");
    assert_eq!(said("stranger"), "argument 1 is no pointer to struct pt_regs");
    for name in ["narrow", "unsigned", "void"] {
        assert_eq!(said(name), "it does not return an integer with a sign of 8 bytes");
    }
    assert_eq!(found.get("twice"), Some(&Function::Fits(twice)));
    assert_eq!(said("mixed"), "it takes 0 arguments and not 1");
    assert_eq!(said("odd"), "it has no prototype");
}
