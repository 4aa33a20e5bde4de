"""Class prototypes that clients share, low-rank training of attention, and a server that trains the classifier."""
