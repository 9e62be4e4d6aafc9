"""`make release`: what is given to others, from one tree: built, checked, used as a newcomer would, tagged if asked.

state      the version, the tree and the changelog that a release is made of
archives   the source distribution and both wheels, the same bytes from the same commit
contents   what has to be in them, and what must not
bill       bills of materials: what comes along where they are installed
newcomer   every line that installs Freshet, run in a fresh environment, and what it installs used
"""
