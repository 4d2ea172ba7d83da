"""The pair of models that ships with the package: a small writer of Python, and a draft of it.

See MODEL_CARD.md beside this file for what they are and how they were made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
TARGET = ROOT / "target"
DRAFT = ROOT / "draft"
HEAD = ROOT / "head"
END_OF_TEXT = "<|endoftext|>"

PROMPTS = (
    '''"""Helpers for reading settings from a file."""

import json
import os


class Settings:
    """Values by name, with defaults."""

    def __init__(self, path, defaults=None):
        self.path = path
        self.values = dict(defaults or {})

    def get(self, name, default=None):
''',
    '''import socket
import threading


class Server:
    """Accept connections and hand each one to a thread of its own."""

    def __init__(self, address, handler, backlog=5):
        self.address = address
        self.handler = handler
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.bind(address)
        self.socket.listen(backlog)

    def serve_forever(self):
''',
    '''def parse_arguments(argv):
    """Split a command line into options and positional arguments.

    Options start with a dash. An option followed by a value that does not
    start with a dash takes that value.
    """
    options = {}
    arguments = []
    index = 0
    while index < len(argv):
''',
    """import unittest


class TestQueue(unittest.TestCase):

    def setUp(self):
        self.queue = Queue(maxsize=3)

    def test_empty(self):
        self.assertTrue(self.queue.empty())
        self.assertEqual(self.queue.qsize(), 0)

    def test_put_and_get(self):
""",
)
"""Beginnings of Python files, none of them from the training data, to decode from."""


def tokenizer() -> Any:
    """The tokenizer both models share."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(ROOT / "tokenizer.json"),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        model_max_length=1024,
    )
