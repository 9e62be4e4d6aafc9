"""Toy extensions: each a folder that a test installs beside the others, without a change of any other file."""
