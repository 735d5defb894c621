"""The shipped small policy: its tokenizer, network, demonstrations and the command that builds them.

It knows nothing about gateways, rollouts or GRPO; vLLM serves the files in `weights/` like any other model.
`python -m training.nano.build` makes everything anew.
"""
