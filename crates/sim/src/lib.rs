//! L3: a world in virtual time, for plans and for tests of the engine
