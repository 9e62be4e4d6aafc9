"""A toy: an observer that counts the requests of a process and those that failed, for /metrics.

counting  counts requests
"""

from freshet_serving.processor.ports import Extension

__all__: list[str] = []


def _counting(groups, clock):
    from freshet_serving.processor.extensions.toy_observer.counting import RequestCounter

    return RequestCounter()


REQUIRES = ()
EXTENSION = Extension(observers={"toy": _counting})
