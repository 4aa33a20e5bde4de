"""A scenario as an app of Flower, for devices of one's own."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from edgefl import __version__
from edgefl.deployment.leaving import check_leaves
from edgefl.runs.durable import replace_file, writing
from edgefl.runs.progress import OnProgress, messages
from edgefl.scenario import Scenario
from edgefl.setup.compose import compose

FLOWER = "1.42.0"
"""The version of flwr whose Message API the app speaks, and with which it is tested."""
PINNED = ("torch", "numpy", "safetensors", "tokenizers", "transformers")
"""Packages on which the last bit of a weight may depend: the server and all nodes get the versions of this machine."""
PATIENCE = 600.0
"""Seconds after which a round gives a node up, where the scenario has no deadline.  A choice: a small board trains a
small model in less."""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "The scenario {name}, exported by edgefl {edgefl}"
license = "Apache-2.0"
dependencies = ["flwr=={flower}", "edgefl-sim=={edgefl}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "edgefl"

[tool.flwr.app.components]
serverapp = "edgefl_app.server_app:app"
clientapp = "edgefl_app.client_app:app"

[tool.flwr.app.config]
# the run's folder, below the folder in which the SuperLink runs unless it begins with /
output = "runs/{name}-real"
# seconds in which every client gets a node; then the first round begins with those that are there
wait = 600.0
# seconds after which a round gives a node up
patience = {patience}
"""

SERVER_APP = '''\
"""The server: it plays the scenario's rounds on the SuperNodes."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from edgefl.deployment.flower import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    serve(grid, context, Path(__file__).with_name("scenario.yaml"))
'''

CLIENT_APP = '''\
"""A client: it says who it is, and trains."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from edgefl.deployment.flower import reply

app = ClientApp()


@app.query()
def greet(message: Message, context: Context) -> Message:
    return reply(message, context, Path(__file__).with_name("scenario.yaml"))


@app.train()
def train(message: Message, context: Context) -> Message:
    return reply(message, context, Path(__file__).with_name("scenario.yaml"))
'''


def write_app(scenario: Scenario, folder: Path, on_progress: OnProgress) -> tuple[list[str], str]:
    """Write the app; return its files, and how to start it.

    Raises ScenarioError for a scenario that can't leave the simulation, or can't be run.
    """
    check_leaves(scenario)
    compose(scenario, messages(on_progress), trains=False)
    name = re.sub(r"[^a-z0-9]+", "-", scenario.name.lower()).strip("-") or "scenario"
    patience = PATIENCE if scenario.round.deadline is None else scenario.round.deadline
    pinned = {"flwr": FLOWER, "edgefl-sim": __version__, **{each: version(each) for each in PINNED}}
    content = {
        "pyproject.toml": PROJECT.format(name=name, edgefl=__version__, flower=FLOWER, patience=float(patience)),
        # a build's own name (+cpu) is of one index only, and other machines take another build
        "constraints.txt": "".join(f"{each}=={number.partition('+')[0]}\n" for each, number in pinned.items()),
        "edgefl_app/__init__.py": "",
        "edgefl_app/server_app.py": SERVER_APP,
        "edgefl_app/client_app.py": CLIENT_APP,
        "edgefl_app/scenario.yaml": scenario.to_yaml(),
    }
    with writing(folder):
        (folder / "edgefl_app").mkdir(parents=True, exist_ok=True)
    for file, text in content.items():
        replace_file(folder / file, text.encode())
    on_progress("done", {"folder": str(folder)})
    note = f"on the server and on every node: pip install -c {folder / 'constraints.txt'} edgefl-sim flwr"
    return [str(folder / file) for file in content], note
