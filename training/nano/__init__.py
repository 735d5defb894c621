"""The shipped small policy: its tokenizer, network, demonstrations and the command that builds them.

It knows nothing about gateways, rollouts or GRPO; the built files in `weights/` are served by vLLM like any other model.
`python -m training.nano.build` makes everything anew.
"""
