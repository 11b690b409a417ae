//! RESP3 on the wire.
