"""A scenario's rounds on real devices, which some program's transport reaches: orders, copies, replies, the run."""
