"""`python bench/run.py` is `python -m bench`, from any directory."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
runpy.run_module("bench", run_name="__main__")
