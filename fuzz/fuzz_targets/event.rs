//! Any bytes at all, taken for the payload of a routed record; the laws are in
//! `firth_router::fuzzing::event`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firth_router::fuzzing::event(data));
