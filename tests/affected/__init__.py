"""Tests by what they touch: which tests a change can break, read from the code alone.

`python -m tests.affected --list SINCE` names the test files; `--share N` says how much of the tests each of the last N
commits would have run, `--mutants` whether the tests that killed mutants are affected by them; `--campaign N` tries N
mutants on them.

facts    what one file defines and what each definition uses, from its source
closure  which definitions need which, over a whole tree
changes  the files of a commit or of the working tree, and what has changed
share    how much of the tests commits would have run
killers  whether the tests that killed mutants are affected by them
campaign  whether affected tests kill the mutants that all short tests kill
"""
