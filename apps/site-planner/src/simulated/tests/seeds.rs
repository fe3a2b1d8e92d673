//! Random small worlds.
