"""Every decoder, instrumented: loaded once, for each target's process to begin from a copy.

Instrumenting what the decoders import takes some seconds, much more than a short run.
"""

from __future__ import annotations

import contextlib
import io

import atheris

# It says a line of each module.
silence = contextlib.redirect_stderr(io.StringIO())
with silence, atheris.instrument_imports(include=["cordwood"]):
    import fuzz_more  # noqa: F401 (it adds to TARGETS)
    import fuzz_node
    import fuzz_targets

NODE = fuzz_node.FuzzedNode
TARGETS = fuzz_targets.TARGETS
