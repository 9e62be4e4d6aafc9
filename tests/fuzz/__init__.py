"""`make -C loadtest fuzz`: millions of broken inputs through every parser, in this process, without a server.

targets    the parsers, each with inputs that are valid and what it may raise: a FreshetError, and nothing else
online_targets  those of online features
stream_targets  those of streams and of `freshet join`
mutate     how an input is broken
"""
