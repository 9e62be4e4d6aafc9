"""What is kept of a training run for people: its configuration, its metrics as they came, and a report of them.

run_journal      what a run tells, written as it comes
run_folder       a run's folder, whose trouble is nobody else's
run_report       the report, one HTML file
curves           its pictures
stage_bars       where the time of a step went, as one of them
tensorboard_log  the same curves for TensorBoard
"""

__all__ = ["run_journal", "stage_bars"]
