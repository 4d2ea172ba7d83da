"""The old name of `tests.support.alphabet`, until every test imports that."""

from .support.alphabet import *  # noqa: F403 - to be deleted
