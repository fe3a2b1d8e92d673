//! L2: ledger, planner and data scheduler as a sans-I/O core, and the loop that drives it.
