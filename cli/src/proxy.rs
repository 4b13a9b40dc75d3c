//! The proxy that the environment names for calls to other machines.

use onward::address::Proxy;

/// Variables in the order in which they are looked at.
const NAMES: [&str; 6] = ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// The proxy for a host, unless `NO_PROXY` has it.
pub fn of_environment(host: &str, variable: impl Fn(&str) -> Option<String>) -> Option<Proxy> {
    let without = variable("NO_PROXY").or_else(|| variable("no_proxy")).unwrap_or_default();
    if without.split(',').any(|entry| is_named(host, entry.trim())) {
        return None;
    }
    NAMES.into_iter().find_map(|name| Proxy::at(&variable(name)?))
}

/// `*`, the host itself, or a domain that it is in: `.example.com` or `*.example.com`.
fn is_named(host: &str, entry: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let entry = entry.to_ascii_lowercase();
    let domain = entry.strip_prefix('*').unwrap_or(&entry);
    entry == "*" || host == entry || domain.starts_with('.') && host.ends_with(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(host: &str, set: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        of_environment(host, variable).map(|proxy| proxy.to_string())
    }

    #[test]
    fn the_environment_names_a_proxy_and_hosts_without_one() {
        let set = [("HTTP_PROXY", "http://p:3128"), ("NO_PROXY", "a.example, .inner.example,*.other")];
        assert_eq!(chosen("b.example", &set).as_deref(), Some("p:3128"));
        for host in ["a.example", "A.example", "x.inner.example", "y.other"] {
            assert_eq!(chosen(host, &set), None, "{host}");
        }
        assert_eq!(chosen("inner.example", &set).as_deref(), Some("p:3128"));
        assert_eq!(chosen("b.example", &[("ALL_PROXY", "http://all:1"), ("NO_PROXY", "*")]), None);
        let both = [("HTTPS_PROXY", "p"), ("ALL_PROXY", "http://u:w@all:1")];
        assert_eq!(chosen("b.example", &both).as_deref(), Some("all:1"), "and who asks is not told");
        assert_eq!(chosen("b.example", &[]), None);
    }
}
