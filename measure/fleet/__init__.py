"""Fleets, measured: speed, faults, resume, and plans for many models. Start in `fleet_run.run_measure`."""
