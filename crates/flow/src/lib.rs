//! L2: the workflow file: strict parsing, checks and diagnostics
