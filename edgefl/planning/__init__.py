"""Planning: what a client would do in a round and what it would cost, before anything runs."""
