"""Records of a training run for people: its configuration, its metrics over time, and a report.

run_journal      append-only log of a run, written as it goes
run_folder       a run's folder; errors in it do not stop training
run_report       the report, one HTML file
curves           line charts as SVG
step_profile     time per stage of a step
stage_bars       chart of it
train_metrics    progress of a run, for Prometheus
outages          waits of an endless run for what it cannot reach
run_lock         one trainer of a model at a time
live_view        progress of a run, on a terminal
tensorboard_log  the same curves for TensorBoard
"""

__all__ = ["live_view", "outages", "run_journal", "run_lock", "stage_bars", "step_profile", "train_metrics"]
