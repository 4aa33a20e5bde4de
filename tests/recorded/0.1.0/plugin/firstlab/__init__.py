from pathlib import Path

PROFILES = Path(__file__).parent / "profiles"
