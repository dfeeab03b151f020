"""Sources: what other schedulers write, as Lockstep's own events.

`openb` reads the trace that comes with the package, `slurm` and `kubernetes` read what those systems' commands print.
Each turns text into a `Found`; none talks to a network, a log or a clock. Called by `lockstep import` and the demo.
"""
