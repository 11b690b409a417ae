//! Real servers, faults and laws for the tests of every firth crate.
