"""Certify an engine behind an OpenAI-compatible server: are its texts draws from the target?"""
