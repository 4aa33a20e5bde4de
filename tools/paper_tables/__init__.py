"""The tables and figures of docs/papers, made again and compared with those committed (``tools/papers.py``)."""
