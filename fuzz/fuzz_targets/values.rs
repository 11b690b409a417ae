//! Any bytes at all, taken for stored values of the embedded engine; the laws are in
//! `firth_engine::fuzzing::values`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firth_engine::fuzzing::values(data));
