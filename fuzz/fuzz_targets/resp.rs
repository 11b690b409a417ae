//! Any bytes at all, through the RESP decoder; the laws are in `firth_redis::fuzzing::resp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firth_redis::fuzzing::resp(data));
