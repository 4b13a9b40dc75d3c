//! How a command ended, in words that are kept with its job, and as an exit code.

use onward_exec::Exit;

/// The exit code of a timeout, as `timeout(1)` and shells have it.
pub const TIMED_OUT: u8 = 124;
pub const OWN_FAILURE: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: i32 = 128;

const CODE: &str = "exited with code ";
const SIGNAL: &str = "killed by signal ";
const MISSING: &str = "not found: ";
const FORBIDDEN: &str = "not executable: ";
const UNSTARTED: &str = "could not be started: ";

/// The words for the end of the job's attempt.
pub fn words(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("{CODE}{code}"),
        Exit::Signal(signal) => format!("{SIGNAL}{signal}"),
        Exit::NotFound { why } => format!("{MISSING}{why}"),
        Exit::NotExecutable { why } => format!("{FORBIDDEN}{why}"),
        Exit::NotStarted { why } => format!("{UNSTARTED}{why}"),
        Exit::Lost { why } => format!("nobody knows how it ended: {why}"),
    }
}

pub fn code(exit: &Exit) -> u8 {
    match exit {
        Exit::Code(code) => *code as u8,
        Exit::Signal(signal) => (SIGNALLED + signal) as u8,
        Exit::NotFound { .. } => NOT_FOUND,
        Exit::NotExecutable { .. } => NOT_EXECUTABLE,
        Exit::NotStarted { .. } | Exit::Lost { .. } => OWN_FAILURE,
    }
}

/// Whether the [words] of an attempt say that its command never ran.
pub fn is_of_no_start(words: &str) -> bool {
    [MISSING, FORBIDDEN, UNSTARTED].iter().any(|start| words.starts_with(start))
}

/// The exit code that goes with the [words] of an attempt; `None` if they are not about a command.
pub fn code_of_words(words: &str) -> Option<u8> {
    let number = |rest: &str| rest.split(' ').next().and_then(|number| number.parse::<i32>().ok());
    if let Some(rest) = words.strip_prefix(CODE) {
        return number(rest).map(|code| code as u8);
    }
    if let Some(rest) = words.strip_prefix(SIGNAL) {
        return number(rest).map(|signal| (SIGNALLED + signal) as u8);
    }
    if words.starts_with(MISSING) {
        return Some(NOT_FOUND);
    }
    words.starts_with(FORBIDDEN).then_some(NOT_EXECUTABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_the_code() {
        let why = || "no such file".to_owned();
        for (exit, expected) in [
            (Exit::Code(0), 0),
            (Exit::Code(3), 3),
            (Exit::Code(255), 255),
            (Exit::Signal(9), 137),
            (Exit::Signal(15), 143),
            (Exit::NotFound { why: why() }, 127),
            (Exit::NotExecutable { why: why() }, 126),
        ] {
            assert_eq!(code(&exit), expected, "{exit:?}");
            assert_eq!(code_of_words(&words(&exit)), Some(expected), "{exit:?}");
        }
        assert_eq!(code(&Exit::Lost { why: why() }), 125);
        assert_eq!(code_of_words("stuck"), None);
        assert_eq!(code_of_words("exited with code many"), None);
    }
}
