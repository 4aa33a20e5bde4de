"""Output for people: summaries of runs, tables on the console, figures, and progress lines."""
