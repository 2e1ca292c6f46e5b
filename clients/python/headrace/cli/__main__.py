"""`python -m headrace.cli` is the same as `headrace`."""

from headrace.cli import main

main()
