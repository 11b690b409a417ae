//! Processes with bad connections of their own over one engine: see [`firth_laws::faulty`].

use firth::{Broker, Engine};
pub(crate) use firth_laws::faulty::Fault;
use firth_laws::faulty::{Faults, Faulty};

/// A broker over `engine` whose connection obeys the returned switchboard.
pub(crate) fn process(engine: &Engine) -> (Broker, Faulty) {
    let (engine, faults) = Faulty::wrap(engine.clone(), Faults::default());
    (Broker::with_engine(engine), faults)
}

/// A broker over `engine` that is never told that something changed.
pub(crate) fn deaf_process(engine: &Engine) -> Broker {
    let (broker, faults) = process(engine);
    faults.deafen();
    broker
}
