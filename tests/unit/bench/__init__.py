"""Tests of outrider.bench and of the benchmarks."""
