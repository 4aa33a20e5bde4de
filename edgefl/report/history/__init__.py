"""Output for people about single rounds of a run, and tables of results in notebooks."""
