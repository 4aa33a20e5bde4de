"""Methods whose clients and server exchange a table of class prototypes."""
