"""What Outrider costs and brings, measured: `python -m benchmarks NAME`."""
