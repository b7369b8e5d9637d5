"""A server that spawns children by multiprocessing, as SGLang does, with the standard library alone.

python -m tests.fakes.spawning --port PORT --served-model-name NAME [--children FUNCTION,…] [--sets NAME=VALUE]
"""
