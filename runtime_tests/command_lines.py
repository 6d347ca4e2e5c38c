"""What mpirun starts: several command lines (a JSON list of lists) one after another in one MPI job.

Starting the interpreter on every rank costs far more than a small collective does.
"""

import json
import sys

from teccl_msccl.cli import main

worst = 0
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as stop:
        worst = max(worst, int(stop.code or 0))
sys.exit(worst)
