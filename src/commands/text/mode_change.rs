//! Modes as arguments: `755` and `u=rwx,go=rX`, as chmod(1) has them.

use super::mode::{ALL, SET_GID, SET_ID, SET_UID, STICKY};

/// A mode as given to `chmod` and to `mkdir -m`: octal, or changes that are applied in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModeChange {
    steps: Vec<Step>,
}

/// An operator with its permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    operator: Operator,
    /// All bits of the classes that the clause names; `None` if it names none (`+w`).
    classes: Option<u32>,
    permissions: Permissions,
    /// The set-id bits that are named. A directory keeps the others: they are rarely meant.
    named_set_id: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permissions {
    /// These bits, of all classes.
    Bits(u32),
    /// The same and, for a directory and for what any class may execute, `x` (letter `X`).
    BitsAndSearch(u32),
    /// Those that the class has whose bits begin here.
    CopiedFrom(u32),
}

impl ModeChange {
    /// Reads a mode. `None` if it is neither octal nor symbolic.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= ALL)?;
            let names_all = text.len() >= OCTAL_DIGITS_NAMING_SET_ID;
            let steps = vec![Step {
                operator: Operator::Set,
                classes: Some(ALL),
                permissions: Permissions::Bits(mode),
                named_set_id: if names_all { SET_ID } else { mode & SET_ID },
            }];
            return Some(Self { steps });
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut steps)?;
        }
        Some(Self { steps })
    }

    /// The permission bits that `mode` becomes. A change without a class applies to all, except for
    /// the bits of `umask`, as POSIX specifies.
    pub(crate) fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        self.steps.iter().fold(mode & ALL, |mode, step| step.apply(mode, is_dir, umask))
    }
}

impl Step {
    fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        let kept = if is_dir { SET_ID & !self.named_set_id } else { 0 };
        let bits = match self.permissions {
            Permissions::Bits(bits) => bits,
            Permissions::BitsAndSearch(bits) if is_dir || mode & 0o111 != 0 => bits | 0o111,
            Permissions::BitsAndSearch(bits) => bits,
            Permissions::CopiedFrom(shift) => (mode >> shift & 7) * 0o111,
        };
        let bits = bits & self.classes.unwrap_or(ALL & !umask) & !kept;
        match self.operator {
            Operator::Add => mode | bits,
            Operator::Remove => mode & !bits,
            Operator::Set => mode & (!self.classes.unwrap_or(ALL) | kept) | bits,
        }
    }
}

/// Reads one clause of a symbolic mode: classes, and then one or more of an operator with
/// permissions.
fn parse_clause(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let mut rest = clause.trim_start_matches(['u', 'g', 'o', 'a']);
    let named = &clause[..clause.len() - rest.len()];
    let classes = named.chars().map(class_bits).reduce(|one, other| one | other);
    if rest.is_empty() {
        return None;
    }
    while let Some(letter) = rest.chars().next() {
        let operator = match letter {
            '+' => Operator::Add,
            '-' => Operator::Remove,
            '=' => Operator::Set,
            _ => return None,
        };
        let letters = rest[1..].split(['+', '-', '=']).next()?;
        let permissions = permissions(letters)?;
        let named_set_id = match permissions {
            Permissions::Bits(bits) | Permissions::BitsAndSearch(bits) => {
                bits & classes.unwrap_or(ALL) & SET_ID
            }
            Permissions::CopiedFrom(_) => 0,
        };
        steps.push(Step { operator, classes, permissions, named_set_id });
        rest = &rest[1 + letters.len()..];
    }
    Some(())
}

/// All bits that a class of users may have.
fn class_bits(class: char) -> u32 {
    match class {
        'u' => 0o700 | SET_UID,
        'g' => 0o070 | SET_GID,
        'o' => 0o007 | STICKY,
        _ => ALL,
    }
}

/// The bits of the letters, for all classes; a class as the only letter stands for its bits.
fn permissions(letters: &str) -> Option<Permissions> {
    match letters {
        "u" => return Some(Permissions::CopiedFrom(6)),
        "g" => return Some(Permissions::CopiedFrom(3)),
        "o" => return Some(Permissions::CopiedFrom(0)),
        _ => {}
    }
    let bits = letters.chars().try_fold(0, |bits, letter| {
        Some(
            bits | match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                'X' => 0,
                's' => SET_ID,
                't' => STICKY,
                _ => return None,
            },
        )
    })?;
    let has_search = letters.contains('X');
    Some(if has_search { Permissions::BitsAndSearch(bits) } else { Permissions::Bits(bits) })
}

/// An octal mode of so many digits names the set-id bits also where they are 0, as in coreutils.
const OCTAL_DIGITS_NAMING_SET_ID: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of `mkdir -m` of coreutils, which starts from 0777.
    #[test]
    fn modes_are_read_as_mkdir_does() {
        for (text, expected) in [
            ("700", Some(0o700)),
            ("1777", Some(0o1777)),
            ("0", Some(0)),
            ("10000", None),
            ("8", None),
            ("u=rwx,go=rx", Some(0o755)),
            ("u=rwx,go=", Some(0o700)),
            ("go-w", Some(0o755)),
            ("a=rx", Some(0o555)),
            ("=rx", Some(0o555)),
            ("=", Some(0)),
            ("g=u-w", Some(0o757)),
            ("g+s", Some(0o2777)),
            ("o=,g=o", Some(0o700)),
            ("-w", Some(0o577)),
            ("u", None),
            ("", None),
            ("z=r", None),
            ("u=q", None),
            ("u=r,", None),
            ("u=gr", None),
        ] {
            let mode = ModeChange::parse(text).map(|change| change.apply(0o777, true, 0o022));
            assert_eq!(mode, expected, "{text}");
        }
    }

    /// The results of `chmod` of coreutils 9.1 on a file and on a directory of the mode.
    #[test]
    fn changes_start_from_the_mode_of_the_file() {
        for (text, mode, file, dir) in [
            ("644", 0o6755, 0o0644, 0o6644),
            ("0644", 0o6755, 0o0644, 0o6644),
            ("00644", 0o6755, 0o0644, 0o0644),
            ("2644", 0o4755, 0o2644, 0o6644),
            ("a=rx", 0o6700, 0o0555, 0o6555),
            ("u=rwx", 0o4600, 0o0700, 0o4700),
            ("u-s", 0o6755, 0o2755, 0o2755),
            ("ug-s", 0o6755, 0o0755, 0o0755),
            ("u=s", 0o0755, 0o4055, 0o4055),
            ("g=s", 0o4755, 0o6705, 0o6705),
            ("=", 0o7777, 0, 0o6000),
            ("a+X", 0o640, 0o640, 0o751),
            ("a+X", 0o740, 0o751, 0o751),
            ("a-x,a+X", 0o755, 0o644, 0o755),
            ("u=rwX,go=rX", 0o600, 0o644, 0o755),
            ("+w", 0o444, 0o644, 0o644),
            ("-w", 0o666, 0o466, 0o466),
            ("a-w", 0o666, 0o444, 0o444),
            ("o=g", 0o750, 0o755, 0o755),
            ("g=o,o=u", 0o706, 0o767, 0o767),
            ("+t", 0o755, 0o1755, 0o1755),
            ("o+t", 0o755, 0o1755, 0o1755),
            ("u+t", 0o755, 0o755, 0o755),
            ("u+x-w", 0o644, 0o544, 0o544),
        ] {
            let change = ModeChange::parse(text).unwrap();
            let applied = |is_dir| change.apply(mode, is_dir, 0o022);
            assert_eq!((applied(false), applied(true)), (file, dir), "{text} on {mode:o}");
        }
    }
}
