"""Three profile libraries: one with a broken device, one whose folder is gone, and one that is None."""

from pathlib import Path

HALF = Path(__file__).parent / "profiles"
GONE = Path(__file__).parent / "gone"
NOTHING = None
