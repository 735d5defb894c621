"""`python -m harness`: the same program as the `harness` console script.

Knows nothing but where the command line starts. Called by Python.
"""

from __future__ import annotations

from harness.cli import main

if __name__ == "__main__":
    main()
