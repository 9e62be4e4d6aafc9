"""The `freshet` command: one module a command or group of them, each imports what it needs when it runs.

cli            the command itself, serve, inspect, delta
training       train and bench
importing      import, and inspect --graph
compiling      compile
remote_tables  tables
recordings     recordings
demo           the whole job in one command
demo_traffic   the demo's traffic
inspection     what inspect and delta list print
admin_client   a small client of the admin port
"""

__all__ = ["cli"]
