use super::*;

fn at(text: &str) -> Wall {
    let timestamp: Timestamp = text.parse().unwrap();
    Wall::from_ms(timestamp.as_millisecond() as u64)
}

/// The instants from `after` to `until`, as people in the zone read them.
fn due(expression: &str, zone: &str, after: &str, until: &str) -> Vec<String> {
    let calendar = Calendar::cron(expression, zone).unwrap();
    let until = at(until);
    let zone = TimeZone::get(zone).unwrap();
    let instants = calendar.after(at(after)).take_while(|instant| *instant <= until);
    instants.map(|instant| zoned(instant, &zone).unwrap().strftime("%d %H:%M %Z").to_string()).collect()
}

#[test]
fn clocks_that_go_forward_leave_out_no_run_of_a_fixed_time() {
    // In Berlin 02:00 to 03:00 does not exist on 29 March 2026; in New York on 8 March 2026.
    let berlin = ("Europe/Berlin", "2026-03-28T00:00:00Z", "2026-03-30T20:00:00Z");
    let new_york = ("America/New_York", "2026-03-07T05:00:00Z", "2026-03-09T20:00:00Z");
    for (expression, (zone, after, until), expected) in [
        ("30 2 * * *", berlin, &["28 02:30 CET", "29 03:00 CEST", "30 02:30 CEST"][..]),
        ("30 2 * * *", new_york, &["07 02:30 EST", "08 03:00 EDT", "09 02:30 EDT"]),
        ("0 6 * * *", berlin, &["28 06:00 CET", "29 06:00 CEST", "30 06:00 CEST"]),
        ("0 6 * * *", new_york, &["07 06:00 EST", "08 06:00 EDT", "09 06:00 EDT"]),
    ] {
        assert_eq!(due(expression, zone, after, until), expected, "{expression} in {zone}");
    }
    let steps = due("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z");
    assert_eq!(steps, ["29 01:30 CET", "29 03:00 CEST", "29 03:30 CEST", "29 04:00 CEST"]);
    let steps = due("*/30 * * * *", "America/New_York", "2026-03-08T06:00:00Z", "2026-03-08T08:00:00Z");
    assert_eq!(steps, ["08 01:30 EST", "08 03:00 EDT", "08 03:30 EDT", "08 04:00 EDT"]);
    // Two times that the gap brings together are due once.
    let both = due("0 2,3 * * *", "Europe/Berlin", "2026-03-28T20:00:00Z", "2026-03-29T20:00:00Z");
    assert_eq!(both, ["29 03:00 CEST"]);
}

#[test]
fn clocks_that_go_back_repeat_no_run_of_a_fixed_time() {
    // In Berlin 02:00 to 03:00 comes twice on 25 October 2026; in New York 01:00 to 02:00 on 1 November 2026.
    let berlin = ("Europe/Berlin", "2026-10-24T00:00:00Z", "2026-10-26T20:00:00Z");
    let new_york = ("America/New_York", "2026-10-31T04:00:00Z", "2026-11-02T20:00:00Z");
    for (expression, (zone, after, until), expected) in [
        ("30 2 * * *", berlin, &["24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET"][..]),
        ("30 1 * * *", new_york, &["31 01:30 EDT", "01 01:30 EDT", "02 01:30 EST"]),
    ] {
        assert_eq!(due(expression, zone, after, until), expected, "{expression} in {zone}");
    }
    let steps = due("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", "2026-10-25T02:00:00Z");
    let both = ["25 02:00 CEST", "25 02:30 CEST", "25 02:00 CET", "25 02:30 CET", "25 03:00 CET"];
    assert_eq!(steps, both);
    let steps = due("*/30 * * * *", "America/New_York", "2026-11-01T04:30:00Z", "2026-11-01T07:00:00Z");
    let both = ["01 01:00 EDT", "01 01:30 EDT", "01 01:00 EST", "01 01:30 EST", "01 02:00 EST"];
    assert_eq!(steps, both);
}

#[test]
fn leap_days_and_what_follows_them() {
    let leap = Calendar::cron("0 12 29 2 *", "UTC").unwrap();
    let instants: Vec<Wall> = leap.after(at("2026-01-01T00:00:00Z")).take(2).collect();
    assert_eq!(instants, [at("2028-02-29T12:00:00Z"), at("2032-02-29T12:00:00Z")]);
    let last = Calendar::cron("0 0 L 2 *", "UTC").unwrap();
    let instants: Vec<Wall> = last.after(at("2027-01-01T00:00:00Z")).take(2).collect();
    assert_eq!(instants, [at("2027-02-28T00:00:00Z"), at("2028-02-29T00:00:00Z")]);
    // 2100 is no leap year.
    let after = leap.after(at("2096-03-01T00:00:00Z")).next();
    assert_eq!(after, Some(at("2104-02-29T12:00:00Z")));
}

#[test]
fn intervals_are_the_same_for_everybody() {
    let every = Calendar::every(Duration::from_secs(600)).unwrap();
    let instants: Vec<Wall> = every.after(at("2026-03-29T00:55:00Z")).take(2).collect();
    assert_eq!(instants, [at("2026-03-29T01:00:00Z"), at("2026-03-29T01:10:00Z")]);
    assert_eq!(every.after(instants[0]).next(), Some(instants[1]), "later than, and not at");
    assert_eq!(
        Calendar::every(Duration::from_millis(999)).unwrap_err(),
        TimingError::TooShort(Duration::from_millis(999))
    );
}

#[test]
fn what_cannot_be_due_is_refused_with_a_remedy() {
    for (expression, zone, says) in [
        ("0 6 * *", "UTC", "write five fields"),
        ("0 25 * * *", "UTC", "write five fields"),
        ("", "UTC", "write five fields"),
        ("* * * * * * * *", "UTC", "write five fields"),
        ("0 6 * * *", "Europe/Atlantis", "IANA time zone database"),
        ("0 6 * * *", "", "IANA time zone database"),
        ("0 0 30 2 *", "UTC", "never due"),
        (&"1,".repeat(500), "UTC", "longer than 256 bytes"),
    ] {
        let error = Calendar::cron(expression, zone).unwrap_err().to_string();
        assert!(error.contains(says), "{expression}: {error}");
    }
}

#[test]
fn the_longest_gap_is_that_of_the_weekend() {
    let from = at("2026-11-16T12:00:00Z");
    let gap = |expression| Calendar::cron(expression, "UTC").unwrap().longest_gap(from).unwrap().as_secs() / 3_600;
    assert_eq!((gap("0 9 * * MON-FRI"), gap("0 9 * * *"), gap("0 9 1 * *")), (72, 24, 31 * 24));
    assert_eq!(Calendar::every(Duration::from_secs(7)).unwrap().longest_gap(from), Some(Duration::from_secs(7)));
}

#[test]
fn instants_rise_over_years_of_every_zone_that_jumps() {
    for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"] {
        for expression in ["*/20 * * * *", "30 2 * * *", "0,30 1-3 * * *"] {
            let calendar = Calendar::cron(expression, zone).unwrap();
            let until = at("2026-12-01T00:00:00Z");
            let mut last = at("2026-01-01T00:00:00Z");
            for instant in calendar.after(last).take_while(|instant| *instant < until) {
                assert!(instant > last, "{expression} in {zone}");
                last = instant;
            }
            assert!(until.since(last) <= Duration::from_secs(48 * 3_600), "{expression} in {zone} ends at {last:?}");
        }
    }
}
