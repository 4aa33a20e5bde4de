"""Methods whose clients exchange representations of public samples with the server."""
