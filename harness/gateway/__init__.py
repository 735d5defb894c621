"""The two doors of every rollout: a model gateway and a tool gateway, in one ASGI application and one process.

They know nothing about tasks, scores or training. Agents call the doors, rollouts open and seal them.
"""
