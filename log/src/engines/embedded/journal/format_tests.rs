use proptest::prelude::*;

use super::*;

const HALF: usize = 4096;
const LOG: u64 = 7;

fn header_of(generation: u64, first: u64) -> Header {
    Header { log: LOG, half_bytes: HALF as u64, generation, first }
}

/// A half with these rows of two events each and a mark, above what was there before; and where each entry ends.
fn written(half: &mut [u8], generation: u64, first: u64, rows: &[Vec<u8>]) -> Vec<usize> {
    let mut head = HalfHead::of(half);
    let mut link = head.put_header(&header_of(generation, first));
    let mut bytes = head.bytes().to_vec();
    let (mut ends, mut next) = (Vec::new(), first);
    for row in rows {
        link = put_entry(&EntryPlace { log: LOG, generation, link, first: next }, 2, row, &mut bytes);
        ends.push(bytes.len());
        next += 2;
    }
    put_mark(&EntryPlace { log: LOG, generation, link, first: next }, &mut bytes);
    half[..bytes.len()].copy_from_slice(&bytes);
    ends
}

fn rows_in(half: &[u8], found: &HalfContent) -> Vec<Vec<u8>> {
    found.spans.iter().map(|span| half[span.at..span.at + span.length].to_vec()).collect()
}

#[test]
fn what_was_written_is_found() {
    let rows = vec![b"one".to_vec(), vec![0; 300], b"three".to_vec()];
    let mut half = vec![0; HALF];
    assert_eq!(scan(&half), Ok(None), "never begun");
    let ends = written(&mut half, 5, 11, &rows);
    let found = scan(&half).unwrap().unwrap();
    assert_eq!((found.header, found.end, found.synced), (header_of(5, 11), ends[2], 16));
    assert_eq!(rows_in(&half, &found), rows);
    assert_eq!(
        found.spans.iter().map(|span| (span.first, span.next())).collect::<Vec<_>>(),
        [(11, 13), (13, 15), (15, 17)]
    );
}

#[test]
fn an_entry_counts_behind_the_one_that_it_was_written_behind() {
    let rows = vec![vec![1; 40], vec![2; 40], vec![3; 40]];
    let mut half = vec![0; HALF];
    let ends = written(&mut half, 5, 11, &rows);
    // The same length and sequence as before, so that what lies behind it fits in every other way.
    for (what, generation, synced) in [("a later generation", 6, 12), ("the same generation", 5, 16)] {
        let mut half = half.clone();
        let behind = half[ends[0]..].to_vec();
        let again = written(&mut half, generation, 11, &[vec![9; 40]]);
        assert_eq!(again[0], ends[0]);
        half[ends[0]..].copy_from_slice(&behind);
        let found = scan(&half).unwrap().unwrap();
        assert_eq!((rows_in(&half, &found), found.synced), (vec![vec![9; 40]], synced), "{what}");
    }
}

#[test]
fn damage_is_told_from_a_torn_end_by_what_lies_behind_it() {
    let rows = vec![vec![1; 40], vec![2; 40], vec![3; 40]];
    let mut whole = vec![0; HALF];
    let ends = written(&mut whole, 5, 11, &rows);
    for (entry, end) in ends.iter().enumerate() {
        for at in end - ENTRY - 40..*end {
            let mut half = whole.clone();
            half[at] ^= 1;
            let found = scan(&half).unwrap().unwrap();
            assert_eq!((found.spans.len(), found.synced), (entry, 16), "byte {at}");
        }
    }
    // Everything up to the mark, and then the mark as well.
    whole[ends[0]..ends[2]].fill(0);
    let found = scan(&whole).unwrap().unwrap();
    assert_eq!((found.spans.len(), found.synced), (1, 16));
    whole[ends[0]..].fill(0);
    let found = scan(&whole).unwrap().unwrap();
    assert_eq!((found.spans.len(), found.synced), (1, 12), "as a torn write would leave it");
}

#[test]
fn a_write_that_was_torn_has_no_witness() {
    let mut half = vec![0; HALF];
    let ends = written(&mut half, 5, 11, &[vec![1; 40], vec![2; 900]]);
    let end = ends[1];
    half[end..end + ENTRY].fill(0);
    half[end - 1] = 0;
    let found = scan(&half).unwrap().unwrap();
    assert_eq!((found.spans.len(), found.synced), (1, 12), "its fields alone prove nothing but what was before them");
}

#[test]
fn what_looks_like_an_entry_of_another_log_or_an_earlier_generation_is_no_witness() {
    for (log, generation, synced) in [(LOG, 5, 99), (LOG, 6, 99), (LOG, 4, 10), (LOG + 1, 5, 10)] {
        let mut half = vec![0; HALF];
        written(&mut half, 5, 11, &[]);
        let mut entry = Vec::new();
        put_mark(&EntryPlace { log, generation, link: 3, first: 100 }, &mut entry);
        half[1001..1001 + ENTRY].copy_from_slice(&entry);
        assert_eq!(scan(&half).unwrap().unwrap().synced, synced, "{log} {generation}");
    }
}

#[test]
fn a_half_that_is_none_is_refused_and_a_newer_one_by_name() {
    let mut half = vec![0; HALF];
    written(&mut half, 5, 11, &[vec![1; 40]]);
    for at in 0..NOTE_AT {
        let mut half = half.clone();
        half[at] ^= 1;
        assert!(matches!(scan(&half), Err(Error::Corrupt { .. })), "byte {at}");
    }
    assert_eq!(HalfHead::of(&half).note(LOG), Some((0, Note::default())));
    for at in NOTE_AT..NOTE_AT + 20 {
        let mut half = half.clone();
        half[at] ^= 1;
        assert_eq!(HalfHead::of(&half).note(LOG), None, "byte {at}");
    }
    half[8] = 4;
    let crc = crc32fast::hash(&half[..NOTE_AT - 4]);
    half[NOTE_AT - 4..NOTE_AT].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(scan(&half), Err(Error::NewerFormat { found: 4, known: 3 }));
}

/// Checks a write that was torn at every byte: only its beginning arrived, or only the rest.
fn torn(before: &[u8], after: &[u8], check: impl Fn(&[u8], &str)) {
    for at in 0..=before.len() {
        check(&[&after[..at], &before[at..]].concat(), &format!("the first {at} bytes"));
        check(&[&before[..at], &after[at..]].concat(), &format!("all but the first {at} bytes"));
    }
}

#[test]
fn a_head_that_is_torn_anywhere_is_the_one_before_or_the_new_one() {
    let mut half = vec![0; HALF];
    written(&mut half, 3, 11, &[vec![1; 40]]);
    for (generation, first) in [(4, 13), (5, 15), (6, 17)] {
        let before = half.clone();
        written(&mut half, generation, first, &[]);
        let headers = [&before, &half].map(|half| scan(half).unwrap().unwrap().header);
        assert_eq!(headers, [header_of(generation - 1, first - 2), header_of(generation, first)]);
        torn(&before[..HEAD], &half[..HEAD], |head, what| {
            let found = header(head).unwrap().expect(what).1;
            assert!(headers.contains(&found), "{what}: {found:?}");
        });
    }
}

#[test]
fn a_note_that_is_torn_anywhere_is_the_one_before_or_the_new_one() {
    let mut head = HalfHead::EMPTY;
    head.put_header(&header_of(1, 1));
    for synced in 1..6 {
        let (slot, before) = head.note(LOG).unwrap();
        let mut next = head;
        let note = Note { length: 100 * synced, synced };
        next.put_note(1 - slot, LOG, note);
        assert_eq!(next.note(LOG), Some((1 - slot, note)));
        torn(head.bytes(), next.bytes(), |head, what| {
            let found = HalfHead::of(head).note(LOG).expect(what).1;
            assert!([before, note].contains(&found), "{what}: {found:?}");
        });
        head = next;
    }
}

#[test]
fn an_entry_that_was_written_with_a_header_that_is_torn_is_no_witness_of_itself() {
    let mut half = vec![0; HALF];
    written(&mut half, 3, 11, &[]);
    let before = half.clone();
    let ends = written(&mut half, 4, 11, &[vec![1; 40], vec![2; 40]]);
    half[..HEAD].copy_from_slice(&before[..HEAD]);
    assert_eq!(scan(&half).unwrap().unwrap().synced, 14, "what came behind it is one");
    half[ends[1]..].fill(0);
    assert_eq!(scan(&half).unwrap().unwrap().synced, 14);
    half[ends[0]..].fill(0);
    assert_eq!(scan(&half).unwrap().unwrap().synced, 10);
}

#[test]
fn a_half_of_format_2_is_read_and_begun_anew_beside_what_it_says() {
    let mut half = vec![0; HALF];
    written(&mut half, 5, 11, &[]);
    half[8] = 2;
    let crc = crc32fast::hash(&half[..NOTE_AT - 4]);
    half[NOTE_AT - 4..NOTE_AT].copy_from_slice(&crc.to_le_bytes());
    let mut entry = Vec::new();
    put_entry(&EntryPlace { log: LOG, generation: 5, link: crc, first: 11 }, 2, &[7; 200], &mut entry);
    half[SLOT..SLOT + entry.len()].copy_from_slice(&entry);
    let found = scan(&half).unwrap().unwrap();
    assert_eq!((found.format, rows_in(&half, &found)), (JournalFormat::Two, vec![vec![7; 200]]));
    assert_eq!(HalfHead::of(&half).note(LOG), Some((0, Note::default())));
    let before = half.clone();
    written(&mut half, 6, 13, &[]);
    assert_eq!(scan(&half).unwrap().unwrap().format, JournalFormat::Three);
    torn(&before[..HEAD], &half[..HEAD], |head, what| {
        let found = header(head).unwrap().expect(what).1;
        assert!([header_of(5, 11), header_of(6, 13)].contains(&found), "{what}: {found:?}");
    });
}

fn rows() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 1..120), 0..12)
}

proptest! {
    /// Damage of any kind gives a prefix of what was written, or an error.
    #[test]
    fn damage_of_any_kind_gives_a_prefix(
        old in rows(),
        new in rows(),
        cut in 0..HALF,
        damage in prop::collection::vec((0..HALF, any::<u8>()), 0..4),
        torn in prop::collection::vec((0..HALF, 1..600_usize), 0..6),
    ) {
        let mut half = vec![0; HALF];
        written(&mut half, 3, 11, &old);
        let before = half.clone();
        written(&mut half, 4, 41, &new);
        // What the newer write did not reach.
        for (at, length) in torn {
            let range = at..HALF.min(at + length);
            half[range.clone()].copy_from_slice(&before[range]);
        }
        for (at, byte) in damage {
            half[at] = byte;
        }
        half.truncate(HALF - cut);
        if let Ok(Some(found)) = scan(&half) {
            let expected = if found.header == header_of(4, 41) { &new } else { &old };
            prop_assert!(found.header == header_of(4, 41) || found.header == header_of(3, 11));
            let read = rows_in(&half, &found);
            prop_assert_eq!(&read[..], &expected[..read.len()]);
        }
    }

    #[test]
    fn garbage_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = scan(&bytes);
        let mut half = vec![0; HALF];
        written(&mut half, 4, 41, &[vec![1; 40]]);
        half[HEAD..HEAD + bytes.len()].copy_from_slice(&bytes);
        let found = scan(&half).unwrap().unwrap();
        prop_assert!(found.spans.len() <= 1);
    }
}
