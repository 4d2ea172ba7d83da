"""How the demo pair is made: tokenise, train the target, distil the draft, evaluate.

Not part of the installed package; run from the repository root with ``python -m training.<step>``.
"""
