"""What is kept of a training run for people: its configuration, its metrics as they came, and a report of them.

run_journal      what a run tells, written as it comes
run_folder       a run's folder, whose trouble is nobody else's
run_report       the report, one HTML file
curves           its pictures
stage_bars       where the time of a step went, as one of them
train_metrics    where a run stands, for Prometheus
run_lock         one trainer of a model at a time
live_view        where a run stands, on a terminal
tensorboard_log  the same curves for TensorBoard
"""

__all__ = ["live_view", "run_journal", "run_lock", "stage_bars", "train_metrics"]
