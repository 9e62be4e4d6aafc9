"""The `freshet` command: one module for each command or group; each imports what it needs when it runs.

cli                 the application and its entry point
folded_help         --help of a command with many options, and --help-all
completion          shell completion of models and generations
delta_commands      delta
version_commands    rollback and version
erase_command       erase
serve_command       serve
train_command       train and bench
evaluate_command    evaluate
vectors_command     vectors
convert_command     convert
import_command      import, and inspect --graph
compile_command     compile
repository_commands  repository
key_commands        keys
api_key_commands    key
demo                demo: train, publish and serve in one command
demo_traffic        traffic generator of the demo
table_analysis      inspect --tables
inspection          inspect, and the output of delta list
graph_description   subgraphs and their work, for inspect
join_command        join
core_commands       subcommands of the core, each loaded when it is asked for
extension_commands  subcommands of extensions, each in its place of --help
usage_errors        command-line errors as one line
system_errors       what the system refuses, as one line
shutdown_signals    signal handling of commands that run until stopped
admin_client        a small client of the admin port
"""

__all__ = ["admin_client", "cli", "completion", "delta_commands", "key_commands", "shutdown_signals"]
