"""`physis-stream train`: hands over to the training recipe, which needs the `train` extra."""

from __future__ import annotations

import argparse
import importlib.util

from physis_stream.cli import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    from physis_stream.training.cli import configure as configure_training

    configure_training(parser)


def run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("gymnasium") is None:
        raise UsageError("training needs gymnasium: pip install 'physis-stream[train]'")
    from physis_stream.training.cli import run as run_training

    try:
        return run_training(args)
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
