"""The procedures that recover an epoch after its sequencer is gone."""
