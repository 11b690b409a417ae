//! Any bytes at all, taken for a batch and its answer; the laws are in
//! `firth_router::fuzzing::batch`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firth_router::fuzzing::batch(data));
