"""What speculation is worth: measured on prompts, and predicted before it is run."""
