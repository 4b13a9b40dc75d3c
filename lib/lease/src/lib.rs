//! Leases that are renewed by beats, that is by work, and never by a timer.
