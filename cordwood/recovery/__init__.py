"""The procedures that mend an epoch after its sequencer is gone."""
