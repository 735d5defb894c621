"""Making it happen: gateways, sessions, rollouts, groups, scores and the command line around them.

Knows nothing about learning: no torch, nothing of `training`. Imports `traces`; is imported by `training`.
"""
