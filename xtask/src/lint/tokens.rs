//! What the house rules look at: Rust source as tokens, so that comments and text in strings never count as code.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Something in the code that a rule may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A path such as `std::fs::read`, also when imported as a group; a lone name is a path of one.
    Path(Vec<String>),
    /// A macro call by its last name.
    Macro(String),
    /// The word `unsafe`; true where it opens a block or an impl.
    Unsafe(bool),
    /// An attribute that contains `allow(...)`.
    Allow,
}

/// Reads a file into what was seen, each with its line, counted from 1.
///
/// # Errors
/// It is not lexically Rust.
pub(super) fn read(text: &str) -> Result<Vec<(usize, Seen)>> {
    let stream: TokenStream = text.parse().map_err(|error| anyhow!("not Rust: {error}"))?;
    let mut seen = Vec::new();
    walk(stream, &[], &mut seen);
    Ok(seen)
}

fn walk(stream: TokenStream, prefix: &[String], seen: &mut Vec<(usize, Seen)>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Ident(word) if *word == "unsafe" => {
                let opens = match tokens.get(at) {
                    Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
                    Some(TokenTree::Ident(next)) => *next == "impl",
                    _ => false,
                };
                seen.push((word.span().start().line, Seen::Unsafe(opens)));
            }
            TokenTree::Ident(word) => {
                let line = word.span().start().line;
                let mut path = prefix.to_vec();
                path.push(word.to_string());
                while is_double_colon(&tokens, at) {
                    match tokens.get(at + 2) {
                        Some(TokenTree::Ident(next)) => {
                            path.push(next.to_string());
                            at += 3;
                        }
                        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                            walk(group.stream(), &path, seen);
                            at += 3;
                        }
                        _ => break,
                    }
                }
                if is_punct(tokens.get(at), '!') && matches!(tokens.get(at + 1), Some(TokenTree::Group(_))) {
                    seen.push((line, Seen::Macro(path.last().cloned().unwrap_or_default())));
                }
                seen.push((line, Seen::Path(path)));
            }
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                let bang = usize::from(is_punct(tokens.get(at), '!'));
                if let Some(TokenTree::Group(group)) = tokens.get(at + bang)
                    && group.delimiter() == Delimiter::Bracket
                    && allows(group)
                {
                    seen.push((mark.span().start().line, Seen::Allow));
                }
            }
            TokenTree::Group(group) => walk(group.stream(), &[], seen),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Whether an attribute is, or holds in a `cfg_attr`, an `allow(...)`.
fn allows(attribute: &Group) -> bool {
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Ident(word) => *word == "allow" && matches!(tokens.get(at + 1), Some(TokenTree::Group(_))),
        TokenTree::Group(group) => allows(group),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

fn is_double_colon(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(mark)) if mark.as_char() == wanted)
}
