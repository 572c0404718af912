"""The decorator that modules use to register their scripts."""

from collections.abc import Callable

from differential.playing import Script


def collector(into: dict[str, Script]) -> Callable[[Script], Script]:
    """Return a decorator that adds a script to `into`. The key is the function's name, with underscores replaced by
    spaces."""

    def collect(script: Script) -> Script:
        name = script.__name__.replace("_", " ")
        assert name not in into, name
        into[name] = script
        return script

    return collect
