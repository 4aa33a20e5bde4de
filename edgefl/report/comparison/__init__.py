"""Orderings over several seeds as Markdown."""
