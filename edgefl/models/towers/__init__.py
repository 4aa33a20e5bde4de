"""The towers, one file each.  A tower encodes one modality and consists of an embedding, blocks and a norm."""
