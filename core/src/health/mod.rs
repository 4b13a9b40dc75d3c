//! Health means forward progress: three independent signals, one verdict, one action.
