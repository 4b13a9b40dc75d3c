//! Saved figures as a picture: groups of bars, the same systems in each; or curves of what a job costs as things grow.

use std::fmt::Write;

use serde_json::Value;

use crate::contest::ContestError;
use crate::report::short;

const WIDTH: f64 = 900.0;
const NAME: f64 = 206.0;
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

pub fn of(figures: &Value) -> Result<String, ContestError> {
    let list = |name: &str| figures[name].as_array().filter(|list| !list.is_empty());
    match (list("contenders"), list("growth")) {
        (Some(contenders), _) => side_by_side(contenders),
        (None, Some(curves)) => growth(curves),
        (None, None) => Err("nothing in this file can be drawn; save a run of all, or of `--only growth`".into()),
    }
}

fn side_by_side(contenders: &[Value]) -> Result<String, ContestError> {
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

/// Both ways by powers of ten: what grows with something goes up beside it, what does not is level. The thinner line is
/// the node's processor time.
fn growth(curves: &[Value]) -> Result<String, ContestError> {
    const SIDE: f64 = 250.0;
    const HEIGHT: f64 = 260.0;
    const FLOOR: f64 = 200.0;
    let mut body = String::new();
    for (index, curve) in curves.iter().enumerate() {
        let left = 50.0 + index as f64 * (SIDE + 36.0);
        let by = |column: usize| -> Vec<(f64, f64)> {
            let point = |point: &Value| Some((point[0].as_f64()?, point[column].as_f64()?));
            curve["points"].as_array().into_iter().flatten().filter_map(point).collect()
        };
        let (points, of_node) = (by(1), by(2));
        let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
        let (from, to) = (first.0.log10(), last.0.log10().max(first.0.log10() + 1.0));
        let across = |size: f64| left + (size.log10() - from) / (to - from) * (SIDE - 30.0);
        // From a microsecond to ten milliseconds.
        let up = |cost: f64| FLOOR - cost.log10().clamp(0.0, 4.0) / 4.0 * 150.0;
        let title = escaped(curve["what"].as_str().unwrap_or_default());
        writeln!(body, r#"<text x="{left:.0}" y="28" class="small">{title}</text>"#)?;
        for (power, label) in ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms"].into_iter().enumerate() {
            let y = up(10_f64.powi(power as i32));
            writeln!(body, r##"<path d="M{left:.0} {y:.0}h{:.0}" stroke="#d9e2ec"/>"##, SIDE - 30.0)?;
            writeln!(body, r#"<text x="{:.0}" y="{:.0}" class="tick">{label}</text>"#, left - 4.0, y + 4.0)?;
        }
        for (points, colour, width) in [(&points, OURS, 2.0), (&of_node, DURABLE, 1.2)] {
            let path: Vec<String> =
                points.iter().map(|(size, cost)| format!("{:.1},{:.1}", across(*size), up(*cost))).collect();
            let path = path.join(" ");
            writeln!(body, r#"<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#)?;
        }
        for (size, cost) in points {
            let (x, y) = (across(size), up(cost));
            writeln!(body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{OURS}"/>"#)?;
            writeln!(body, r#"<text x="{x:.0}" y="{:.0}" class="point">{cost:.0}</text>"#, y - 7.0)?;
            writeln!(body, r#"<text x="{x:.0}" y="218" class="point">{}</text>"#, sized(size))?;
        }
        let unit = curve["unit"].as_str().unwrap_or_default();
        writeln!(body, r#"<text x="{left:.0}" y="238" class="small">{unit}</text>"#)?;
    }
    for (x, colour, what) in [(590, OURS, "by the clock"), (710, DURABLE, "the node's processor time")] {
        writeln!(body, r#"<path d="M{x} 248h14" stroke="{colour}" stroke-width="2"/>"#)?;
        writeln!(body, r#"<text x="{}" y="252" class="small">{what}</text>"#, x + 18)?;
    }
    Ok(format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif">
<style>.small{{font-size:12px;fill:#1f2933}}.tick{{font-size:10px;text-anchor:end;fill:#7b8794}}.point{{font-size:10px;text-anchor:middle;fill:#52606d}}</style>
<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff" stroke="#d9e2ec"/>
{body}</svg>
"##
    ))
}

fn sized(size: f64) -> String {
    match size {
        size if size >= 1e6 => format!("{:.0}M", size / 1e6),
        size if size >= 1e3 => format!("{:.0}k", size / 1e3),
        size => format!("{size:.0}"),
    }
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
        let svg = of(&json!({ "contenders": [one("slow & old", 10.0, 2.5), one("quick", 90_000.0, 0.5)] }))
            .expect("it can be drawn");
        let place = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text} is in {svg}"));
        assert!(place(">90.0k<") < place(">10<") && place(">0.50 ms<") < place(">2.50 ms<"));
        assert!(svg.contains("slow &amp; old"));
        assert!(of(&json!({ "contenders": [] })).is_err());
    }

    #[test]
    fn what_costs_more_is_higher() {
        let points = json!([[10, 5.0, 3.0], [1_000, 5.0, 3.0], [100_000, 500.0, 3.0]]);
        let curve = json!({ "what": "a", "unit": "jobs", "points": points });
        let svg = of(&json!({ "growth": [curve] })).expect("it can be drawn");
        let heights = |line: &str| -> Vec<f64> {
            let points = line.split('"').nth(1).expect("points").split(' ');
            points.map(|point| point.split(',').nth(1).expect("a height").parse().expect("a number")).collect()
        };
        let lines: Vec<_> = svg.lines().filter(|line| line.contains("polyline")).map(heights).collect();
        let [taken, node] = &lines[..] else { panic!("a line by the clock and one of the node: {lines:?}") };
        assert!(taken[0] == taken[1] && taken[2] < taken[1], "{taken:?}");
        assert!(node[0] == node[2] && node[0] > taken[0], "what costs less is lower: {node:?}");
    }
}
