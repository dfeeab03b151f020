"""What this installation is: known without loading any of it."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("lockstep")
