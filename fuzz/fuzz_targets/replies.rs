//! Any bytes at all, taken for answers of a server to scripts; the laws are in
//! `firth_engine::fuzzing::replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firth_engine::fuzzing::replies(data));
