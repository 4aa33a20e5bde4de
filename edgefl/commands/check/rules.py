"""The rules that a method keeps, as a report names them."""

from __future__ import annotations

from edgefl.planning.rules import BLIND as BLIND
from edgefl.planning.rules import KEPT as KEPT
from edgefl.planning.rules import NAMES as NAMES
from edgefl.planning.rules import WHOLE as WHOLE

WRITTEN = "a work is the same after encode() and decode()"
ANSWERS = "every function answers, and work() with a Work"
MEETS = "every schedule can restrict the work to its stages"
BUILT = "the model builds without data"
ADDRESSES = "every payload item has an address at the server"
LIKE = "a tensor for each parameter is cut with its parameter"
MEMORY = "predicted memory is the measured memory"
FLOPS = "predicted FLOPs are the executed ones"
BYTES = "predicted bytes are the serialised ones"
TRAINS = "training changes the trainable parameters"
STATELESS = "steps and edits keep nothing beside the context"
SEED = "the same seed gives the same bits"
PROCESS = "a worker process gives the same bits"
PURE = "aggregation changes no argument and keeps no state"
ORDER = "aggregation doesn't depend on the order of updates"
PLACES = "aggregation keeps every address, its shape and its precision"
VERSIONS = "a changed tensor gets a new version"
INACTIVE = "parameters that a stage doesn't train don't change"
UNTRAINED = "training: none needs shapes alone"
SPARSE = "aggregation works for the update of a single client"
SERVER = "the server's works run"
METRICS = "evaluation gives finite metrics"
SERVES = "at least one client kind takes part"
RUNS = "a scenario with the part runs"
REPEATS = "a run is the same again, whatever the global random state and the order of sets"
RESUMES = "an interrupted and resumed run equals one that wasn't interrupted"
PRICED = "a run costs what was predicted, and its records add up"
