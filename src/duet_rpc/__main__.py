"""`python -m duet_rpc` is `duet-rpc`."""

from duet_rpc.cli import main

main()
