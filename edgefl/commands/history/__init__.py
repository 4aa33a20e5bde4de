"""What a finished or unfinished run's records tell of single rounds: explanations, traces, exports."""
