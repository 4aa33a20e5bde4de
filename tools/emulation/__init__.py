"""Clients as processes of this machine, with links, processor shares and memory limits that its kernel enforces."""
