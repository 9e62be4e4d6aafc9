"""The `freshet` command: one module a command or group of them, each imports what it needs when it runs.

cli                 the table of contents
folded_help         --help of a command with many options, and --help-all
completion          what a shell completes
delta_commands      delta
serve_command       serve
train_command       train and bench
evaluate_command    evaluate
vectors_command     vectors
convert_command     convert
import_command      import, and inspect --graph
compile_command     compile
table_commands      tables
repository_commands  repository
recording_commands  recordings
key_commands        keys
api_key_commands    key
demo                the whole job in one command
demo_traffic        the demo's traffic
table_analysis      inspect --tables
inspection          inspect, and what delta list prints
join_command        join
explain_command     explain
fleet_command       fleet
fleet_comparison    its replicas, held against each other
fleet_polling       its replicas, asked
usage_errors        mistakes on the command line, in one line
shutdown_signals    how a command that would go on is asked to end
admin_client        a small client of the admin port
"""

__all__ = ["cli"]
