//! Health of a process by the forward progress of its loops.
