"""The tables and figures of papers, made again and compared with those committed (``tools/papers.py``)."""
