"""An empty stand-in for IPython, which sglang/utils.py imports and a server never uses."""
