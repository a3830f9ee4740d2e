"""From the events of a run to the time of each module."""
