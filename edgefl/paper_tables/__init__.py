"""``edgefl papers``: the tables and figures of docs/papers, made again and compared with those that are committed."""
