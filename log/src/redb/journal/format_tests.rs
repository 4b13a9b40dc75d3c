use proptest::prelude::*;

use super::*;

const HALF: usize = 4096;
const LOG: u64 = 7;

fn header_of(generation: u64, first: u64) -> Header {
    Header { log: LOG, half_bytes: HALF as u64, generation, first }
}

/// A half with these rows of two events each and a mark, above what was there before; and where each entry ends.
fn written(half: &mut [u8], generation: u64, first: u64, rows: &[Vec<u8>]) -> Vec<usize> {
    let mut bytes = Vec::new();
    let mut link = put_header(&header_of(generation, first), Note::default(), &mut bytes);
    let (mut ends, mut next) = (Vec::new(), first);
    for row in rows {
        link = put_entry(&Place { log: LOG, generation, link, first: next }, 2, row, &mut bytes);
        ends.push(bytes.len());
        next += 2;
    }
    put_mark(&Place { log: LOG, generation, link, first: next }, &mut bytes);
    half[..bytes.len()].copy_from_slice(&bytes);
    ends
}

fn rows_in(half: &[u8], found: &Found) -> Vec<Vec<u8>> {
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
        put_mark(&Place { log, generation, link: 3, first: 100 }, &mut entry);
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
    assert_eq!(note(&half, LOG), Some(Note::default()));
    for at in NOTE_AT..NOTE_AT + 20 {
        let mut half = half.clone();
        half[at] ^= 1;
        assert_eq!(note(&half, LOG), None, "byte {at}");
    }
    half[8] = 3;
    let crc = crc32fast::hash(&half[..NOTE_AT - 4]);
    half[NOTE_AT - 4..NOTE_AT].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(scan(&half), Err(Error::NewerFormat { found: 3, known: 2 }));
}

fn rows() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 1..120), 0..12)
}

proptest! {
    /// Whatever becomes of the bytes: a prefix of what was written, or an error.
    #[test]
    fn damage_of_any_kind_gives_a_prefix(
        old in rows(),
        new in rows(),
        cut in 0..HALF,
        damage in prop::collection::vec((0..HALF, any::<u8>()), 0..4),
        torn in prop::collection::vec(any::<bool>(), HALF / 512),
    ) {
        let mut half = vec![0; HALF];
        written(&mut half, 3, 11, &old);
        let before = half.clone();
        written(&mut half, 4, 41, &new);
        // Sectors that the newer write did not reach.
        for (sector, _) in torn.iter().enumerate().filter(|(_, is_lost)| **is_lost) {
            let range = sector * 512..(sector + 1) * 512;
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
        half[HEADER..HEADER + bytes.len()].copy_from_slice(&bytes);
        let found = scan(&half).unwrap().unwrap();
        prop_assert!(found.spans.len() <= 1);
    }
}
