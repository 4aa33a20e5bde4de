"""Records: everything that is written to a run's folder, and the answers of commands."""
