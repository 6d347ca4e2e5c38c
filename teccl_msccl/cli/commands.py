"""The commands in the order that `--help` lists them: importing a file registers its command."""

# ruff: noqa: F401, I001
from . import topo
from . import topo_detect
from . import topo_match
from . import topo_calibrate
from . import synth
from . import bounds
from . import lower
from . import check
from . import simulate
from . import run
from . import bench
from . import doctor
from . import report
from . import store
from . import store_build
from . import store_launch
from . import route
from . import route_flows
from . import route_simulate
from . import route_serve
from . import route_experiment
