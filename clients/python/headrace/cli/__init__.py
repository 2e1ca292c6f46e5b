"""The `headrace` command; what it needs is in the extra `cli`."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the entry point of the package."""
    # Before gRPC is loaded, and only if nobody asked for more: its log lines would mix with the output,
    # and every failure is reported in one line anyway.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from headrace.cli._app import run
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in {"click", "rich"}:
            raise
        sys.exit(f"headrace: {package} is missing; the command line needs: pip install 'headrace[cli]'")
    run()
