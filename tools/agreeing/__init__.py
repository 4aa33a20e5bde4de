"""The programs that ``agree_with_peers.py`` compares: one process each, in an environment of its own."""
