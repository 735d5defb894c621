"""What happened: spans, the store that keeps them, and the trajectories and training rows made from them.

It knows nothing about agents, engines, scoring or training, and imports nothing of ours and no torch.
Everything above it does: the gateways write spans, rollouts and scores are recorded, the trainer reads groups.
"""
