//! What is wrong with a command line, as clap found it, in words that help: the usage of the command that was meant, the
//! one suggestion that is close, and JSON where JSON was asked for.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde_json::json;

use crate::args::Cli;

/// Help and version are asked for, and no mistake.
pub fn told(error: &clap::Error) -> ExitCode {
    let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    if !error.use_stderr() {
        // Nobody can be told that stdout is gone.
        let _ = error.print();
        return code;
    }
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let text = improved(error, &words);
    let text = match own(&words).any(|word| word == "--json") {
        true => json!({ "error": text.trim_end() }).to_string() + "\n",
        false => text,
    };
    let _ = write!(io::stderr(), "{text}");
    code
}

/// Our own words on the command line: those after `--` are somebody else's.
fn own(words: &[String]) -> impl Iterator<Item = &String> {
    words.iter().take_while(|word| *word != "--")
}

fn improved(error: &clap::Error, words: &[String]) -> String {
    let mut text = String::new();
    let mut in_usage = false;
    for line in error.render().to_string().lines() {
        let line = &line.replace("invalid digit found in string", "write a whole number, like 3");
        // Clap counts among what is required whatever came from the environment.
        let is_usage = line.starts_with("Usage:");
        in_usage = is_usage || in_usage && line.starts_with("       ");
        if is_usage {
            text += &format!("{}\n", usage_of(words));
        } else if let Some(best) = Some(line).filter(|line| line.contains("similar subcommand")).and(best(error)) {
            text += &format!("  tip: did you mean `{best}`?\n");
        } else if !in_usage && !line.contains("similar subcommand") {
            text += &format!("{line}\n");
        }
        if let Some(word) = stray_word(error, words).filter(|_| line.starts_with("error:")) {
            text += &format!("\n  tip: a command goes after `--`: onward submit -- {word}\n");
        }
    }
    text
}

/// The beginning of a command that was written without `--` before it.
fn stray_word<'a>(error: &'a clap::Error, words: &[String]) -> Option<&'a str> {
    let is_submit = own(words).find(|word| !word.starts_with('-')).is_some_and(|word| word == "submit");
    match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(word) if is_submit && error.kind() == ErrorKind::UnknownArgument => {
            Some(word).filter(|word| !word.starts_with('-')).map(String::as_str)
        }
        _ => None,
    }
}

fn usage_of(words: &[String]) -> String {
    let mut root = Cli::command();
    root.build();
    let mut command = &mut root;
    for word in own(words) {
        if command.find_subcommand(word).is_some() {
            command = command.find_subcommand_mut(word).expect("it was found a moment ago");
        }
    }
    command.render_usage().to_string()
}

/// The word that differs least from the one that was written, if it is close.
fn best(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(written)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let known = match error.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::Strings(known) => known.clone(),
        ContextValue::String(known) => vec![known.clone()],
        _ => return None,
    };
    let distance = |known: &String| strsim::damerau_levenshtein(written, known);
    known.into_iter().min_by_key(distance).filter(|known| distance(known) <= written.len().div_ceil(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn told(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = Cli::try_parse_from([&["onward".to_owned()], &words[..]].concat()).unwrap_err();
        improved(&error, &words)
    }

    #[test]
    fn one_suggestion_is_made_and_it_is_the_close_one() {
        for (written, meant) in [("lsit", "list"), ("quue list", "queue"), ("sbmit", "submit"), ("wtach x", "watch")] {
            let text = told(written);
            assert!(text.contains(&format!("did you mean `{meant}`?")) && !text.contains("similar"), "{text}");
        }
        assert!(!told("frobnicate").contains("did you mean"));
    }

    #[test]
    fn a_command_without_its_dashes_is_shown_with_them() {
        assert!(told("submit ./backup.sh").contains("tip: a command goes after `--`: onward submit -- ./backup.sh\n"));
        assert!(!told("submit --bogus").contains("a command goes after"));
        assert!(!told("list bogus").contains("a command goes after"));
    }

    #[test]
    fn what_is_no_number_is_said_in_words_of_the_user() {
        for line in ["up --slots x", "submit --retries many -- true", "list --limit 1.5"] {
            let text = told(line);
            assert!(text.contains("write a whole number, like 3") && !text.contains("digit"), "{text}");
        }
    }

    #[test]
    fn the_usage_calls_nothing_required_that_is_not() {
        for (written, usage) in [
            ("wait --server http://x", "Usage: onward wait [OPTIONS] <ID>"),
            ("queue pause", "Usage: onward queue pause [OPTIONS] <NAME>"),
            ("list --stat failed", "Usage: onward list [OPTIONS]"),
            ("probe --file x", "Usage: onward probe --file FILE --max-age DURATION\n       onward probe --url URL"),
        ] {
            let text = told(written);
            assert!(text.contains(usage) && text.matches("Usage:").count() == 1, "{text}");
        }
    }
}
