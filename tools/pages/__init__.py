"""What ``tools/pages.py`` writes: a module for each page, table or picture."""
