//! Any bytes at all, taken for a message of a live client; the laws are in
//! `firth_edge::fuzzing::message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firth_edge::fuzzing::message(data));
