"""The `freshet` command: one module a command or group of them, each imports what it needs when it runs.

cli            the table of contents
options_page   docs/options.md
deltas         delta
serve          serve
training       train and bench
importing      import, and inspect --graph
compiling      compile
remote_tables  tables
recordings     recordings
demo           the whole job in one command
demo_traffic   the demo's traffic
inspection     inspect, and what delta list prints
admin_client   a small client of the admin port
"""

__all__ = ["cli"]
