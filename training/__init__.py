"""Learning from what happened: groups → batch → adapter → policy. The only package that imports torch.

It knows nothing about agents, tools or how a rollout is made: it reads closed, scored groups from the store.
`training.loop` (main process, no torch) makes them; `python -m training.trainer` (its own process) learns from them.
"""
