"""For applications: a Cordwood cluster in memory, in virtual time, with faults; histories.

The pytest plugin (`cordwood.testing.plugin`) gives a test the fixture `cordwood_sim`.
Everything here loads on first use, because pytest imports the plugin, and so this
package, in every environment that Cordwood is installed in.

Source: docs/simulator.md, "Testing your application".
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordwood.sim.cluster import ClusterOptions
    from cordwood.sim.fault_plan import CLIENT_KINDS, KINDS, Fault, FaultOptions
    from cordwood.testing.application import Application
    from cordwood.testing.record import Recording
    from cordwood.testing.scenario import BrokenPromise, EndlessScenario, ScenarioRun, simulate
    from cordwood.testing.simulated_cluster import SimulatedCluster

__all__ = [
    "CLIENT_KINDS",
    "KINDS",
    "Application",
    "BrokenPromise",
    "ClusterOptions",
    "EndlessScenario",
    "Fault",
    "FaultOptions",
    "Recording",
    "ScenarioRun",
    "SimulatedCluster",
    "simulate",
]

_HOMES = {
    "CLIENT_KINDS": "cordwood.sim.fault_plan",
    "KINDS": "cordwood.sim.fault_plan",
    "Application": "cordwood.testing.application",
    "BrokenPromise": "cordwood.testing.scenario",
    "ClusterOptions": "cordwood.sim.cluster",
    "EndlessScenario": "cordwood.testing.scenario",
    "Fault": "cordwood.sim.fault_plan",
    "FaultOptions": "cordwood.sim.fault_plan",
    "Recording": "cordwood.testing.record",
    "ScenarioRun": "cordwood.testing.scenario",
    "SimulatedCluster": "cordwood.testing.simulated_cluster",
    "simulate": "cordwood.testing.scenario",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cordwood.testing' has no attribute {name!r}")
