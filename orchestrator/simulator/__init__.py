"""A stand-in server that speaks SGLang's HTTP words; its speed and acceptance come from a profile and a documented model.

Not a mock: `python -m orchestrator.simulator` is a real process with a real port, log, exit codes and failures.
Nothing here runs a language model: the text is made up, and every answer says `"simulated": true`.
"""
