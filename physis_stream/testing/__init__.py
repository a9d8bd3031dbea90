"""The public test kit: deterministic stand-ins for everything that the engine core talks to.

Names here need the standard library only. `physis_stream.testing.strategies` needs Hypothesis; the fakes of the layers
above (`fake_service`, `serving`) need what those layers need.
"""

from physis_stream.testing.fact_checker import FactChecker
from physis_stream.testing.fake_clock import FakeClock
from physis_stream.testing.fake_executor import FakeCosts, FakeExecutor, WrongPlan
from physis_stream.testing.random_clients import RandomClients
from physis_stream.testing.simulation import Simulation
from physis_stream.testing.toy_worlds import toy_action, toy_rule, toy_spec

__all__ = [
    "FactChecker",
    "FakeClock",
    "FakeCosts",
    "FakeExecutor",
    "RandomClients",
    "Simulation",
    "WrongPlan",
    "toy_action",
    "toy_rule",
    "toy_spec",
]
