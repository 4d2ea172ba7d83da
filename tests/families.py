"""The old name of `tests.support.families`, until every test imports that."""

from .support.families import *  # noqa: F403 - to be deleted
