"""The Python API, equal to the command line."""

from edgefl.commands.analysing import analyse
from edgefl.commands.calibrating import calibrate
from edgefl.commands.checking import check_method
from edgefl.commands.fitting import fit
from edgefl.commands.profiling import profile
from edgefl.commands.running import run
from edgefl.commands.sweeping import sweep
from edgefl.commands.validating import validate
from edgefl.runs import read_run

__all__ = ["analyse", "calibrate", "check_method", "fit", "profile", "read_run", "run", "sweep", "validate"]
