//! Whether the walk finds a mount that is made for it, in each root: what works on one file system may not on another.

use crate::error::chain;
use crate::evidence::engine::{Proof, WalkError};
use crate::evidence::features::Answer;
use crate::render::text;
use crate::service::roots::Placed;
use std::path::Path;

/// The answers.
#[derive(Debug)]
pub(super) struct WalkProofs {
    /// By the name of the root. Under no name where there is no root: of some directory of the system.
    answers: Vec<(String, Answer)>,
}

impl WalkProofs {
    /// Asks in each root that is there.
    pub(super) fn take(roots: &[Placed]) -> Self {
        let mut proof = match Proof::load() {
            Ok(proof) => proof,
            Err(error) => return Self { answers: vec![(String::new(), answer(Err(error)))] },
        };
        let there = roots.iter().filter_map(|placed| Some((&placed.config, placed.location.as_ref()?)));
        let mut answers: Vec<_> = there.map(|(root, _)| (root.name.clone(), answer(proof.of(&root.path)))).collect();
        if answers.is_empty() {
            let of_system = ["/run", "/tmp", "/"].map(|path| proof.of(Path::new(path)));
            let told = of_system.into_iter().find(|proof| !matches!(proof, Err(WalkError::NothingToFind)));
            answers.push((String::new(), answer(told.unwrap_or(Err(WalkError::NothingToFind)))));
        }
        Self { answers }
    }

    /// The answer of a root that is there.
    pub(super) fn of(&self, root: &str) -> Option<&Answer> {
        match &*self.answers {
            [(name, answer)] if name.is_empty() => Some(answer),
            answers => answers.iter().find(|(name, _)| name == root).map(|(_, answer)| answer),
        }
    }

    /// One answer for all roots: the worst.
    pub(super) fn worst(&self) -> Answer {
        let no = self.answers.iter().find(|(_, answer)| matches!(answer, Answer::No { .. }));
        let unknown = || self.answers.iter().find(|(_, answer)| matches!(answer, Answer::Unknown { .. }));
        let Some((name, answer)) = no.or_else(unknown) else { return Answer::Yes };
        let of_root = |why: &str| if self.is_one() { why.to_owned() } else { format!("{name}: {why}") };
        match answer {
            Answer::Yes => Answer::Yes,
            Answer::No { why } => Answer::No { why: of_root(why) },
            Answer::Unknown { why } => Answer::Unknown { why: of_root(why) },
        }
    }

    /// One line, or one for each root where they differ.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |name: &str, answer: &Answer| {
            let of_root = if name.is_empty() { String::new() } else { format!("{name}: ") };
            let (answer, why) = match answer {
                Answer::Yes => ("yes", "condemned entries are confirmed by the kernel's own list of mounts"),
                Answer::No { why } => ("no", why.as_str()),
                Answer::Unknown { why } => ("could not tell", why.as_str()),
            };
            format!("walk\t{answer}\t{}", text::escape(format!("{of_root}{why}").as_bytes()))
        };
        match self.is_one() {
            true => self.answers.iter().take(1).map(|(_, answer)| line("", answer)).collect(),
            false => self.answers.iter().map(|(name, answer)| line(name, answer)).collect(),
        }
    }

    /// Whether all roots have the same answer.
    fn is_one(&self) -> bool {
        self.answers.windows(2).all(|pair| pair[0].1 == pair[1].1)
    }
}

fn answer(proof: Result<(), WalkError>) -> Answer {
    match proof {
        Ok(()) => Answer::Yes,
        Err(error @ WalkError::KnownAnswer { .. }) => Answer::No { why: chain(&error) },
        Err(error @ WalkError::NothingToFind) => {
            Answer::Unknown { why: format!("{}; a pass tries it on what it condemns", chain(&error)) }
        }
        Err(error) => Answer::Unknown { why: chain(&error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proofs(answers: &[(&str, Answer)]) -> WalkProofs {
        WalkProofs { answers: answers.iter().map(|(name, answer)| ((*name).to_owned(), answer.clone())).collect() }
    }

    #[test]
    fn roots_that_differ_have_a_line_each_and_the_worst_speaks_for_all() {
        let no = Answer::No { why: "it is not found".to_owned() };
        let unknown = Answer::Unknown { why: "it cannot be made".to_owned() };
        let all = proofs(&[("a", Answer::Yes), ("b", unknown.clone()), ("c", no.clone())]);
        let lines = all.lines();
        assert!(lines[0].starts_with("walk\tyes\ta: "), "{lines:?}");
        assert_eq!(lines[1..], ["walk\tcould not tell\tb: it cannot be made", "walk\tno\tc: it is not found"]);
        assert_eq!(all.worst(), Answer::No { why: "c: it is not found".to_owned() });
        assert_eq!((all.of("b"), all.of("d")), (Some(&unknown), None));
        assert_eq!(
            proofs(&[("a", Answer::Yes), ("b", unknown)]).worst(),
            Answer::Unknown { why: "b: it cannot be made".to_owned() }
        );
        let same = proofs(&[("a", no.clone()), ("b", no.clone())]);
        assert_eq!((same.lines().len(), same.worst()), (1, no));
        assert_eq!(proofs(&[("a", Answer::Yes), ("b", Answer::Yes)]).worst(), Answer::Yes);
    }
}
