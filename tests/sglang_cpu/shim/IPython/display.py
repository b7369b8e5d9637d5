"""The two names sglang/utils.py imports from IPython.display."""


class HTML:
    """Never made by a server."""


def display(*shown: object) -> None:
    raise NotImplementedError("IPython is not installed in the environment of these tests; a server does not display")
