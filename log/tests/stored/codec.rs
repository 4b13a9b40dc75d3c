//! Stored bytes: what was written is read, whatever it is; what was damaged is refused; what was released stays.

use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::manager::SnapshotRecord;
use onward_log::codec::{self, DecodeError, KNOWN};
use onward_log::{Batch, BatchId, BatchKey};
use proptest::prelude::*;

use crate::samples::{Draw, VARIANTS, variant};

/// The files that a format was released with. The bytes never change; the text does if records gain fields.
struct Golden {
    format: u8,
    row: &'static [u8],
    row_text: &'static str,
    records: &'static [u8],
    records_text: &'static str,
}

macro_rules! golden {
    ($format:literal) => {
        Golden {
            format: $format,
            row: include_bytes!(concat!("../golden/v", $format, ".bin")),
            row_text: include_str!(concat!("../golden/v", $format, ".txt")),
            records: include_bytes!(concat!("../golden/v", $format, "-records.bin")),
            records_text: include_str!(concat!("../golden/v", $format, "-records.txt")),
        }
    };
}

const RELEASED: [Golden; KNOWN as usize] = [golden!(1), golden!(2)];

fn key() -> BatchKey {
    BatchKey { term: Term::new(7), id: BatchId(u64::MAX), first: Seq(1_000_000) }
}

fn row(events: &[StampedEvent]) -> Vec<u8> {
    let mut row = Vec::new();
    codec::encode(key(), events, &mut row);
    row
}

/// A row whose checksum is right, whatever its body says.
fn sealed(version: u8, body: &[u8]) -> Vec<u8> {
    let mut row = vec![version];
    row.extend(crc32fast::hash(body).to_le_bytes());
    row.extend(body);
    row
}

fn golden_events() -> Vec<StampedEvent> {
    let mut draw = Draw::new(1);
    [draw.every_event(), draw.every_event()].concat()
}

/// To write the texts of all formats anew, because records gained fields, set `ONWARD_WRITE_GOLDEN` to `text`, test and
/// test again. To make the bytes of a new format, set it to `new`. Those of a released one never change.
#[test]
fn every_format_is_what_it_was() {
    if let Some(what) = std::env::var_os("ONWARD_WRITE_GOLDEN") {
        return write_golden(what == "new");
    }
    for Golden { format, row: bytes, row_text, records, records_text } in RELEASED {
        let read = codec::decode(bytes).expect("every format that was released stays readable");
        assert!(format!("{read:#?}\n") == row_text, "the bytes of format {format} mean something else than they did");
        let again = row(&read.events);
        assert_eq!(codec::decode(&again).unwrap(), read);
        let mut found: Vec<usize> = read.events.iter().map(|stamped| variant(&stamped.event)).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 27, "the golden file has every variant that there was");
        let read = codec::decode_records(records).expect("every format that was released stays readable");
        assert!(format!("{read:#?}\n") == records_text, "the records of format {format} are not what they were");
        let records_again = chunk(&read);
        assert_eq!(codec::decode_records(&records_again).unwrap(), read);
        if format == KNOWN {
            assert!(again == bytes, "format {format} writes other bytes than it did: make it a new format");
            assert!(records_again == records, "format {format} writes other bytes than it did: make it a new format");
        }
    }
}

fn write_golden(is_new: bool) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    if is_new {
        std::fs::write(format!("{folder}/v{KNOWN}.bin"), row(&golden_events())).unwrap();
        let records = chunk(&[Draw::new(2).records(), Draw::new(3).records()].concat());
        std::fs::write(format!("{folder}/v{KNOWN}-records.bin"), records).unwrap();
    }
    for format in 1..=KNOWN {
        let row = codec::decode(&std::fs::read(format!("{folder}/v{format}.bin")).unwrap()).unwrap();
        std::fs::write(format!("{folder}/v{format}.txt"), format!("{row:#?}\n")).unwrap();
        let bytes = std::fs::read(format!("{folder}/v{format}-records.bin")).unwrap();
        let records = codec::decode_records(&bytes).unwrap();
        std::fs::write(format!("{folder}/v{format}-records.txt"), format!("{records:#?}\n")).unwrap();
    }
}

fn chunk(records: &[SnapshotRecord]) -> Vec<u8> {
    let mut chunk = Vec::new();
    codec::encode_records(records, &mut chunk);
    chunk
}

#[test]
fn every_variant_has_a_sample() {
    let numbers: Vec<usize> = Draw::new(0).every_event().iter().map(|stamped| variant(&stamped.event)).collect();
    assert_eq!(numbers, (0..VARIANTS).collect::<Vec<_>>());
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let mut newer = row(&golden_events());
    newer[0] = KNOWN + 1;
    let refused = codec::decode(&newer).unwrap_err();
    assert_eq!(refused, DecodeError::NewerFormat { found: 3, known: 2 });
    assert_eq!(refused.to_string(), "written in format 3, and this program knows 2; use a newer onward");
    assert_eq!(codec::decode_opaque(&newer).unwrap_err(), refused);
}

#[test]
fn any_flipped_bit_is_noticed() {
    let whole = row(&Draw::new(3).every_event());
    let mut damaged = whole.clone();
    for bit in 0..whole.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(codec::decode(&damaged).is_err(), "bit {bit}");
        damaged[bit / 8] = whole[bit / 8];
    }
    assert!(codec::decode(&damaged).is_ok());
}

#[test]
fn what_follows_a_batch_is_damage() {
    let mut body = row(&golden_events()).split_off(5);
    assert!(codec::decode(&sealed(KNOWN, &body)).is_ok());
    body.push(0);
    assert_eq!(codec::decode(&sealed(KNOWN, &body)), Err(DecodeError::Corrupt("more bytes than there should be")));
    assert!(codec::decode(&[]).is_err());
    assert!(codec::decode(&sealed(0, &body)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(seed: u64, term: u64, id: u64, first: u64) {
        let events = Draw::new(seed).every_event();
        let key = BatchKey { term: Term::new(term), id: BatchId(id), first: Seq(first) };
        let mut row = b"before".to_vec();
        codec::encode(key, &events, &mut row);
        let read = codec::decode(&row[6..]).unwrap();
        prop_assert_eq!(read, Batch { term: key.term, id: key.id, first: key.first, events });
    }

    #[test]
    fn whole_jobs_and_records_are_read_as_written(seed: u64) {
        let mut draw = Draw::new(seed);
        let (image, records) = (draw.image(), draw.records());
        let mut row = b"before".to_vec();
        codec::encode_image(&image, &mut row);
        prop_assert_eq!(codec::decode_image(&row[6..]).unwrap(), image);
        prop_assert_eq!(codec::decode_records(&chunk(&records)).unwrap(), records);
    }

    #[test]
    fn damaged_records_never_panic(seed: u64, at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
        let mut body = chunk(&Draw::new(seed).records()).split_off(5);
        let at = at.index(body.len());
        body[at] = value;
        let _ = codec::decode_records(&sealed(KNOWN, &body));
        body.truncate(cut.index(body.len()));
        prop_assert!(codec::decode_records(&sealed(KNOWN, &body)).is_err(), "records that are cut off");
    }

    #[test]
    fn opaque_bytes_come_back_as_they_were(bytes: Vec<u8>) {
        let mut row = Vec::new();
        codec::encode_opaque(&bytes, &mut row);
        prop_assert_eq!(codec::decode_opaque(&row), Ok(&bytes[..]));
    }

    /// Damage under a checksum that matches: an error or another batch, never a panic.
    #[test]
    fn damage_never_panics(seed: u64, at: prop::sample::Index, value: u8, cut: prop::sample::Index, noise: Vec<u8>) {
        let mut body = row(&Draw::new(seed).every_event()).split_off(5);
        let at = at.index(body.len());
        body[at] = value;
        let _ = codec::decode(&sealed(KNOWN, &body));
        body.truncate(cut.index(body.len()));
        prop_assert!(codec::decode(&sealed(KNOWN, &body)).is_err(), "a batch that is cut off");
        let _ = codec::decode(&sealed(KNOWN, &noise));
        prop_assert!(codec::decode(&noise).is_err());
    }
}
