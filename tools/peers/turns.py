"""A contestant's side of the turns: it plays a round, says so on stdout, and waits for a line on stdin."""

from __future__ import annotations

import json
import os
import sys


class Turns:
    """The channel to the tool.  What else the process writes to stdout goes to stderr from here on.

    The first round begins at once.  Each later one, and the end of the process, waits for the tool.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.round = 0

    def played(self, parameters: int, clients: int, parts: dict[str, dict[str, float]] | None = None) -> None:
        """Tell that a round ended, with the model's parameters and the clients that trained; wait for the next turn.

        ``parts`` is the round's time by part, where it is measured.

        Ends the process if the tool is gone.
        """
        self.round += 1
        facts = {"round": self.round, "parameters": parameters, "clients": clients, "parts": parts}
        self._answers.write(json.dumps(facts) + "\n")
        self._answers.flush()
        if not sys.stdin.readline():
            sys.exit("the tool that gives the turns is gone")
