from edgefl import units
from edgefl.devices import Budget


class Flash(Budget):
    """Most bytes that a round writes to the card."""

    noun, quantity = "flash", units.BYTES
    summary = "Most bytes that a round writes to flash: what arrives, and the trained model."
    grows = True  # more work never writes less

    def of(self, rounds):
        return rounds.download_bytes + rounds.loaded_bytes

    def show(self, amount):
        return units.show_bytes(amount)
