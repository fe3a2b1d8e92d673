//! L3: the event log and its SQLite index
