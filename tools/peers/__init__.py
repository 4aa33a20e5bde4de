"""Parts of ``bench_peers.py`` and ``bench_rounds.py``: the jobs, one file for each contestant, and the pairing."""
