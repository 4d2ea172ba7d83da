"""Models of transformers, converted to OpenVINO."""
