"""Training in workers on a Ray cluster (the extra ``ray``)."""
