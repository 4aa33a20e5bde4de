"""Parts of ``bench.py``: what is measured, the jobs, and one file for each contestant that plays them."""
