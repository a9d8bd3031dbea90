"""What is measured: each module has `run(...) -> dict`, with keys as in docs/benchmarks.md; the command line prints it."""
