"""A frozen corpus: packages and change logs as earlier code wrote them, with requests and the scores that it gave.

Whatever is changed in the format, the readers or the kernels, what lies here is read as it is and scores as it did. An
entry is never changed and never removed; a later format adds entries of its own.

    frozen/<entry>/entry.json      what it holds, which commit wrote it, its moments, SHA-256 of every other file
    frozen/<entry>/requests.json   recorded requests
    frozen/<entry>/scores.json     what each request scored at each moment
    frozen/<entry>/store/          a model repository, as it lay at the last moment
    frozen/<entry>/keys/           of a signed one: TEST-ONLY keys, which protect nothing

A moment is a state of that repository: the files that had arrived by then, in the order in which they were written.
Files are only ever added, so a moment is laid out by copying the first of them, whatever they mean. Executables that
are bound to one processor are left out: an engine that loads the entry compiles them anew, from the portable file
beside them. Scores hide the last bits of what they are computed from, so the entries named `columns` have the dense
graph's input as an output.

Scored are all requests at every moment, twice: by a processor that was opened at the first moment and followed the
later ones as their files arrived, and by one that was opened at that moment.

entry     reads entries, lays moments out; numpy alone
adapter   the engine as this commit offers it; all that a change of our API has to change here
scoring   scores entries; `python -m tests.corpus.scoring`
compare   two commits on one machine, equal to the bit; `python -m tests.corpus.compare BASE [HEAD]`
make      writes a new entry; `python -m tests.corpus.make NAME`
story     what an entry is made by: a repository, and what happened to it
clicks    the rows that entries are trained on
zoo       entries of models that were trained
foreign   entries of models that were imported
parts     entries of versions of which one part went back
"""
