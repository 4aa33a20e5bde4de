"""Commands that don't follow from their functions yet; each goes with its line here."""

from importlib import import_module

OLD = {
    "sweep": "sweep", "explore": "explore",
}  # fmt: skip


def load() -> None:
    """Import them."""
    for module in dict.fromkeys(OLD.values()):
        import_module(f"edgefl.cli.{module}")
