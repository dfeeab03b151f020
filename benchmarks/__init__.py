"""Benchmarks: `python -m benchmarks NAME [--json FILE] [--quick]`."""

import os

# As the roles' processes have it (`infra.cli`).
os.environ.setdefault("POLARS_MAX_THREADS", "1")
