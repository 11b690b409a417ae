//! Any bytes at all, taken for the change stream of a database; the laws are in
//! `firth_connect::fuzzing::change_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firth_connect::fuzzing::change_stream(data));
