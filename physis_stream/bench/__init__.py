"""What is measured: each module has `run(...) -> dict`, keys as in docs/benchmarks.md; the command line prints it."""
