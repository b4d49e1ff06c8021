//! Functions of the running kernel, and whether they are what the probes on them take them for.

use std::collections::BTreeMap;

use super::{DEPTH, HEAD, KIND_CONST, KIND_STRUCT, KIND_TYPEDEF, KIND_VOLATILE, LayoutError, Types, malformed, word};

const KIND_INTEGER: u32 = 1;
const KIND_POINTER: u32 = 2;
const KIND_FUNCTION: u32 = 12;
const KIND_PROTOTYPE: u32 = 13;
/// Bytes of a parameter: its name and its type.
const PARAMETER: usize = 8;
/// The bit of an integer's description that says that it has a sign.
const SIGNED: u32 = 1 << 24;

/// What a program relies on of the function that it is put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::evidence) struct Prototype {
    /// The structure that each parameter points to.
    pub(in crate::evidence) parameters: &'static [&'static str],
    /// Size in bytes of the integer with a sign that is returned.
    pub(in crate::evidence) returns: u32,
}

/// A function by that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::evidence) enum Function {
    /// It is as expected; its number in the type information.
    Fits(u32),
    /// It is not, and what is different.
    Differs(String),
}

impl Types<'_> {
    /// The functions of the given names that there are.
    pub(in crate::evidence) fn functions<'n>(
        &self,
        names: &'n [String],
        prototype: Prototype,
    ) -> Result<BTreeMap<&'n str, Function>, LayoutError> {
        let wanted: BTreeMap<&[u8], &str> = names.iter().map(|name| (name.as_bytes(), name.as_str())).collect();
        let mut found = BTreeMap::new();
        for (index, &at) in self.begins.iter().enumerate() {
            let head = self.head_at(at as usize)?;
            if head.kind != KIND_FUNCTION {
                continue;
            }
            let Some(&name) = wanted.get(self.name(head.name)) else { continue };
            let number = u32::try_from(index + 1).map_err(|_| malformed(at as usize, "too many types"))?;
            let function = match self.difference(head.refers, prototype)? {
                None => Function::Fits(number),
                Some(difference) => Function::Differs(difference),
            };
            // A weak function and the one in its place can both be there; programs are put on what the kernel's symbols
            // lead to, so all of them have to fit.
            let function = match (found.remove(name), function) {
                (Some(Function::Differs(how)), _) | (_, Function::Differs(how)) => Function::Differs(how),
                (Some(first), Function::Fits(_)) => first,
                (None, only) => only,
            };
            found.insert(name, function);
        }
        Ok(found)
    }

    /// How a type differs from a prototype; none where it does not.
    fn difference(&self, number: u32, prototype: Prototype) -> Result<Option<String>, LayoutError> {
        let Prototype { parameters, returns } = prototype;
        let Some((at, head)) = self.at_number(number)?.filter(|(_, head)| head.kind == KIND_PROTOTYPE) else {
            return Ok(Some("it has no prototype".to_owned()));
        };
        if head.members != parameters.len() {
            return Ok(Some(format!("it takes {} arguments and not {}", head.members, parameters.len())));
        }
        for (index, structure) in parameters.iter().enumerate() {
            let refers = word(self.bytes, at + HEAD + index * PARAMETER + 4)?;
            if !self.points_to(refers, structure)? {
                return Ok(Some(format!("argument {} is no pointer to struct {structure}", index + 1)));
            }
        }
        let result = self.resolved(head.refers)?;
        let is_long = match result {
            Some((at, head)) if head.kind == KIND_INTEGER => {
                head.refers == returns && word(self.bytes, at + HEAD)? & SIGNED != 0
            }
            _ => false,
        };
        Ok((!is_long).then(|| format!("it does not return an integer with a sign of {returns} bytes")))
    }

    fn points_to(&self, number: u32, structure: &str) -> Result<bool, LayoutError> {
        let Some((_, pointer)) = self.resolved(number)?.filter(|(_, head)| head.kind == KIND_POINTER) else {
            return Ok(false);
        };
        let target = self.resolved(pointer.refers)?;
        Ok(target.is_some_and(|(_, head)| head.kind == KIND_STRUCT && self.name(head.name) == structure.as_bytes()))
    }

    /// The type behind names and qualifiers; none for void.
    fn resolved(&self, mut number: u32) -> Result<Option<(usize, super::Head)>, LayoutError> {
        for _ in 0..DEPTH {
            match self.at_number(number)? {
                Some((_, head)) if [KIND_TYPEDEF, KIND_VOLATILE, KIND_CONST].contains(&head.kind) => {
                    number = head.refers;
                }
                other => return Ok(other),
            }
        }
        Ok(None)
    }

    fn at_number(&self, number: u32) -> Result<Option<(usize, super::Head)>, LayoutError> {
        let place = (number as usize).checked_sub(1).and_then(|index| self.begins.get(index));
        place.map(|&at| Ok((at as usize, self.head_at(at as usize)?))).transpose()
    }

    fn name(&self, place: u32) -> &[u8] {
        let rest = self.strings.get(place as usize..).unwrap_or_default();
        rest.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}
