//! Saved figures as a picture: three groups of bars, the same systems in each.

use std::fmt::Write;

use serde_json::Value;

use crate::contest::Failed;
use crate::report::short;

const WIDTH: f64 = 900.0;
const NAME: f64 = 190.0;
const BAR: f64 = 16.0;
const ROW: f64 = 22.0;
const GROUP: f64 = 46.0;
const TOP: f64 = 66.0;

/// A group of bars: its title, the key of its figures, whether they are times.
const GROUPS: [(&str, &str, bool); 3] = [
    ("drain, 64 in flight · jobs a second, more is better", "drain_64", false),
    ("enqueue, 256 a call · jobs a second, more is better", "enqueue_batched", false),
    ("submission to handler at 200 jobs a second, p50 · less is better", "latency_p50_ms", true),
];

struct Bar<'a> {
    name: &'a str,
    value: f64,
    colour: &'static str,
}

pub fn side_by_side(figures: &Value) -> Result<String, Failed> {
    let contenders = figures["contenders"].as_array().filter(|list| !list.is_empty());
    let contenders =
        contenders.ok_or("there are no contenders in this file; save a run of all, or of `--only contest`")?;
    let mut body = String::new();
    let mut y = TOP;
    for (title, key, is_time) in GROUPS {
        let mut bars: Vec<Bar<'_>> = contenders.iter().filter_map(|contender| bar(contender, key)).collect();
        bars.sort_by(|one, other| other.value.total_cmp(&one.value));
        if is_time {
            bars.reverse();
        }
        let longest = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        writeln!(body, r#"<text x="24" y="{:.0}" class="title">{title}</text>"#, y + 14.0)?;
        y += 26.0;
        for Bar { name, value, colour } in bars {
            let length = (value / longest * (WIDTH - NAME - 110.0)).max(2.0);
            let shown = if is_time { format!("{value:.2} ms") } else { short(value) };
            let middle = y + BAR - 4.0;
            writeln!(body, r#"<text x="{:.0}" y="{middle:.0}" class="name">{}</text>"#, NAME - 8.0, escaped(name))?;
            writeln!(
                body,
                r#"<rect x="{NAME}" y="{y:.0}" width="{length:.1}" height="{BAR}" rx="2" fill="{colour}"/>"#
            )?;
            writeln!(body, r#"<text x="{:.0}" y="{middle:.0}" class="value">{shown}</text>"#, NAME + length + 6.0)?;
            y += ROW;
        }
        y += GROUP - ROW;
    }
    Ok(format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0}" width="{WIDTH}" height="{y:.0}" font-family="system-ui, sans-serif">
<style>.title{{font-size:14px;font-weight:600;fill:#1f2933}}.name{{font-size:13px;text-anchor:end;fill:#1f2933}}.value{{font-size:12px;fill:#52606d}}</style>
<rect width="{WIDTH}" height="{y:.0}" rx="8" fill="#ffffff" stroke="#d9e2ec"/>
<rect x="24" y="24" width="12" height="12" rx="2" fill="{OURS}"/><text x="42" y="35" class="value">Onward: durable before it answers</text>
<rect x="290" y="24" width="12" height="12" rx="2" fill="{DURABLE}"/><text x="308" y="35" class="value">others that are durable before they answer</text>
<rect x="600" y="24" width="12" height="12" rx="2" fill="{LAZY}"/><text x="618" y="35" class="value">others that answer before</text>
{body}</svg>
"##
    ))
}

const OURS: &str = "#0b7285";
const DURABLE: &str = "#7b8794";
const LAZY: &str = "#e0c097";

fn bar<'a>(contender: &'a Value, key: &str) -> Option<Bar<'a>> {
    let name = contender["name"].as_str()?;
    let value = contender["measures"][key]["median"].as_f64()?;
    let colour = match contender["durable_before_answer"].as_bool() {
        _ if name.starts_with("Onward") => OURS,
        Some(true) => DURABLE,
        _ => LAZY,
    };
    Some(Bar { name, value, colour })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_best_is_first_and_a_file_without_figures_is_refused() {
        let one = |name: &str, rate: f64, wait: f64| {
            let measures = json!({ "drain_64": { "median": rate }, "latency_p50_ms": { "median": wait } });
            json!({ "name": name, "durable_before_answer": false, "measures": measures })
        };
        let svg = side_by_side(&json!({ "contenders": [one("slow & old", 10.0, 2.5), one("quick", 90_000.0, 0.5)] }))
            .expect("it can be drawn");
        let place = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text} is in {svg}"));
        assert!(place(">90.0k<") < place(">10<") && place(">0.50 ms<") < place(">2.50 ms<"));
        assert!(svg.contains("slow &amp; old"));
        assert!(side_by_side(&json!({ "contenders": [] })).is_err());
    }
}
