//! Where the node on this machine keeps its data.

use std::ffi::OsString;
use std::path::PathBuf;

/// `$XDG_DATA_HOME/onward`, else `~/.local/share/onward`.
pub fn default_data(env: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let given = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = given("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let base = base.or_else(|| given("HOME").map(|home| home.join(".local/share")));
    base.unwrap_or_else(|| PathBuf::from(".")).join("onward")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_data_folder_follows_the_environment() {
        let env = |xdg: &'static str, home: &'static str| {
            move |name: &str| match name {
                "XDG_DATA_HOME" => Some(xdg.into()),
                "HOME" => Some(home.into()),
                _ => None,
            }
        };
        assert_eq!(default_data(env("/x", "/h")), Path::new("/x/onward"));
        assert_eq!(default_data(env("", "/h")), Path::new("/h/.local/share/onward"));
        assert_eq!(default_data(env("relative", "/h")), Path::new("/h/.local/share/onward"));
        assert_eq!(default_data(|_| None), Path::new("./onward"));
    }
}
