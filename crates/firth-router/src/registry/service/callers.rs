//! [`Callers`]: who may call the registry over gRPC. The program around the service knows them.

use crate::registry::Access;
use hyper::header::HeaderMap;
use std::net::IpAddr;

/// Decides on every call.
pub trait Callers: Send + Sync {
    /// Lets the caller in, or refuses the call. The service asks before it reads the body, so this
    /// must not block.
    fn admit(&self, call: &RegistryCall<'_>) -> Result<Admitted, Refused>;
}

/// A call before its body is read.
#[derive(Debug)]
#[non_exhaustive]
pub struct RegistryCall<'a> {
    /// Which call: the path of the request.
    pub path: &'a str,
    /// What the caller sent as its head.
    pub headers: &'a HeaderMap,
    /// The address of the other end, if the listener tells.
    pub peer: Option<IpAddr>,
}

/// A caller that is let in.
pub struct Admitted {
    /// The gateways and tenants that it may register.
    pub access: Access,
    /// Hears how the call was answered.
    pub report: Report,
}

/// Hears how one call was answered.
pub type Report = Box<dyn FnOnce(&CallOutcome<'_>) + Send>;

/// How a call was answered.
#[derive(Debug)]
#[non_exhaustive]
pub struct CallOutcome<'a> {
    /// The gateway, or tenant and subscription, that the call names: `edge-1`, `acme/s1`; empty if
    /// the call could not be read.
    pub about: &'a str,
    /// The status of gRPC; 1 if the caller gave the call up, which may have happened all the same.
    pub status: u32,
}

/// A call that is refused.
#[derive(Debug)]
pub struct Refused {
    /// The status of gRPC: 16 for an unknown caller, 7 for one that may not register, 14 for one
    /// that must wait.
    pub status: u32,
    /// For people: what to do.
    pub text: String,
}

/// Reports one call, also one that is dropped before its answer.
pub(super) struct Reporting {
    report: Option<Report>,
    pub(super) about: String,
}

impl Reporting {
    pub(super) fn new(report: Report) -> Self {
        Self { report: Some(report), about: String::new() }
    }

    pub(super) fn answered(mut self, status: u32) {
        self.tell(status);
    }

    fn tell(&mut self, status: u32) {
        if let Some(report) = self.report.take() {
            report(&CallOutcome { about: &self.about, status });
        }
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        self.tell(1);
    }
}
