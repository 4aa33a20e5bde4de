"""Methods against the drift of clients, and for fairness among them: scaffold, feddyn, fednova, qfedavg."""
