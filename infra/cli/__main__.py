"""`python -m infra.cli` is `lockstep`."""

from infra.cli import main

main()
