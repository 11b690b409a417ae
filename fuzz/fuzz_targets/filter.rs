//! Any bytes at all, taken for a filter of a client; the laws are in
//! `firth_router::fuzzing::filter`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firth_router::fuzzing::filter(data));
