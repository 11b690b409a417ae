//! The driver as an outside program sees it: real processes, a real server, and the history checker as the judge.

mod chaos;
mod failing;
mod process;
mod protocol;
mod world;
