"""How the modules of scripts collect them."""

from collections.abc import Callable

from differential.playing import Script


def collector(into: dict[str, Script]) -> Callable[[Script], Script]:
    """A decorator that puts a script into `into`; its name is the function's, in words."""

    def collect(script: Script) -> Script:
        name = script.__name__.replace("_", " ")
        assert name not in into, name
        into[name] = script
        return script

    return collect
