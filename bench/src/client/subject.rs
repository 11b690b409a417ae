//! What a client library must offer to be measured: one connection, shared by clones, and the five
//! calls of the workloads. Each subject implements it in a file of its own, in its documented best
//! way.

use super::workload::Key;
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::future::Future;

/// One library with one open connection. A clone is what a task holds, and holds alone.
///
/// Every call waits for the server's answer and checks it, so that no subject is fast by being
/// wrong.
pub(crate) trait Subject: Clone + Send + Sync + Sized + 'static {
    /// Opens the one connection to the server on loopback.
    fn connect(port: u16) -> impl Future<Output = Result<Self>> + Send;

    /// GET, giving the length of the value.
    fn get(&mut self, key: &Key) -> impl Future<Output = Result<usize>> + Send;

    /// SET.
    fn set(&mut self, key: &Key, value: &Bytes) -> impl Future<Output = Result<()>> + Send;

    /// GET of all keys in one explicit pipeline, giving the sum of the lengths.
    fn get_all(&mut self, keys: &[Key]) -> impl Future<Output = Result<usize>> + Send;

    /// XADD of one record to the appended stream, the server choosing the id.
    fn append(&mut self, value: &Bytes) -> impl Future<Output = Result<()>> + Send;

    /// XREADGROUP of up to a batch of new records, then XACK of their ids; gives how many there
    /// were. Ids and values must be at hand as owned values, as a consumer needs them.
    fn read_and_ack(&mut self) -> impl Future<Output = Result<usize>> + Send;
}

/// An answer of another size than was stored means that replies are mixed up.
pub(crate) fn check(what: &str, got: usize, expected: usize) -> Result<()> {
    ensure!(got == expected, "{what}: {got} instead of {expected}");
    Ok(())
}
