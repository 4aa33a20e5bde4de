"""The generated pages of docs/reference, which ``tools/reference.py`` writes."""
