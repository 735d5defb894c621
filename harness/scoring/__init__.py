"""Scores for trajectories: state checks, the RULER judge over a group, and blends of both.

It knows nothing about agents, engines or training; it reads trajectories and returns scores.
Called by the rollout loop, by `harness score` and by `harness judge calibrate`.
"""
