"""The scenarios of `make bench`, one a module: run(bench) measures and returns a Result.

single     1 candidate a request against an ASGI echo
saturated  64 candidates a request against the bare loop
precision  what compile chooses, by precision, against the bare loop in float32
micro      kernels and engine against the plainest code that does the same
group      a SessionGroup of 2 against one session
protocols  every dialect against binary KServe over HTTP
overload   three times what the server can do, with deadlines
neighbour  a saturated model beside another
layouts    the default layout against the best of all, and its costs
deltas     deltas while requests come
switchover  full versions while requests come
observe    what metrics and traces cost
useronce   the user-once division against the same model without it
soak       half load, a delta a second, versions and workers that come and go
before     this checkout against another one
chain      a long chain against a short one: starts, and watching
"""

__all__: list[str] = []
