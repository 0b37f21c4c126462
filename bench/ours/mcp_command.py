"""`duet-rpc mcp FILE`, as a host starts it: the command line, and a `def` as it comes."""

import os
import sys

from duet_rpc.cli import main

tools = os.path.join(os.path.dirname(__file__), "tools.py")  # nothing is imported for it
# The one thing that is not the default: "started" and "ended" would clutter the terminal.
sys.argv = ["duet-rpc", "mcp", tools, "--log-level", "warn"]
main()
