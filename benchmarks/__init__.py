"""What the library costs, measured: run `python -m benchmarks`, or name some of its parts."""
