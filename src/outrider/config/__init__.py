"""What a user may ask for: sampling, speculation, processors and the form of the text."""

from .params import SamplingParams, SpeculativeConfig
from .processors import StatefulProcessor
from .structured import StructuredOutput

__all__ = ["SamplingParams", "SpeculativeConfig", "StatefulProcessor", "StructuredOutput"]
