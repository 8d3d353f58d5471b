"""The three seams between Cordwood and the machine."""
